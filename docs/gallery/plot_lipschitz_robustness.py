"""
A classifier with a Lipschitz bound, and its robustness
=======================================================

If a network's logits move by at most L ‖δ‖ when the image moves by δ, then a prediction whose two largest logits are m
apart cannot change within a radius of m / (√2 L). A bound on L is a constraint, and the radius is a proof.

The bound is the product of the spectral norms of the layers (ReLU is 1-Lipschitz), on a sample of Fashion-MNIST.
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
images = Source("fashion_mnist").load()


def pixels(x):
    """Images of 14 × 14 pixels in [0, 1], as vectors."""
    return avg_pool2d(x.float().unsqueeze(1) / 255, 2).flatten(1)


x, target = pixels(images.train), images.train_labels
x_test, target_test = pixels(images.test), images.test_labels

# %%
# One inequality of the parameters
# --------------------------------
# The logarithm turns the product into a sum; the violation is then relative.


def lipschitz(model):
    """The product of the spectral norms."""
    layers = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    return torch.stack([torch.linalg.matrix_norm(W, 2) for W in layers]).prod()


def train(bound, epochs):
    """Train a classifier with Lipschitz constant at most the bound."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    constraints = ConstraintRegistry()
    constraints.inequality("lipschitz", lambda: (lipschitz(model).log() - math.log(bound))[None])
    base = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=50 * epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50 * epochs)
    for _ in range(epochs):
        for rows in torch.randperm(5000).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), target[rows]).backward()
            optimizer.step()
            scheduler.step()
    return model, optimizer


epochs = 3 if FAST else 10
bounds = (1e6, 5.0) if FAST else (1e6, 20.0, 5.0)
runs = {bound: train(bound, epochs) for bound in bounds}
print(runs[5.0][1].report(tolerance=0.02))

# %%
# Certified accuracy
# ------------------
# The share of test images that are classified correctly and cannot be changed by any perturbation of that length.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
radii = torch.linspace(0, 0.6, 200)
for bound, (model, optimizer) in runs.items():
    with torch.no_grad():
        logits, L = model(x_test), lipschitz(model).item()
    best, second = logits.topk(2).values.T
    correct = logits.argmax(1) == target_test
    radius = torch.where(correct, (best - second) / (math.sqrt(2) * L), -1.0)
    name = f"no bound (L = {L:.0f})" if bound == 1e6 else f"L ≤ {bound:g}"
    left.plot(radii, [100 * (radius >= r).float().mean() for r in radii], label=name)
    if bound < 1e6:
        rows = optimizer.history.to_dicts()
        violation = [math.expm1(row["violation/lipschitz"]) for row in rows]
        right.plot([r["step"] for r in rows], [100 * v for v in violation], label=name)
left.set(xlabel="radius of the perturbation (L2)", ylabel="certified accuracy on test data, %")
left.legend(frameon=False)
right.set(xlabel="step", ylabel="L above its bound, %", yscale="symlog")
right.axhline(0, color="0.7", linewidth=0.8)
right.legend(frameon=False)
plt.show()

# %%
# Feasible at the end, up to 2 %:

L = lipschitz(runs[5.0][0]).item()
print(f"Lipschitz bound {L:.3f}, asked for 5")
assert L <= 5 * 1.02
