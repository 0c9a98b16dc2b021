"""
A bound for every sample
========================

A mean loss hides the samples that are still wrong. Here every single one of 1,000 digits must have a loss of at most 0.2:
a thousand inequalities, each with its own multiplier, which also tells which samples are hard.
"""

import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
BOUND, N = 0.2, 300 if FAST else 1000
digits = load_digits()
x = torch.tensor(digits.data[:N], dtype=torch.float32) / 16
target = torch.tensor(digits.target[:N])

# %%
# A thousand inequalities
# -----------------------


def train(constrained, steps):
    """Full-batch training of a small network with weight decay, which keeps losses from vanishing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    constraints = ConstraintRegistry()
    constraints.inequality("sample_loss", size=N, latest=True)  # the same samples in every step
    base = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=steps) if constrained else base
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = cross_entropy(model(x), target, reduction="none")
        decay = 2e-3 * sum(p.square().sum() for p in model.parameters())
        loss = losses.mean() + decay
        if constrained:
            loss = optimizer.augment(loss, sample_loss=losses - BOUND)
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return cross_entropy(model(x), target, reduction="none"), optimizer


steps = 400 if FAST else 800
plain, _ = train(False, steps)
bounded, optimizer = train(True, steps)
print(optimizer.report(tolerance=0.02))

# %%
# The losses, and the samples with the largest multipliers
# --------------------------------------------------------

figure = plt.figure(figsize=(11, 3.8), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.2, 1))
ax = left.subplots()
for losses, name, color in ((plain, "mean loss only", "0.5"), (bounded, "every loss ≤ 0.2", "C0")):
    ordered = losses.sort(descending=True).values.clamp(min=1e-3)
    ax.semilogy(range(1, N + 1), ordered, color=color, label=name)
ax.axhline(BOUND, color="C3", linestyle="--", linewidth=1)
ax.set(xlabel="samples, largest loss first", ylabel="loss")
ax.legend(frameon=False)
y = optimizer.multipliers()["sample_loss"]
for panel, index in zip(right.subplots(2, 5).flat, y.argsort(descending=True), strict=False):
    panel.imshow(x[index].reshape(8, 8).numpy(), cmap="gray_r")
    panel.set_title(f"{target[index]}  y = {y[index]:.3f}", fontsize=9)
    panel.axis("off")
right.suptitle("largest multipliers: the hard samples")
plt.show()

# %%
# Feasible at the end: the worst of the thousand samples.

print(
    f"largest loss {float(bounded.max()):.3f}, bound {BOUND}; mean loss only {float(plain.max()):.3f}"
)
print(f"samples with a multiplier: {int((y > 0).sum())} of {N}")
assert bounded.max() <= BOUND * 1.1
