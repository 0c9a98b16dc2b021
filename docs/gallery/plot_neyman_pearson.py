"""
Neyman–Pearson classification
=============================

"Miss at most 5 % of the shirts, and call as few other clothes shirts as possible." The classical answer is a threshold on a
finished classifier, chosen in a second step. Training under the constraint puts the decision there at once.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits

from experiments.data.images import Source
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
BOUND = 0.05
images = Source("fashion_mnist").load()


def pixels(x):
    """Images of 14 × 14 pixels, roughly standardized, as vectors."""
    return (avg_pool2d(x.float().unsqueeze(1) / 255, 2).flatten(1) - 0.2) / 0.3


x, shirt = pixels(images.train), (images.train_labels == 6).float()
x_test, shirt_test = pixels(images.test), (images.test_labels == 6).float()

# %%
# A rate as a function of sums
# ----------------------------
# Batches of 100 contain about ten shirts, too few for a rate. ``from_statistics`` sums missed shirts and shirts over batches and
# computes the rate from the sums.


def sums(score, shirt):
    """Missed shirts, shirts."""
    return torch.stack([((1 - score) * shirt).sum(), shirt.sum()])


def train(constrained, epochs):
    """Train a small classifier of shirts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(196, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - BOUND)
    base = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    optimizer = (
        PowerALMOptimizer(base, constraints, total_steps=50 * epochs) if constrained else base
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50 * epochs)
    rates = []
    for _ in range(epochs):
        for rows in torch.randperm(5000).split(100):
            optimizer.zero_grad()
            logits = model(x[rows])
            loss = binary_cross_entropy_with_logits(logits, shirt[rows])
            if constrained:
                loss = optimizer.augment(
                    loss,
                    missed=sums(torch.sigmoid(4 * logits), shirt[rows]),
                    strict={"missed": sums((logits.detach() > 0).float(), shirt[rows])},
                )
            loss.backward()
            optimizer.step()
            scheduler.step()
        rates.append(errors(model, x, shirt))
    return model, optimizer, rates


@torch.no_grad()
def errors(model, x, shirt):
    """Shares of missed shirts and of false alarms."""
    decided = (model(x) > 0).float()
    missed = ((1 - decided) * shirt).sum() / shirt.sum()
    return float(missed), float((decided * (1 - shirt)).sum() / (1 - shirt).sum())


epochs = 8 if FAST else 20
plain, _, plain_rates = train(False, epochs)
model, optimizer, rates = train(True, epochs)
print(optimizer.report(tolerance=0.01))

# %%
# The operating points
# --------------------
# On test data more than 5 % are missed, as 500 shirts do not fix such a rate. A margin from held-out data closes that gap, and a
# certificate says when it is closed: :doc:`/certificates`. The lines show what thresholds on the two finished networks would give:
# with so few images, a threshold on the unconstrained network is as good or better.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for curve, name, color in ((plain_rates, "unconstrained", "0.5"), (rates, "constrained", "C0")):
    left.plot(range(1, epochs + 1), [100 * missed for missed, _ in curve], color=color, label=name)
left.axhline(100 * BOUND, color="C3", linestyle="--", linewidth=1)
left.set(xlabel="epoch", ylabel="shirts missed in training, %", ylim=(0, None))
left.legend(frameon=False)
for net, name, color in ((plain, "unconstrained", "0.5"), (model, "constrained", "C0")):
    with torch.no_grad():
        score = net(x_test)
    thresholds = score.sort().values
    missed = [(score[shirt_test == 1] <= t).float().mean() for t in thresholds]
    alarms = [(score[shirt_test == 0] > t).float().mean() for t in thresholds]
    right.plot([100 * m for m in missed], [100 * a for a in alarms], color=color, label=name)
    point = errors(net, x_test, shirt_test)
    right.scatter(100 * point[0], 100 * point[1], color=color, s=60, zorder=3)
right.axvline(100 * BOUND, color="C3", linestyle="--", linewidth=1)
right.set(xlabel="shirts missed on test data, %", ylabel="false alarms on test data, %")
right.set(xlim=(0, 60), ylim=(0, 60), title="dot: the decision at 0; line: all thresholds")
right.legend(frameon=False)
plt.show()

# %%
# Feasible at the end, on hard decisions over all training images:

missed, alarms = errors(model, x, shirt)
print(f"missed {100 * missed:.1f} %, bound {100 * BOUND:g} %, false alarms {100 * alarms:.1f} %")
assert missed <= BOUND + 0.01
