"""Budgets of a network: its Lipschitz bound, its L1 norm, its number of open gates."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.constraint_bench.networks import linear_layers, mlp, pooled_images, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training
from experiments.constraint_bench.tasks.weight_tasks import classifier

STRETCH, TEMPERATURE, GATE_RATE = (
    (-0.1, 1.1),
    2 / 3,
    3.0,
)  # of the hard-concrete distribution (Louizos et al. 2018)


def lipschitz(generator: torch.Generator) -> Training:
    """Fashion-MNIST, the product of the spectral norms of three layers at most 4."""
    model = mlp([196, 32, 32, 10], nn.ReLU, generator)

    def product() -> Tensor:
        return (spectral_norms(model).prod() - 4).reshape(1)

    block = Constraint("lipschitz", True, 1, 0.05, fn=product)
    return classifier(model, "fashion_mnist", [block], 100, 600, generator)


def l1_budget(generator: torch.Generator) -> Training:
    """MNIST, Σ|W| at most 200 in units of 1e4, spectral norms at most 2 in units of 1e-3."""
    model = mlp([196, 32, 32, 10], nn.ReLU, generator)

    def l1() -> Tensor:
        total = sum(layer.weight.abs().sum() for layer in linear_layers(model))
        return 1e-4 * (torch.as_tensor(total) - 200).reshape(1)

    def norms() -> Tensor:
        return 1e3 * (spectral_norms(model) - 2)

    blocks = [
        Constraint("l1", True, 1, 1e-4 * 2, fn=l1),
        Constraint("spectral", True, 3, 1e3 * 0.02, fn=norms),
    ]
    return classifier(model, "mnist", blocks, 100, 600, generator)


def spectral_norms(model: nn.Module) -> Tensor:
    """The largest singular value of each linear layer."""
    norms = [torch.linalg.matrix_norm(layer.weight, 2) for layer in linear_layers(model)]
    return torch.stack(norms)


class GatedNetwork(nn.Module):
    """Classifier with a hard-concrete gate at each input and each hidden unit."""

    def __init__(self, generator: torch.Generator, hidden: int = 48) -> None:
        super().__init__()
        self.layers = mlp([196, hidden, 10], nn.ReLU, generator)
        self.inputs = nn.Parameter(torch.full((196,), 2 / GATE_RATE))
        self.units = nn.Parameter(torch.full((hidden,), 2 / GATE_RATE))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Logits; uniform noise for each gate samples it, None takes its typical value."""
        a, b = (None, None) if noise is None else noise.split([len(self.inputs), len(self.units)])
        hidden = torch.relu(self.layers[0](x * gate(GATE_RATE * self.inputs, a)))
        logits: Tensor = self.layers[2](hidden * gate(GATE_RATE * self.units, b))
        return logits

    def open_share(self) -> Tensor:
        """Expected share of open gates, at the inputs and at the hidden units."""
        shift = TEMPERATURE * math.log(-STRETCH[0] / STRETCH[1])
        gates = (GATE_RATE * self.inputs, GATE_RATE * self.units)
        return torch.stack([torch.sigmoid(log_alpha - shift).mean() for log_alpha in gates])


def gate(log_alpha: Tensor, noise: Tensor | None) -> Tensor:
    """Hard-concrete gates in [0, 1]."""
    if noise is None:
        soft = torch.sigmoid(log_alpha)
    else:
        soft = torch.sigmoid((noise.log() - (-noise).log1p() + log_alpha) / TEMPERATURE)
    return (STRETCH[0] + (STRETCH[1] - STRETCH[0]) * soft).clamp(0, 1)


def l0_budget(generator: torch.Generator) -> Training:
    """MNIST, at most 35 % of the inputs and of the hidden units open in expectation."""
    model, data = GatedNetwork(generator), pooled_images("mnist")

    def evaluate(batch: tuple[Tensor, Tensor]) -> Evaluation:
        rows, noise = batch
        x, target = data["train"]
        return Evaluation(cross_entropy(model(x[rows], noise), target[rows]), {}, {})

    @torch.no_grad()
    def merit(split: str) -> float:
        x, target = data[split]
        return cross_entropy(model(x), target).item()

    def share() -> Tensor:
        return model.open_share() - 0.35

    rows = row_batches(5000, 100, 800, generator)
    noise = torch.rand(800, 196 + 48, generator=generator).clamp(1e-4, 1 - 1e-4)
    block = Constraint("open_gates", True, 2, 0.01, fn=share)
    batches = list(zip(rows, noise, strict=True))
    values = torch.no_grad()(lambda split: {"open_gates": share()})
    return Training(model, [block], batches, evaluate, merit, values)


TASKS = [
    Task("lipschitz", "budgets", lipschitz, 600, 50, lr=3e-3, sgd_lr=0.03),
    Task("l1_budget_mixed_units", "budgets", l1_budget, 600, 50, lr=3e-3, sgd_lr=0.03),
    Task("l0_budget", "budgets", l0_budget, 800, 50, lr=1e-2, sgd_lr=0.1),
]
