"""
Demographic parity on Adult
===========================

A classifier of incomes says "above 50K" for men far more often than for women. We bound the difference of the two rates
and look at what each bound costs in accuracy.

The constraint is a function of four sums over the batch: positive decisions and people, women and men. Hard decisions
have no gradient, so the gradient comes from a steep sigmoid, and multipliers and reports use the true decisions.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.data.tabular import TableSource
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
table = TableSource("adult").load()  # a sample of 4,000 training rows, sex is not a feature


def sums(decisions, women):
    """Positive decisions among women and among men, then the numbers of women and men."""
    groups = torch.stack([women, 1 - women])
    return torch.cat([groups @ decisions, groups.sum(1)])


def gap(s):
    """Difference of the rates of women and men."""
    return s[0] / s[2] - s[1] / s[3]


# %%
# The training
# ------------
# An absolute value below a bound is two inequalities: gap − bound ≤ 0 and −gap − bound ≤ 0.


def train(bound, epochs):
    """Return the model, its optimizer, and the gap on the training data after every epoch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(table.train.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    constraints = ConstraintRegistry()
    constraints.inequality(
        "parity", size=2, from_statistics=lambda s: torch.stack([gap(s), -gap(s)]) - bound
    )
    base = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=epochs * 40)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    path = []
    for _ in range(epochs):
        for rows in torch.randperm(4000).split(100):
            optimizer.zero_grad()
            logits = model(table.train[rows]).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, table.train_labels[rows])
            women = table.train_groups[rows]
            loss = optimizer.augment(
                loss,
                parity=sums(torch.sigmoid(8 * logits), women),
                strict={"parity": sums((logits.detach() > 0).float(), women)},
            )
            loss.backward()
            optimizer.step()
        scheduler.step()
        path.append(measure(model, table.train, table.train_labels, table.train_groups)[0])
    return model, optimizer, path


@torch.no_grad()
def measure(model, x, labels, women):
    """Return the gap and the accuracy."""
    decisions = (model(x).squeeze(1) > 0).float()
    return float(gap(sums(decisions, women))), float((decisions == labels).float().mean())


# %%
# Several bounds
# --------------
# A bound of 1 never binds: that is the unconstrained training. The library has nothing to tune; only the bound changes.

epochs = 8 if FAST else 15
bounds = (1.0, 0.03) if FAST else (1.0, 0.1, 0.06, 0.03, 0.01)
runs = {bound: train(bound, epochs) for bound in bounds}
model, optimizer, _ = runs[0.03]
print(optimizer.report(tolerance=0.01))

# %%
# Left: the gap during training; right: what the bound costs. The dots are measured on test data that
# the training has not seen, so they may lie slightly beyond their bound: see
# :doc:`/certificates` for what can be said about unseen data.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
colors = plt.colormaps["viridis"](torch.linspace(0, 0.85, len(runs)).numpy())
for color, (bound, (net, _, path)) in zip(colors, runs.items(), strict=True):
    name = "no constraint" if bound == 1 else f"|gap| ≤ {bound}"
    left.plot(range(1, epochs + 1), [abs(g) for g in path], color=color, label=name)
    if bound < 1:
        left.axhline(bound, color=color, linewidth=0.8, linestyle=":")
    test_gap, accuracy = measure(net, table.test, table.test_labels, table.test_groups)
    right.scatter(abs(test_gap), 100 * accuracy, color=color, s=70, zorder=3, label=name)
left.set(xlabel="epoch", ylabel="|gap| on the training data", ylim=(0, None))
right.set(xlabel="|gap| on test data", ylabel="accuracy on test data, %", xlim=(0, None))
right.legend(frameon=False, loc="lower right", title="both pictures")
right.grid(alpha=0.3)
plt.show()

# %%
# Feasible at the end, on hard decisions over the whole training set:

for bound, (model, _, _) in runs.items():
    final, _ = measure(model, table.train, table.train_labels, table.train_groups)
    print(f"gap {final:+.4f}, bound {bound}")
    assert abs(final) <= bound + 0.005
