"""
A portfolio and its certificate
===============================

The portfolio of least variance for a wanted return: weights that sum to one, none below zero, none above 20 %, and a rule of
the house: at least eight effective positions, Σ wᵢ² ≤ 1/8. Every point of the frontier comes with a status and four
residuals that are recomputed from scratch.
"""

import os

import matplotlib.pyplot as plt
import torch

from torch_powalm import Problem, Status, power_alm, prox

FAST = "POWALM_GALLERY_FAST" in os.environ
N = 30
generator = torch.Generator().manual_seed(3)

# %%
# Thirty assets with three common factors
# ---------------------------------------

loadings = torch.randn(N, 3, generator=generator, dtype=torch.float64) * 0.08
own = 0.05 + 0.15 * torch.rand(N, generator=generator, dtype=torch.float64)
covariance = loadings @ loadings.T + torch.diag(own**2)
risk = covariance.diagonal().sqrt()
returns = 0.02 + 0.35 * risk + 0.02 * torch.randn(N, generator=generator, dtype=torch.float64)


def frontier_point(wanted, start, y):
    """The portfolio of least variance with at least the wanted return."""
    problem = Problem(
        f=lambda w: 100 * w @ (covariance @ w),
        equality=lambda w: (w.sum() - 1).reshape(1),
        inequality=lambda w: torch.stack([wanted - returns @ w, w.square().sum() - 1 / 8]),
        g=prox.Box(0.0, 0.2),
    )
    solution = power_alm(problem, start, y_1=y, eps_phi=1e-6, eps_A=1e-7)
    return solution, problem.residuals(solution.x, solution.y)


# %%
# The frontier
# ------------
# Each point starts from the one before it.

best = returns.sort(descending=True).values[:8].mean().item()
wanted = torch.linspace(returns.min().item() + 0.03, 0.99 * best, 6 if FAST else 20).tolist()
start, y = torch.full((N,), 1 / N, dtype=torch.float64), None
solutions, residuals = [], []
for r in wanted:
    solution, residual = frontier_point(r, start, y)
    start, y = solution.x, solution.y
    solutions.append(solution)
    residuals.append(residual)
print(solutions[-1])

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
left.scatter(100 * risk, 100 * returns, color="0.6", s=18, label="single assets")
deviation = [float(s.x @ (covariance @ s.x)) ** 0.5 for s in solutions]
earned = [float(returns @ s.x) for s in solutions]
left.plot([100 * d for d in deviation], [100 * e for e in earned], "o-", color="C0", ms=4)
left.set(xlabel="standard deviation, %", ylabel="expected return, %", title="efficient frontier")
left.legend(frameon=False)
weights = torch.stack([s.x for s in solutions]).T
held = weights[weights.max(1).values > 1e-3]
right.stackplot([100 * r for r in wanted], held, colors=plt.colormaps["tab20"].colors)
right.set(xlabel="wanted return, %", ylabel="weights", ylim=(0, 1), title="positions")
right.margins(x=0)
plt.show()

# %%
# Every point converged, and its residuals are within the tolerances. The price of the return is its multiplier.

worst = max(residual.primal for residual in residuals)
print(f"largest violation over {len(wanted)} portfolios: {worst:.1e}")
print(f"variance per unit of return, last point: {float(solutions[-1].y[1]) / 100:.3f}")
assert all(solution.status is Status.CONVERGED for solution in solutions)
assert worst <= 1e-7
