"""Models under torch.compile, whose backward may run only once for a batch."""

import pytest
import torch
from torch import nn, optim

from tests.versions import needs_torch
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, params, steps=60):
    constraints = ConstraintRegistry()
    constraints.inequality("first", size=1)
    constraints.equality("others", size=2)
    optimizer = PowerALMOptimizer(optim.Adam(params, lr=1e-2), constraints)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(16, 4, generator=generator))
        mean = out.mean(0)
        loss = (out - 1).square().mean()
        optimizer.augment(loss, first=mean[:1] - 0.2, others=mean[1:]).backward()
        optimizer.step()
    return optimizer


@BACKENDS
def test_a_compiled_model_trains_like_a_plain_one(backend):
    plain, net = network(), network()
    train(plain, plain.parameters())
    train(torch.compile(net, backend=backend), net.parameters())
    for p, q in zip(plain.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


class OnceOnly(torch.autograd.Function):
    """Raises as a compiled backward does that has given its buffers away."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if torch._C._autograd._get_current_graph_task_keep_graph():
            raise RuntimeError("This backward function was compiled with non-empty donated buffers")
        return grad


class Compiled(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return OnceOnly.apply(self.net(x))


@needs_torch(2, 6)
def test_units_are_measured_where_backward_may_run_only_once():
    plain, net = network(), network()
    free, once = train(plain, plain.parameters()), train(Compiled(net), net.parameters())
    assert once.dual.started
    assert once.epoch.total_steps == 58  # one step for each block carried its gradient alone
    assert once.epoch.skipped == 0
    for name in ("first", "others"):
        assert once.units.change[name][0] == pytest.approx(free.units.change[name][0], rel=0.3)
        assert once.units.scale(name) == pytest.approx(free.units.scale(name), rel=0.3)


def test_other_errors_of_backward_are_raised():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("broken")

    net = network()
    with pytest.raises(RuntimeError, match="broken"):
        train(lambda x: Broken.apply(net(x)), net.parameters(), steps=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_inductor_model_that_was_trained_before_trains():
    net = network()
    model = torch.compile(net)
    try:
        model(torch.randn(16, 4)).sum().backward()  # compiles a backward that runs only once
    except Exception as error:  # no compiler on this machine
        pytest.skip(str(error))
    assert train(model, net.parameters()).dual.started
