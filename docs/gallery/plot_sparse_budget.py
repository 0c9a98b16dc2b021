"""
A sparse network with an exact budget
=====================================

Which 60 of 196 pixels does a classifier of digits need? Every input passes a gate that is open or closed (hard-concrete gates,
Louizos et al. 2018), and the expected number of open gates is an inequality. There is no penalty weight to search for: the
budget is the number you write.
"""

import math
import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

from experiments.data.images import Source
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
LOW, HIGH, TEMPERATURE = -0.1, 1.1, 2 / 3
images = Source("mnist").load()


def pixels(x):
    """Images of 14 × 14 pixels, roughly standardized, as vectors."""
    return (avg_pool2d(x.float().unsqueeze(1) / 255, 2).flatten(1) - 0.2) / 0.3


x, target = pixels(images.train), images.train_labels
x_test, target_test = pixels(images.test), images.test_labels


class Gates(nn.Module):
    """One stochastic gate per pixel; in evaluation its most likely value, which is often exactly 0."""

    def __init__(self):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((196,), 2.0))

    def forward(self, x):
        noise = torch.rand(196).clamp(1e-4, 1 - 1e-4)
        logistic = (noise.log() - (-noise).log1p()) if self.training else 0.0
        temperature = TEMPERATURE if self.training else 1.0
        gate = torch.sigmoid((logistic + self.log_alpha) / temperature)
        return x * (LOW + (HIGH - LOW) * gate).clamp(0, 1)

    def open_probability(self):
        """The probability of each gate to be open in training."""
        return torch.sigmoid(self.log_alpha - TEMPERATURE * math.log(-LOW / HIGH))

    def mask(self):
        """The gates that are open in evaluation."""
        return LOW + (HIGH - LOW) * torch.sigmoid(self.log_alpha) > 0


# %%
# One inequality, in pixels
# -------------------------


def train(budget, epochs):
    """Train with at most this many open gates in expectation."""
    torch.manual_seed(0)
    model = nn.Sequential(Gates(), nn.Linear(196, 48), nn.ReLU(), nn.Linear(48, 10))
    constraints = ConstraintRegistry()
    constraints.inequality("pixels", lambda: (model[0].open_probability().sum() - budget)[None])
    gates = {"params": [model[0].log_alpha], "lr": 0.05}
    base = torch.optim.Adam([gates, {"params": model[1:].parameters()}], lr=3e-3)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=50 * epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50 * epochs)
    for _ in range(epochs):
        for rows in torch.randperm(5000).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), target[rows]).backward()
            optimizer.step()
            scheduler.step()
    return model.eval(), optimizer


epochs = 6 if FAST else 20
budgets = (60,) if FAST else (90, 60, 25)
runs = {budget: train(budget, epochs) for budget in budgets}
for budget, (_, optimizer) in runs.items():
    print(f"budget {budget}\n{optimizer.report(tolerance=0.01 * budget)}")

# %%
# The pixels that stay
# --------------------

figure, axes = plt.subplots(
    1, len(runs) + 1, figsize=(3 * len(runs) + 3, 3.9), layout="constrained"
)
axes[0].imshow(x.mean(0).reshape(14, 14).numpy(), cmap="gray_r")
axes[0].set_title("mean digit")
for ax, (budget, (model, _)) in zip(axes[1:], runs.items(), strict=True):
    count = int(model[0].mask().sum())
    with torch.no_grad():
        accuracy = 100 * (model(x_test).argmax(1) == target_test).float().mean()
    ax.imshow(x.mean(0).reshape(14, 14).numpy(), cmap="gray_r", alpha=0.25)
    shown = torch.where(model[0].mask(), 1.0, torch.nan).reshape(14, 14)
    ax.imshow(shown.numpy(), cmap="winter", vmin=0, vmax=2)
    ax.set_title(f"budget {budget}: {count} pixels\ntest accuracy {accuracy:.1f} %")
for ax in axes:
    ax.axis("off")
plt.show()

# %%
# Feasible at the end: the exact number of pixels that the network still reads is within the budget.

for budget, (model, optimizer) in runs.items():
    count = int(model[0].mask().sum())
    print(f"budget {budget}: {count} pixels are read")
    assert count <= budget
    assert optimizer.report(tolerance=0.05 * budget).feasible
