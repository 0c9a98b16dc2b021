"""
Heat equation: boundary values that hold
========================================

A physics-informed network usually adds the boundary and initial conditions to the loss, with weights that someone has to
choose. Here they are constraints: the residual of the equation is the loss, the conditions are equalities, and nothing
has to be weighed against anything.

    u_t = 0.1 u_xx on (0, 1) × (0, 1),   u(x, 0) = sin πx + ½ sin 2πx,   u(0, t) = u(1, t) = 0
"""

import math
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
PI = math.pi


def exact(xt):
    """The solution."""
    x, t = xt.split(1, 1)
    return sum(
        a * torch.sin(k * PI * x) * torch.exp(-0.1 * (k * PI) ** 2 * t)
        for k, a in ((1, 1.0), (2, 0.5))
    )


torch.manual_seed(0)
u = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))


def residual(xt):
    """u_t − 0.1 u_xx."""
    xt = xt.requires_grad_()
    (first,) = torch.autograd.grad(u(xt).sum(), xt, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), xt, create_graph=True)
    return first[:, 1] - 0.1 * second[:, 0]


# %%
# Two blocks of equalities
# ------------------------
# They are functions of the parameters alone, so the training loop stays as it is: no ``augment`` line. The conditions are
# in different units on purpose. Every block gets its own measured scale, so this changes nothing.

line = torch.linspace(0, 1, 31)[:, None]
start = torch.cat([line, torch.zeros_like(line)], 1)
walls = torch.cat([torch.cat([torch.full_like(line, x), line], 1) for x in (0.0, 1.0)])

constraints = ConstraintRegistry()
constraints.equality("initial", lambda: (u(start) - exact(start)).squeeze(1))
constraints.equality("boundary_mm", lambda: 1000 * u(walls).squeeze(1))

steps = 400 if FAST else 2000
base = torch.optim.Adam(u.parameters(), lr=1e-2)
optimizer = PowerALMOptimizer(base, constraints, total_steps=steps)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for _ in range(steps):
    optimizer.zero_grad()
    loss = residual(torch.rand(128, 2)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.history.log_loss(loss)
print(optimizer.report(tolerance={"initial": 0.02, "boundary_mm": 20.0}))

# %%
# The solution, its error, and the violations on the way
# ------------------------------------------------------

axis = torch.linspace(0, 1, 81)
grid = torch.cartesian_prod(axis, axis)
with torch.no_grad():
    value, truth = (f(grid).reshape(81, 81).T for f in (u, exact))
error = (value - truth).abs()
print(f"relative error {float((value - truth).norm() / truth.norm()):.4f}")

figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for ax, picture, name, colors in (
    (axes[0], value, "network u(x, t)", "RdBu_r"),
    (axes[1], error, "absolute error", "magma"),
):
    values = picture.numpy()
    image = ax.imshow(values, origin="lower", extent=(0, 1, 0, 1), aspect="auto", cmap=colors)
    ax.set(title=name, xlabel="x", ylabel="t")
    figure.colorbar(image, ax=ax)
records = optimizer.history.to_dicts()
for name, factor in (("initial", 1.0), ("boundary_mm", 1e-3)):
    violation = [factor * row[f"violation/{name}"] for row in records]
    axes[2].semilogy([row["step"] for row in records], violation, label=name)
axes[2].set(title="largest violation (u)", xlabel="step")
axes[2].legend(frameon=False)
plt.show()

# %%
# Feasible at the end: no condition is missed by more than 0.02 in units of u.

worst = {name: v.max for name, v in constraints.violations().items()}
print(worst)
bound = 0.08 if FAST else 0.02
assert worst["initial"] <= bound
assert worst["boundary_mm"] <= 1000 * bound
