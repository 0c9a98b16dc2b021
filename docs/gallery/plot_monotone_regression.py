"""
Monotone regression
===================

A score should not fall when the number of prior offenses rises, and not rise with age. A few hundred people do not teach
a network that; 192 inequalities do. They are checked at 96 people, for a step of half a standard deviation, and the picture
shows whether the curves of other people follow.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.data.tabular import TableSource
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
table = TableSource("compas").load()
PEOPLE = 400  # of 4,000: a small study
signs = {"priors_count": 1.0, "age": -1.0}
points = table.train[:96]


def drop(model, people, feature):
    """How much the score moves the wrong way for a step of one feature; at most 0 is right."""
    step = torch.zeros(people.shape[1])
    step[table.features.index(feature)] = 0.5 * signs[feature]
    return (model(people) - model(people + step)).squeeze(1)


# %%
# Two blocks, 96 inequalities each
# --------------------------------


def train(constrained, epochs):
    """Train a small network, with the constraints or without them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(len(table.features), 32),
        nn.Tanh(),
        nn.Linear(32, 32),
        nn.Tanh(),
        nn.Linear(32, 1),
    )
    constraints = ConstraintRegistry()
    if constrained:
        for feature in signs:
            constraints.inequality(feature, lambda f=feature: drop(model, points, f))
    base = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = (
        PowerALMOptimizer(base, constraints, total_steps=5 * epochs) if constrained else base
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5 * epochs)
    for _ in range(epochs):
        for rows in torch.randperm(PEOPLE).split(80):
            optimizer.zero_grad()
            logits = model(table.train[rows]).squeeze(1)
            binary_cross_entropy_with_logits(logits, table.train_labels[rows]).backward()
            optimizer.step()
            scheduler.step()
    return model, optimizer


epochs = 40 if FAST else 150
plain, _ = train(False, epochs)
monotone, optimizer = train(True, epochs)
print(optimizer.report(tolerance=0.02))

# %%
# Curves of 40 people from the test data: only the feature on the axis moves, everything else stays. A few constrained curves are
# still red: the inequalities hold at the 96 people where they are checked, and not everywhere between them.

figure, axes = plt.subplots(1, 4, figsize=(13, 3.6), sharey=True, layout="constrained")
grid = torch.linspace(-1, 3, 80)
for i, feature in enumerate(signs):
    for ax, model, name, color in (
        (axes[2 * i], plain, "unconstrained", "0.45"),
        (axes[2 * i + 1], monotone, "monotone", "C0"),
    ):
        for person in table.test[:40]:
            rows = person.repeat(len(grid), 1)
            rows[:, table.features.index(feature)] = grid
            with torch.no_grad():
                risk = torch.sigmoid(model(rows)).squeeze(1)
            wrong = bool((signs[feature] * risk.diff() < -0.002).any())
            ax.plot(grid, risk, color="C3" if wrong else color, linewidth=0.9, alpha=0.7)
        ax.set(title=name, xlabel=f"{feature}, standardized")
axes[0].set_ylabel("predicted risk (red: not monotone)")
plt.show()

# %%
# Feasible at the end, without a loss of accuracy on test data.

with torch.no_grad():
    worst = max(float(drop(monotone, points, feature).max()) for feature in signs)
    for name, model in (("unconstrained", plain), ("monotone", monotone)):
        logits = model(table.test).squeeze(1)
        accuracy = ((logits > 0).float() == table.test_labels).float().mean()
        print(f"{name}: test accuracy {100 * accuracy:.1f} %")
print(f"largest step in the wrong direction {max(worst, 0):.4f}")
assert worst <= 0.02
