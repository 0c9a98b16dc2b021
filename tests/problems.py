"""Small problems with solutions derived by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_powalm import DualState, prox
from torch_powalm.result import Status
from torch_powalm.solving.problem import Problem


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def dual_state(**settings: Any) -> DualState:
    """A dual state, classical and with constant β = 1 where nothing else is asked for."""
    neutral = {
        "nu": 1.0,
        "beta_1": 1.0,
        "omega": 1.0,
        "sigma": "penalty",
        "sigma_1": 1.0,
        "beta_max": math.inf,
        "y_max": math.inf,
        "sufficient_decrease": None,
    }
    return DualState(**{**neutral, **settings})


class Constants(NamedTuple):
    """Bounds mu and L on the curvature of a quadratic f, and J_sq = ‖J‖² for affine constraints.

    The curvature of ψ with ν = 1 is then between mu and L + β J_sq.
    """

    mu: float
    L: float
    J_sq: float


@dataclass(frozen=True)
class Known:
    """A problem, where to start, and what must come out.

    y is None where the multiplier is not unique, constants where f is not quadratic or a
    constraint is not affine.
    """

    problem: Problem
    x_1: Tensor
    x: Tensor | None
    y: Tensor | None = None
    status: Status = Status.CONVERGED
    constants: Constants | None = None


def _constants(M: Tensor) -> Constants:
    """Those of ½‖x − c‖² and Mx − b."""
    return Constants(1, 1, torch.linalg.matrix_norm(M, 2).item() ** 2)


def projection(x_1: Tensor) -> Known:
    # x + y a = 0 and aᵀx = 5 with a = (1, 2): x = 5a/‖a‖² = (1, 2), y = −5/‖a‖² = −1.
    a = vector(1, 2)
    problem = Problem(lambda x: 0.5 * (x @ x), equality=lambda x: (a @ x - 5).reshape(1))
    return Known(problem, x_1, vector(1, 2), vector(-1), constants=Constants(1, 1, 5))


def several_equations() -> Known:
    # x − c + Mᵀy = 0 and Mx = b: MMᵀy = Mc − b.
    M = torch.tensor([[1.0, 1, 0, 0], [0, 1, -1, 2]], dtype=torch.float64)
    c, b = vector(1, -1, 2, 0.5), vector(1, 3)
    y = torch.linalg.solve(M @ M.T, M @ c - b)
    problem = Problem(lambda x: 0.5 * ((x - c) ** 2).sum(), equality=lambda x: M @ x - b)
    return Known(
        problem, torch.zeros(4, dtype=torch.float64), c - M.T @ y, y, constants=_constants(M)
    )


def more_equations_than_unknowns() -> Known:
    # Three consistent equations for two unknowns leave x = (1, 2); y is not unique.
    M = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)
    b = vector(1, 2, 3)
    problem = Problem(lambda x: 0.5 * (x @ x), equality=lambda x: M @ x - b)
    return Known(problem, vector(-1, 0.5), vector(1, 2), constants=_constants(M))


def circle(x_1: Tensor) -> Known:
    # 1 + 2y x_i = 0 and x_1² + x_2² = 2: x = (−1, −1), y = ½.
    problem = Problem(lambda x: x.sum(), equality=lambda x: (x @ x - 2).reshape(1))
    return Known(problem, x_1, vector(-1, -1), vector(0.5))


def parabola() -> Known:
    # Hock and Schittkowski 6: the free minimizer x_1 = 1 is feasible with x_2 = 1, so y = 0.
    problem = Problem(lambda x: (1 - x[0]) ** 2, equality=lambda x: 10 * (x[1:] - x[:1] ** 2))
    return Known(problem, vector(-1.2, 1), vector(1, 1), vector(0))


def active_inequality() -> Known:
    # Projection of (2, 1) onto x_1 + x_2 ≤ 2: (1.5, 0.5); 2(x_1 − 2) + y = 0 gives y = 1.
    c = vector(2, 1)
    problem = Problem(lambda x: ((x - c) ** 2).sum(), inequality=lambda x: (x.sum() - 2).reshape(1))
    return Known(problem, vector(0, 0), vector(1.5, 0.5), vector(1), constants=Constants(2, 2, 2))


def inactive_inequality() -> Known:
    # The free minimizer (½, ½) has x_1 + x_2 = 1 < 2, so y = 0.
    problem = Problem(
        lambda x: ((x - 0.5) ** 2).sum(), inequality=lambda x: (x.sum() - 2).reshape(1)
    )
    return Known(problem, vector(3, 4), vector(0.5, 0.5), vector(0), constants=Constants(2, 2, 2))


def both_kinds() -> Known:
    # Hock and Schittkowski 14. Both constraints hold with equality:
    # x_1 = 2x_2 − 1 in x_1²/4 + x_2² = 1 gives 8x_2² − 4x_2 − 3 = 0, x_2 = (1 + √7)/4.
    # The rows of 2(x_1 − 2) + y_1 + y_2 x_1/2 = 0, 2(x_2 − 1) − 2y_1 + 2y_2 x_2 = 0 give y.
    x = vector((math.sqrt(7) - 1) / 2, (math.sqrt(7) + 1) / 4)
    c = vector(2, 1)
    J = torch.stack((vector(1, -2), vector(x[0].item() / 2, 2 * x[1].item())), dim=1)
    y = torch.linalg.solve(J, -2 * (x - c))
    problem = Problem(
        lambda x: ((x - c) ** 2).sum(),
        equality=lambda x: (x[0] - 2 * x[1] + 1).reshape(1),
        inequality=lambda x: (x[0] ** 2 / 4 + x[1] ** 2 - 1).reshape(1),
    )
    return Known(problem, vector(2, 2), x, y)


def simplex_in_a_box() -> Known:
    # Projection of c = (0.8, 0.6, −1) onto the simplex: x_i = max(c_i − y, 0) with sum 1, y = 0.2.
    c = vector(0.8, 0.6, -1)
    problem = Problem(
        lambda x: 0.5 * ((x - c) ** 2).sum(),
        equality=lambda x: (x.sum() - 1).reshape(1),
        g=prox.Box(0.0, 1.0),
    )
    return Known(
        problem,
        vector(0.3, 0.3, 0.3),
        vector(0.6, 0.4, 0),
        vector(0.2),
        constants=Constants(1, 1, 3),
    )


def sparse() -> Known:
    # ½‖x − c‖² + ‖x‖_1 with x_1 = x_2 = t: (t − 3) + (t − 1) + 2 = 0, t = 1; t − 3 + 1 + y = 0
    # gives y = 1; x_3 = 0 since |c_3| ≤ 1.
    c = vector(3, 1, 0.5)
    problem = Problem(
        lambda x: 0.5 * ((x - c) ** 2).sum(),
        equality=lambda x: (x[0] - x[1]).reshape(1),
        g=prox.L1(1.0),
    )
    return Known(problem, vector(0, 2, 1), vector(1, 1, 0), vector(1), constants=Constants(1, 1, 2))


def linear_on_a_ball() -> Known:
    # cᵀx with c = (1, 1, 0) over x_1 = 0, ‖x‖ ≤ 1: x = (0, −1, 0); the first row is 1 + y = 0.
    problem = Problem(lambda x: x[0] + x[1], equality=lambda x: x[:1], g=prox.Ball(1.0))
    return Known(
        problem, vector(0.5, 0.5, 0.5), vector(0, -1, 0), vector(-1), constants=Constants(0, 0, 1)
    )


def without_a_slope_at_the_start() -> Known:
    # ½x_1² + x_2² on the circle: x = (±1, 0), x_1 + 2y x_1 = 0, y = −½. Every gradient is 0 at 0.
    problem = Problem(
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2, equality=lambda x: (x @ x - 1).reshape(1)
    )
    return Known(problem, vector(0, 0), None, vector(-0.5))


def badly_scaled_objective() -> Known:
    # 10⁶x_1 + y = 0, x_2 + y = 0, x_1 + x_2 = 1: x_2 = 10⁶ x_1 = 10⁶/(10⁶ + 1) = −y.
    t = 1e6 / (1e6 + 1)
    problem = Problem(
        lambda x: 0.5 * (1e6 * x[0] ** 2 + x[1] ** 2),
        equality=lambda x: (x.sum() - 1).reshape(1),
    )
    return Known(
        problem, vector(1, 1), vector(t / 1e6, t), vector(-t), constants=Constants(1, 1e6, 2)
    )


def badly_scaled_constraint() -> Known:
    # The projection above with 10⁶(aᵀx − 5): the multiplier falls by this factor.
    a = vector(1e6, 2e6)
    problem = Problem(lambda x: 0.5 * (x @ x), equality=lambda x: (a @ x - 5e6).reshape(1))
    return Known(
        problem, vector(0, 0), vector(1, 2), vector(-1e-6), constants=Constants(1, 1, 5e12)
    )


def contradiction() -> Known:
    # x = 0 and x = 1: ‖(x, x − 1)‖ is smallest at x = ½.
    problem = Problem(lambda x: (x**2).sum(), equality=lambda x: torch.cat((x, x - 1)))
    return Known(problem, vector(3), vector(0.5), status=Status.INFEASIBLE)


def no_real_root() -> Known:
    # x² + 1 is smallest at x = 0.
    problem = Problem(lambda x: ((x - 2) ** 2).sum(), equality=lambda x: x**2 + 1)
    return Known(problem, vector(3), vector(0), status=Status.INFEASIBLE)


def out_of_the_box() -> Known:
    # x_1 + x_2 = 5 within [0, 1]²: the sum is largest at (1, 1).
    problem = Problem(
        lambda x: (x**2).sum(), equality=lambda x: (x.sum() - 5).reshape(1), g=prox.Box(0.0, 1.0)
    )
    return Known(problem, vector(0.2, 0.3), vector(1, 1), status=Status.INFEASIBLE)


def unbounded_beside_an_equality() -> Known:
    problem = Problem(lambda x: -x[0], equality=lambda x: x[1:] - 1)
    return Known(problem, vector(3, 0), None, status=Status.UNBOUNDED)


def unbounded_below_an_inequality() -> Known:
    problem = Problem(lambda x: x.sum(), inequality=lambda x: x)
    return Known(problem, vector(3), None, status=Status.UNBOUNDED)


PROBLEMS = {
    "affine equality": projection(vector(3, -1)),
    "feasible start": projection(vector(5, 0)),
    "start at the solution": projection(vector(1, 2)),
    "several equations": several_equations(),
    "more equations than unknowns": more_equations_than_unknowns(),
    "circle": circle(vector(-2, 0.5)),
    "circle, start at the solution": circle(vector(-1, -1)),
    "parabola": parabola(),
    "active inequality": active_inequality(),
    "inactive inequality": inactive_inequality(),
    "equality and inequality": both_kinds(),
    "simplex in a box": simplex_in_a_box(),
    "sparse": sparse(),
    "linear on a ball": linear_on_a_ball(),
    "no slope at the start": without_a_slope_at_the_start(),
    "badly scaled objective": badly_scaled_objective(),
    "badly scaled constraint": badly_scaled_constraint(),
}
HOPELESS = {
    "contradiction": contradiction(),
    "no real root": no_real_root(),
    "out of the box": out_of_the_box(),
    "unbounded beside an equality": unbounded_beside_an_equality(),
    "unbounded below an inequality": unbounded_below_an_inequality(),
}
KNOWN = PROBLEMS["several equations"]


class Quadratic:
    """½‖x − c‖² by hand, counting."""

    def __init__(self, c: Tensor) -> None:
        self.c, self.calls = c, 0

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return 0.5 * ((x - self.c) ** 2).sum(), x - self.c


class Affine:
    """Mx − b by hand."""

    def __init__(self, M: Tensor, b: Tensor) -> None:
        self.M, self.b = M, b

    def values(self, x: Tensor) -> Tensor:
        return self.M @ x - self.b

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        return self.M.T @ w


def random_data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(*s, dtype=torch.float64, generator=generator) for s in ((6,), (2, 6), (2,))
    )
