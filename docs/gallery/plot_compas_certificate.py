"""
False negatives on COMPAS, with a certificate
=============================================

"In each group, at most 25 % of those who reoffend are missed." Training can enforce such a rule on the training data.
Whether it holds for people to come is a question for data that the training has not seen: ``certify`` answers it with exact
confidence bounds, for both groups at once.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from experiments.data.tabular import TableSource
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, Rates, certify

FAST = "POWALM_GALLERY_FAST" in os.environ
ASKED = 0.25
table = TableSource("compas").load()
data = TensorDataset(table.train, table.train_labels, table.train_groups)
train, held_out = torch.utils.data.random_split(
    data, [2400, 1600], torch.Generator().manual_seed(0)
)


def sums(decisions, labels, groups):
    """Missed cases in both groups, then the numbers of positives in both groups."""
    positives = torch.stack([labels * groups, labels * (1 - groups)])
    return torch.cat([positives @ (1 - decisions), positives.sum(1)])


# %%
# Training with a margin
# ----------------------
# If the training data met the bound exactly, about half of all new samples would not. So the training aims at a rate that is
# lower by a margin, and the certificate is about the rate that was asked for.


def fit(margin, epochs):
    """Train toward a false-negative rate of ASKED − margin in both groups."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(len(table.features), 32), nn.ReLU(), nn.Linear(32, 1))
    constraints = ConstraintRegistry()
    constraints.inequality(
        "missed", size=2, from_statistics=lambda s: s[:2] / s[2:] - (ASKED - margin)
    )
    base = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(train, batch_size=80, shuffle=True)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=epochs * len(loader))
    for _ in range(epochs):
        for x, labels, groups in loader:
            optimizer.zero_grad()
            logits = model(x).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, labels)
            loss = optimizer.augment(
                loss,
                missed=sums(torch.sigmoid(8 * logits), labels, groups),
                strict={"missed": sums((logits.detach() > 0).float(), labels, groups)},
            )
            loss.backward()
            optimizer.step()
    return model.eval(), optimizer


def certificate_of(model):
    """What 1,600 held-out people show about the rate that was asked for."""

    def measure(batch):
        x, labels, groups = batch
        decisions = (model(x).squeeze(1) > 0).float()
        return {"missed": sums(decisions, labels, groups)}

    asked = ConstraintRegistry()
    asked.inequality("missed", size=2, from_statistics=lambda s: s[:2] / s[2:] - ASKED)
    loader = DataLoader(held_out, batch_size=400)
    seen = [DataLoader(train, batch_size=400)]
    return certify(asked, measure, loader, confidence=0.95, kinds={"missed": Rates()}, seen=seen)


epochs = 10 if FAST else 30
results = {}
for margin in (0.0, 0.08):
    model, optimizer = fit(margin, epochs)
    results[margin] = model, optimizer, certificate_of(model)
    print(f"margin {margin}")
    print(optimizer.report(tolerance=0.02))
    print(results[margin][2], "\n")

# %%
# Estimates and upper bounds
# --------------------------
# Without a margin, the model is feasible in training and yet nothing can be promised. With it, the bounds of both groups
# lie below the line, with a confidence of 95 % for both together.

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
labels = []
for row, (margin, (_, _, certificate)) in enumerate(results.items()):
    for group, entry in enumerate(sorted(certificate, key=lambda entry: entry.entry)):
        y = 2.5 * row + group
        color = "C0" if entry.verdict == "holds" else "C3"
        ax.plot(
            [entry.estimate, entry.upper], [y, y], color=color, linewidth=4, solid_capstyle="butt"
        )
        ax.scatter(entry.estimate, y, color=color, s=50, zorder=3)
        ax.annotate(
            entry.verdict, (entry.upper, y), (8, -4), textcoords="offset points", color=color
        )
        name = ("African-American", "others")[group]
        labels.append((y, f"{name}, margin {margin:g}"))
ax.axvline(ASKED, color="0.3", linestyle="--")
ax.set_yticks(*zip(*labels, strict=True))
ax.set_xlabel("false-negative rate: estimate and upper confidence bound")
ax.set_xlim(0, 0.4)
ax.margins(y=0.2)
ax.invert_yaxis()
plt.show()

# %%
# Feasible in training, and certified on held-out data; the test data, which nobody has looked at, agree.

model, optimizer, certificate = results[0.08]
with torch.no_grad():
    decisions = (model(table.test).squeeze(1) > 0).float()
s = sums(decisions, table.test_labels, table.test_groups)
print("false-negative rates on test data:", (s[:2] / s[2:]).tolist())
assert optimizer.report(tolerance=0.02).feasible
assert certificate.holds
