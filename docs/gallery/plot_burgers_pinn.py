"""
Burgers' equation: a rarefaction wave
=====================================

u_t + u u_x = 0 for a ramp of width 0.4, which spreads while it moves. Initial and boundary values are equalities, the residual
is the loss. A second training with fixed weights of 1, as a plain physics-informed network would start, is drawn beside it.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ


def exact(xt):
    """The rarefaction: a ramp from 0 to 1 of width 0.4 + t."""
    x, t = xt.split(1, 1)
    return (x / (0.4 + t)).clamp(0, 1)


def residual(u, xt):
    """u_t + u u_x."""
    xt = xt.requires_grad_()
    value = u(xt)
    (first,) = torch.autograd.grad(value.sum(), xt, create_graph=True)
    return first[:, 1:] + value * first[:, :1]


initial = torch.stack([torch.linspace(-0.5, 1.5, 41), torch.zeros(41)], 1)
left = torch.stack([torch.full((11,), -0.5), torch.linspace(0, 1, 11)], 1)
low, high = torch.tensor([-0.5, 0.0]), torch.tensor([1.5, 1.0])

# %%
# Two trainings
# -------------


def train(constrained, steps):
    """Train with constraints, or with the conditions added to the loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)]
    u = nn.Sequential(*layers)

    def miss(points):
        return (u(points) - exact(points)).squeeze(1)

    constraints = ConstraintRegistry()
    constraints.equality("initial", lambda: miss(initial))
    constraints.equality("left", lambda: miss(left))
    base = torch.optim.Adam(u.parameters(), lr=1e-2)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=steps) if constrained else base
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = residual(u, low + (high - low) * torch.rand(100, 2)).square().mean()
        if not constrained:
            loss = loss + miss(initial).square().mean() + miss(left).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return u, optimizer, constraints


steps = 600 if FAST else 2000
plain, _, _ = train(False, steps)
u, optimizer, constraints = train(True, steps)
print(optimizer.report(tolerance=0.1))

# %%
# Profiles at four times, and the whole solution
# ----------------------------------------------

figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
x = torch.linspace(-0.5, 1.5, 161)
for ax, net, name in ((axes[0], plain, "weights of 1"), (axes[1], u, "constraints")):
    for i, t in enumerate((0.0, 0.33, 0.67, 1.0)):
        line = torch.stack([x, torch.full_like(x, t)], 1)
        with torch.no_grad():
            ax.plot(x, net(line).squeeze(1).numpy(), color=f"C{i}", label=f"t = {t:g}")
        ax.plot(x, exact(line).squeeze(1).numpy(), color="black", linewidth=0.8, linestyle=":")
    ax.set(title=f"{name} (dotted: exact)", xlabel="x", ylim=(-0.2, 1.2))
axes[0].set_ylabel("u")
axes[1].legend(frameon=False)
grid = torch.cartesian_prod(x, torch.linspace(0, 1, 81))
with torch.no_grad():
    picture = u(grid).reshape(161, 81).T
    error = float((u(grid) - exact(grid)).norm() / exact(grid).norm())
    before = float((plain(grid) - exact(grid)).norm() / exact(grid).norm())
image = axes[2].imshow(picture.numpy(), origin="lower", extent=(-0.5, 1.5, 0, 1), aspect="auto")
axes[2].set(title="constrained network", xlabel="x", ylabel="t")
figure.colorbar(image, ax=axes[2])
plt.show()

# %%
# Feasible at the end. The largest violation is at the two kinks of the initial ramp, which a smooth network rounds off.

worst = max(v.max for v in constraints.violations().values())
print(f"relative error {error:.3f} (weights of 1: {before:.3f}), largest violation {worst:.3f}")
assert worst <= 0.1
