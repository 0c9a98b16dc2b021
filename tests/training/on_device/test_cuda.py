"""What only CUDA can show; skipped by name where there is none."""

from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.training.indexed.test_indexed_blocks import Training as PerSample
from tests.training.on_device.test_device_reads import Training
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning"),
]


@pytest.mark.parametrize("nu", [0.5, 1.0])
def test_steps_wait_for_nothing(nu: float) -> None:
    training = Training(
        ("rows", "many", "mean", "sign"), optim.SGD, beta_1=1.0, device="cuda", nu=nu
    )
    batches = [tuple(v.cuda() for v in training.batch()) for _ in range(6)]
    left = iter(batches)
    training.batch = lambda: next(left)  # type: ignore[method-assign]
    for _ in range(2):
        training.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            training.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert training.optimizer.update_multipliers().k == 1


def test_one_constraint_for_each_sample_trains_like_on_the_cpu() -> None:
    trained = []
    for device in ("cpu", "cuda"):
        training = PerSample(beta_1=1.0, nu=0.6)
        training.model.to(device)
        training.x, training.target = training.x.to(device), training.target.to(device)
        for _ in range(3):
            training.epoch()
            training.optimizer.update_multipliers()
        trained.append(training)
    y, found = (t.optimizer.multipliers()["sample"].cpu() for t in trained)
    torch.testing.assert_close(found, y, rtol=1e-6, atol=1e-9)


def test_a_model_in_a_cuda_graph_trains_like_a_plain_one() -> None:
    trained = []
    for graphed in (False, True):
        torch.manual_seed(0)
        net: Any = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
        constraints = ConstraintRegistry()
        constraints.equality("rows", lambda net=net: net[0].weight.square().sum(1) - 1)
        constraints.inequality("mean", size=1)
        base = optim.Adam(net.parameters(), lr=0.01, fused=True)
        optimizer = PowerALMOptimizer(base, constraints, beta_1=1.0, updates=5)
        inputs = torch.randn(16, 4, device="cuda")
        model = torch.cuda.make_graphed_callables(net, (inputs,)) if graphed else net
        generator = torch.Generator().manual_seed(1)
        for _ in range(12):
            out = model(torch.randn(16, 4, generator=generator).cuda())
            optimizer.zero_grad()
            loss = optimizer.augment((out - 1).square().mean(), mean=out.mean().reshape(1) - 0.2)
            loss.backward()
            optimizer.step()
        trained.append([p.detach().clone() for p in net.parameters()])
    for p, q in zip(*trained, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
