"""Which dual step the paper's experiments used, from the curves of its Figure 4.

The GEVP has one multiplier. Where a subproblem is solved, y + β∇φ(A(x)) is the multiplier −f* of
the solution, and A(x) < 0 on the way there, so that the violation at the end of the k-th outer
iteration gives the multiplier of that iteration:

    y_k = −f* + β_k ‖A_k‖^ν,     β_k = 0.01 · 3^(k−1)

A rule for σ_k predicts the same multipliers from the violations alone, y_{k+1} = y_k ± σ_k‖A_k‖^ν
with y_1 = 0. −f* is the suboptimality where x is closest to 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from experiments import paper_numbers as paper
from torch_powalm import DualState

BETA_1, OMEGA, SIGMA_1 = 0.01, 3.0, 10.0
NEAR = 0.9  # violations of iterations that have left the neighborhood of x = 0
RULES = {"σ_1/√(k+1)": "sqrt", "Algorithm 1, line 3": "paper"}
# The curves show ‖A‖ without its sign. A > 0 where ‖A‖ > 1, and A < 0 at the end of a run. Of the
# few iterations before, that of ν = 0.6, k = 2 is taken as positive: with it, all later ones agree.
POSITIVE = {(0.6, 2)}


class Reading(NamedTuple):
    """One outer iteration of the paper's run.

    Args:
        nu: power.
        k: index of the iteration.
        y: multiplier read off the curve.
        sigma: dual step between this multiplier and the next; None for the last iteration.
        predicted: the multiplier by rule.
        steps: σ_k by rule.
    """

    nu: float
    k: int
    y: float
    sigma: float | None
    predicted: dict[str, float]
    steps: dict[str, float]


def readings(nu: float) -> list[Reading]:
    """The iterations of a run of Figure 4 at which a multiplier can be read off."""
    violations = [value for _, value in paper.curves("gevp", "violation")[nu]]
    gaps = [value for _, value in paper.curves("gevp", "suboptimality")[nu]]
    minus_f = gaps[min(range(len(gaps)), key=lambda i: abs(violations[i] - 1))]
    start, ends = violations[0], violations[1:]
    y = [minus_f + BETA_1 * OMEGA**k * A**nu for k, A in enumerate(ends)]
    sequences = {name: _sequence(rule, nu, start, ends) for name, rule in RULES.items()}
    found = []
    for k, A in enumerate(ends, start=1):
        if A < NEAR and all(later < A for later in ends[k:]):
            step = (y[k - 1] - y[k]) / A**nu if k < len(ends) else None
            predicted = {name: values[k - 1][0] for name, values in sequences.items()}
            steps = {name: values[k - 1][1] for name, values in sequences.items()}
            found.append(Reading(nu, k, y[k - 1], step, predicted, steps))
    return found


def _sequence(
    rule: str, nu: float, start: float, violations: list[float]
) -> list[tuple[float, float]]:
    """Multiplier and dual step of every iteration under a rule, by the library's own update."""
    dual = DualState(
        **{"nu": nu, "beta_1": BETA_1, "omega": OMEGA, "sigma": rule, "sigma_1": SIGMA_1},
        **{"beta_max": float("inf"), "y_max": float("inf"), "sufficient_decrease": None},
    )
    dual.start(torch.tensor([start], dtype=torch.float64))
    found = []
    for k, A in enumerate(violations, start=1):
        y = dual.y.item()
        sign = 1.0 if A > 1 or (nu, k) in POSITIVE else -1.0
        record = dual.update(torch.tensor([sign * A], dtype=torch.float64))
        found.append((y, record.sigma))
    return found


def table() -> list[dict[str, str]]:
    """One row an iteration: the multiplier and the step read off, and those of both rules."""
    rows = []
    for nu in sorted(paper.curves("gevp", "violation"), reverse=True):
        for reading in readings(nu):
            sigma = "–" if reading.sigma is None else f"{reading.sigma:.4f}"
            row = {"ν": f"{nu:g}", "k": str(reading.k), "y_k read off": f"{reading.y:.3f}"}
            row |= {f"y_k, {name}": f"{y:.3f}" for name, y in reading.predicted.items()}
            row["σ_k read off"] = sigma
            row |= {f"σ_k, {name}": f"{step:.4f}" for name, step in reading.steps.items()}
            rows.append(row)
    return rows


def figure(color: Callable[[float], str]) -> Figure:
    """Multipliers and dual steps read off the curves, and those of both rules."""
    figure, (multipliers, steps) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    styles = dict(zip(RULES, ("-", "--"), strict=True))
    for nu in sorted(paper.curves("gevp", "violation")):
        found = readings(nu)
        k, shade = [reading.k for reading in found], color(nu)
        multipliers.semilogy(
            k, [reading.y for reading in found], "o", color=shade, markerfacecolor="none"
        )
        drawn = [(reading.k, reading.sigma) for reading in found if reading.sigma is not None]
        steps.plot(*zip(*drawn, strict=True), "o", color=shade, markerfacecolor="none")
        for name, style in styles.items():
            values = [reading.predicted[name] for reading in found]
            positive = [(i, y) for i, y in zip(k, values, strict=True) if y > 0]
            if positive:
                multipliers.semilogy(*zip(*positive, strict=True), style, color=shade)
            steps.plot(k, [reading.steps[name] for reading in found], style, color=shade)
        steps.plot([], [], color=shade, label=f"ν = {nu:g}")
    for name, style in styles.items():
        steps.plot([], [], style, color="0.3", label=name)
    steps.plot([], [], "o", color="0.3", markerfacecolor="none", label="read off the paper's curve")
    for axis, label in ((multipliers, "multiplier y_k"), (steps, "dual step σ_k")):
        axis.set_xlabel("outer iteration k")
        axis.set_ylabel(label)
    steps.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
