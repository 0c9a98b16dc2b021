"""
An orthogonal recurrent network
===============================

A recurrent network multiplies its state by the same matrix at every step. An orthogonal matrix keeps the length of every vector,
however often it is applied; others stretch some directions and lose the rest. WWᵀ = I is 300 equalities of the parameters; the
training loop does not change.

The network reads MNIST digits row by row, on a sample in the repository.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

from experiments.data.images import Source
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
images = Source("mnist").load()


def rows_of(x):
    """Images of 14 rows with 14 pixels, roughly standardized."""
    return (avg_pool2d(x.float().unsqueeze(1) / 255, 2).squeeze(1) - 0.2) / 0.3


x, target = rows_of(images.train), images.train_labels
x_test, target_test = rows_of(images.test), images.test_labels


class RowReader(nn.Module):
    """Reads an image row by row."""

    def __init__(self):
        super().__init__()
        self.read, self.recur = nn.Linear(14, 24), nn.Linear(24, 24, bias=False)
        self.classify = nn.Linear(24, 10)

    def forward(self, images):
        inputs = self.read(images)
        state = torch.zeros(len(images), 24)
        for row in range(14):
            state = torch.tanh(inputs[:, row] + self.recur(state))
        return self.classify(state)


# %%
# 300 equalities
# --------------

upper = torch.triu_indices(24, 24)


def gram(model):
    """The upper triangle of WWᵀ − I."""
    W = model.recur.weight
    return (W @ W.T - torch.eye(24))[upper[0], upper[1]]


def train(constrained, epochs):
    """Train with the constraint or without it."""
    torch.manual_seed(0)
    model = RowReader()
    constraints = ConstraintRegistry()
    constraints.equality("orthogonal", lambda: gram(model))
    base = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = base
    if constrained:
        optimizer = PowerALMOptimizer(base, constraints, total_steps=50 * epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50 * epochs)
    for _ in range(epochs):
        for rows in torch.randperm(5000).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), target[rows]).backward()
            optimizer.step()
            scheduler.step()
    return model, optimizer


epochs = 5 if FAST else 12
plain, _ = train(False, epochs)
orthogonal, optimizer = train(True, epochs)
print(optimizer.report(tolerance=0.02))

# %%
# Eigenvalues and singular values of the recurrent matrix
# -------------------------------------------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
circle = torch.linspace(0, 2 * torch.pi, 200)
left.plot(circle.cos(), circle.sin(), color="0.7", linewidth=1)
for model, name, color in ((plain, "unconstrained", "0.45"), (orthogonal, "orthogonal", "C0")):
    values = torch.linalg.eigvals(model.recur.weight.detach())
    left.scatter(values.real, values.imag, color=color, label=name, s=28)
    stretch = torch.linalg.svdvals(model.recur.weight.detach())
    right.plot(range(1, 25), stretch, "o-", color=color, label=name)
left.set(aspect="equal", xlabel="real part", ylabel="imaginary part", title="eigenvalues of W")
left.legend(frameon=False, loc="upper right")
right.set(xlabel="direction", ylabel="factor", title="singular values: how W stretches the state")
right.grid(alpha=0.3)
right.legend(frameon=False)
plt.show()

# %%
# Feasible at the end: no entry of WWᵀ − I is above 0.02.

with torch.no_grad():
    worst = float(gram(orthogonal).abs().max())
    for name, model in (("unconstrained", plain), ("orthogonal", orthogonal)):
        accuracy = (model(x_test).argmax(1) == target_test).float().mean()
        print(f"{name}: test accuracy {100 * accuracy:.1f} %")
print(f"largest entry of WWᵀ − I: {worst:.4f}")
assert worst <= 0.02
