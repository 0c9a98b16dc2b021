"""`constrained(optimizer).augment` in plain torch, accelerate, Fabric and Lightning: same bits."""

import pytest

pytest.importorskip("lightning")
pytest.importorskip("accelerate")
import importlib

import lightning as L  # noqa: N812
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.fabric import Fabric
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo
from torch_powalm.integrations import constrained
from torch_powalm.integrations.wrapped_optimizer import import_engine
from torch_powalm.lightning import PowerALMCallback

STEPS = 60
X = torch.randn(STEPS, 20, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(2) > 1).float()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def build():
    net = Net()
    constraints = ConstraintRegistry()
    zoo.unit_norm(constraints, "rows", lambda: net.layers[0].weight)
    missed = zoo.false_negative_rate(constraints, "missed", bound=0.05)
    base = torch.optim.Adam(net.parameters(), lr=1e-2)
    return net, missed, PowerALMOptimizer(base, constraints, total_steps=STEPS)


def train(net, missed, optimizer, backward):
    """The one documented loop: `optimizer` is whatever the engine gives."""
    for x, y in zip(X, Y, strict=True):
        optimizer.zero_grad()
        logits = net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        loss = constrained(optimizer).augment(loss, missed=missed(logits, y))
        backward(loss)
        optimizer.step()
    constrained(optimizer).update_multipliers()


def outcome(net, optimizer):
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    return torch.cat([weights, constrained(optimizer).dual.y])


def plain():
    net, missed, optimizer = build()
    train(net, missed, optimizer, lambda loss: loss.backward())
    return outcome(net, optimizer)


def accelerated():
    try:
        accelerator = Accelerator(cpu=True)
        net, missed, optimizer = build()
        model, optimizer = accelerator.prepare(net, optimizer)
        train(model, missed, optimizer, accelerator.backward)
        return outcome(net, optimizer)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        PartialState._reset_state()


def in_fabric():
    fabric = Fabric(accelerator="cpu", devices=1)
    net, missed, optimizer = build()
    model, optimizer = fabric.setup(net, optimizer)
    train(model, missed, optimizer, fabric.backward)
    return outcome(net, optimizer)


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.missed, self.optimizer = build()

    def training_step(self, batch, _):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        return constrained(self.optimizers()).augment(loss, missed=self.missed(logits, y))

    def configure_optimizers(self):
        return self.optimizer


def in_lightning():
    module = Lit()
    trainer = L.Trainer(
        max_epochs=1,
        callbacks=[PowerALMCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    batches = list(zip(X, Y, strict=True))
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    return outcome(module.net, module.optimizer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", [accelerated, in_fabric, in_lightning])
def test_an_engine_gives_the_bits_of_the_plain_loop(engine):
    assert torch.equal(engine(), plain())


def test_an_optimizer_without_constraints_is_said():
    adam = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    with pytest.raises(
        TypeError, match="optimizer must be a PowerALMOptimizer or wrap one, got Adam"
    ):
        constrained(adam)


@pytest.mark.parametrize(
    ("engine", "extra"),
    [
        ("transformers", "transformers"),
        ("hydra", "hydra"),
        ("deepxde", "deepxde"),
    ],
)
def test_a_missing_engine_is_said(monkeypatch, engine, extra):
    found = importlib.import_module

    def missing(name, *arguments):
        if name.split(".")[0] == engine:
            raise ModuleNotFoundError(f"No module named {engine!r}", name=engine)
        return found(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=rf"needs {engine}; install it with .*\[{extra}\]"):
        import_engine(engine, extra)
