"""The active-set method at the end of a run: solutions, refusals, cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.problems import vector
from tests.reference import box_qp
from torch_powalm import Problem, Status, power_alm, prox
from torch_powalm.result import Solution
from torch_powalm.solvers import PANOC
from torch_powalm.solving.active_set import finish
from torch_powalm.solving.kkt_certificate import Certified
from torch_powalm.solving.settings import Tolerances

F64 = torch.float64
EPS = 1e-6


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


class HiddenBox:
    """|x| ≤ 1 as a term that does not tell its bounds, so that no active-set method is tried."""

    is_indicator = True
    box = prox.Box(-1.0, 1.0)

    def value(self, x: Tensor) -> float:
        return self.box.value(x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        return self.box.prox(v, step)

    def distance(self, x: Tensor, v: Tensor) -> float:
        return self.box.distance(x, v)


def in_the_box(
    Q: Tensor, q: Tensor, C: Tensor, b: Tensor, g: prox.Proximable = HiddenBox.box
) -> Problem:
    """½xᵀQx + qᵀx with Cx = b and |x| ≤ 1."""
    return Problem(lambda x: 0.5 * (x @ (Q @ x)) + q @ x, equality=lambda x: C @ x - b, g=g)


def convex_qp(seed: int, n: int = 6, m: int = 2) -> tuple[Problem, Tensor, Tensor, Tensor, Tensor]:
    """The problem and Q, q, C, b; Q positive definite, b = C·(a point inside)."""
    M, q, C = normal(seed, n, n), 3 * normal(seed + 1, n), normal(seed + 2, m, n)
    Q = M @ M.T + 0.1 * torch.eye(n, dtype=F64)
    b = C @ (0.5 * normal(seed + 3, n)).clamp(-1, 1)
    return in_the_box(Q, q, C, b), Q, q, C, b


def by_active_set(solution: Solution) -> bool:
    return solution.records[-1].multiplier == "active set"


def near(problem: Problem, x: Tensor, y: Tensor) -> Certified:
    residuals = problem.residuals(x, y)
    return Certified(x, y, residuals, math.nan, "weight")


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_convex_qps_have_the_solution_of_all_faces(seed: int) -> None:
    problem, *parts = convex_qp(seed)
    x_1 = normal(seed + 9, 6).clamp(-1, 1)
    solution = power_alm(problem, x_1, eps_phi=1e-3, eps_A=1e-3, solver=PANOC())
    assert solution.status is Status.CONVERGED
    assert by_active_set(solution)
    # Far more exact than the tolerances: the linearization of a QP is the QP.
    torch.testing.assert_close(solution.x, box_qp(*parts), rtol=0, atol=1e-6)


@pytest.mark.parametrize("nu", [1.0, 0.7])
@pytest.mark.parametrize("seed", range(5))
def test_inequalities_and_bounds_change_sides(seed: int, nu: float) -> None:
    n, m = 12, 8
    M, q, C = normal(seed, n, n), 4 * normal(seed + 50, n), normal(seed + 100, m, n)
    Q, b = M @ M.T / n + 0.1 * torch.eye(n, dtype=F64), normal(seed + 150, m).abs()
    problem = Problem(
        lambda x: 0.5 * (x @ (Q @ x)) + q @ x,
        equality=lambda x: x[:2].sum().reshape(1) - 0.5,
        inequality=lambda x: C @ x - b,
        g=prox.Box(-1.0, 1.0),
    )
    x_1 = normal(seed + 200, n).clamp(-1, 1)
    solution = power_alm(problem, x_1, nu=nu, solver=PANOC())
    assert solution.status is Status.CONVERGED
    assert by_active_set(solution)
    x, y = solution.x, solution.y
    v = Q @ x + q + C.T @ y[1:]
    v[:2] += y[0]
    B = C @ x - b
    inside = (x > -1) & (x < 1)
    assert inside.any()
    assert not inside.all()
    assert v[inside].abs().max() <= EPS
    assert (v[x == -1] >= -EPS).all()
    assert (v[x == 1] <= EPS).all()
    assert abs(x[0] + x[1] - 0.5) <= EPS
    assert B.max() <= EPS
    assert y[1:].min() >= -EPS
    assert (y[1:] * B).abs().max() <= EPS


@pytest.mark.parametrize(
    ("Q", "found"),
    [((2.0, 1.0), True), ((-2.0, 1.0), False), ((1.0, -2.0), True)],
    ids=["minimum", "maximum along the constraint", "negative across it only"],
)
def test_a_point_without_the_curvature_of_a_minimum_is_refused(
    Q: tuple[float, float], found: bool
) -> None:
    # x_2 = 0: on it f = ½ Q_1 x_1², stationary at 0.
    weights = vector(*Q)
    problem = Problem(lambda x: 0.5 * (weights * x * x).sum(), equality=lambda x: x[1:])
    x = vector(1e-3, 1e-3)
    result = finish(problem, near(problem, x, torch.zeros(1, dtype=F64)), Tolerances(EPS, EPS), 10)
    assert (result is not None) is found
    if result is not None:
        assert result.x.abs().max() <= EPS


def test_a_way_that_ends_at_negative_curvature_goes_on_at_the_next_bound() -> None:
    # On x_3 = 0, as x_2 grows from 0 the slope of f in x_1 changes its sign at x_1 = −1. Since f is
    # concave in x_1, the next point to look at is x_1 = 1, and there x_2 = 1 is best.
    problem = Problem(
        lambda x: -0.25 * x[0] ** 2 - x[0] * x[1] + 2 * (x[1] - 1) ** 2,
        equality=lambda x: x[2:],
        g=prox.Box(-1.0, 1.0),
    )
    result = finish(problem, near(problem, vector(-1, 0, 0), vector(0)), Tolerances(EPS, EPS), 10)
    assert result is not None
    assert torch.equal(result.x, vector(1, 1, 0))


def test_nonconvex_qps_end_in_minima() -> None:
    ends = []
    for seed in range(8):
        S, C = normal(seed, 30, 30), normal(seed + 100, 6, 30)
        Q, q = (S + S.T) / 2, normal(seed + 200, 30)
        b = C @ normal(seed + 300, 30).clamp(-1, 1)
        solution = power_alm(in_the_box(Q, q, C, b), normal(seed + 400, 30).clamp(-1, 1))
        assert solution.status is Status.CONVERGED
        ends.append(by_active_set(solution))
        # second-order: no feasible direction among the free unknowns lowers f
        F = solution.x.abs() < 1
        assert solution.x[F].abs().max() < 1 - EPS  # what has met its bound is on it
        null = torch.linalg.svd(C[:, F]).Vh[6:]
        if ends[-1] and len(null):
            assert torch.linalg.eigvalsh(null @ Q[F][:, F] @ null.T).min() > 0
    assert sum(ends) >= 4  # the others converged in fewer steps than it may use columns


def test_nonlinear_constraints_are_corrected_with_the_true_residuals() -> None:
    # The point of the ellipse nearest to c: x = c/(1 + 2 y w), Σ w x² = 1.
    c, w = vector(2.0, 1.0), vector(1.0, 4.0)
    problem = Problem(
        lambda x: 0.5 * (x - c).square().sum(),
        equality=lambda x: ((w * x * x).sum() - 1).reshape(1),
    )
    solution = power_alm(problem, torch.ones(2, dtype=F64), eps_phi=1e-9, eps_A=1e-9)
    assert solution.status is Status.CONVERGED
    assert by_active_set(solution)
    x, y = solution.x, solution.y
    torch.testing.assert_close(x, c / (1 + 2 * y * w), rtol=0, atol=1e-8)
    assert abs((w * x * x).sum() - 1) <= 1e-8
    # From a thousandth away the linearization leads to a millionth.
    point = near(problem, x + 1e-3, y + 1e-3)
    assert finish(problem, point, Tolerances(1e-9, 1e-9), 10) is not None


def test_columns_are_paid_for_and_bounded() -> None:
    problem, *_ = convex_qp(0)
    point = near(problem, torch.zeros(6, dtype=F64), torch.zeros(2, dtype=F64))
    calls = problem.oracle.calls
    before = calls.gradient
    assert finish(problem, point, Tolerances(EPS, EPS), 5) is None  # six unknowns are free
    assert calls.gradient == before
    assert finish(problem, point, Tolerances(EPS, EPS), 6) is not None
    # the point, six columns, the result
    assert calls.gradient - before <= 1 + 6 + 1 + 2
    assert finish(problem, point, Tolerances(EPS, EPS), 6, lambda: True) is None


def test_other_terms_and_many_unknowns_cost_nothing() -> None:
    problem = Problem(lambda x: x @ x, equality=lambda x: x[:1] - 1, g=prox.Ball(2.0))
    x, y = torch.zeros(400, dtype=F64), torch.zeros(1, dtype=F64)
    point = near(problem, x, y)
    before = problem.oracle.calls.gradient
    assert finish(problem, point, Tolerances(EPS, EPS), 10_000) is None
    assert problem.oracle.calls.gradient == before
    free = Problem(lambda x: x @ x, equality=lambda x: x[:1] - 1)
    point = near(free, x, y)
    before = free.oracle.calls.gradient
    assert finish(free, point, Tolerances(EPS, EPS), 10_000) is None
    assert free.oracle.calls.gradient == before


@pytest.mark.parametrize("lam", [None, 1e-3])
def test_active_set_switches_the_method_and_lam_does_not(lam: float | None) -> None:
    problem, *_ = convex_qp(0)
    x_1 = torch.zeros(6, dtype=F64)
    plain = power_alm(problem, x_1, lam=lam, active_set=False)
    assert plain.status is Status.CONVERGED
    assert {record.multiplier for record in plain.records} <= {"weight", "least squares"}
    assert by_active_set(power_alm(problem, x_1, lam=lam))


@pytest.mark.parametrize("where", ["f", "equality"])
def test_values_that_are_not_finite_beside_the_point_are_no_end(where: str) -> None:
    def spoiled(x: Tensor, name: str) -> Tensor:
        return x * math.nan if name == where and (x > 0).any() else x

    problem = Problem(
        lambda x: spoiled(x, "f") @ x, equality=lambda x: spoiled(x, "equality")[:1] + 1
    )
    point = near(problem, torch.zeros(3, dtype=F64), torch.zeros(1, dtype=F64))
    assert finish(problem, point, Tolerances(EPS, EPS), 10) is None


def test_shapes_types_and_the_given_point_are_kept() -> None:
    target = torch.tensor([[2.0, -1.0], [0.25, 3.0]])
    lower = torch.tensor([0.0, -0.5])  # broadcasts over the rows
    problem = Problem(
        lambda X: (X - target).square().sum(),
        equality=lambda X: X.sum().reshape(1) - 1,
        g=prox.Box(lower, torch.tensor(1.0)),
    )
    x, y = torch.full((2, 2), 0.25), torch.zeros(1)
    result = finish(problem, near(problem, x, y), Tolerances(1e-3, 1e-3), 10)
    assert result is not None
    assert result.x.dtype == torch.float32
    assert torch.equal(x, torch.full((2, 2), 0.25))
    assert torch.equal(y, torch.zeros(1))
    # X = clamp(target − y/2, lower, 1): 1 + (−½) + 0 + 1 > 1 for y = 1, so X_11 gives way:
    # X_12 = −½, X_22 = 1, X_21 = 0, X_11 = ½ with y = 3.
    expected = torch.tensor([[0.5, -0.5], [0.0, 1.0]])
    torch.testing.assert_close(result.x, expected, rtol=0, atol=1e-3)


def test_it_saves_gradients_on_nonconvex_qps() -> None:
    def gradients(g: prox.Proximable) -> int:
        total = 0
        for seed in range(4):
            S, C = normal(seed, 40, 40), normal(seed + 100, 8, 40)
            Q, b = 5 * (S + S.T), C @ normal(seed + 300, 40).clamp(-1, 1)
            problem = in_the_box(Q, torch.zeros(40, dtype=F64), C, b, g)
            solution = power_alm(problem, normal(seed + 400, 40).clamp(-1, 1))
            assert solution.status is Status.CONVERGED
            total += solution.gradient_calls
        return total

    assert gradients(HiddenBox.box) <= 0.7 * gradients(HiddenBox())


def test_bounds_are_those_of_the_box_in_the_type_of_x() -> None:
    # 0.3 is another number in float32: unknowns on such a bound would count as free.
    c = torch.linspace(0.25, 2.0, 100, dtype=F64)
    problem = Problem(
        lambda x: 0.5 * (x - c).square().sum(),
        equality=lambda x: x.sum().reshape(1) - 29.9,
        g=prox.Box(0.0, 0.3),
    )
    # x = min(c − y, 0.3) with Σ x = 29.9; the first five c are below 0.33.
    solution = power_alm(problem, torch.zeros(100, dtype=F64))
    assert solution.status is Status.CONVERGED
    assert by_active_set(solution)
    expected = (c - solution.y).clamp(max=0.3)
    torch.testing.assert_close(solution.x, expected, rtol=0, atol=EPS)
    assert int((solution.x < 0.3).sum()) <= 6


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("curvature", [1.0, -1.0])
@pytest.mark.parametrize(("weight", "slope"), [(1.0, 1.0), (1e4, 1.0), (1.0, 1e8)])
def test_dependent_constraints_do_not_hide_the_curvature(
    dtype: torch.dtype, curvature: float, weight: float, slope: float
) -> None:
    # aᵀx = 0, three times over; f is stationary at 0, along u ⟂ a with this curvature.
    a, u = torch.linalg.qr(normal(0, 5, 2)).Q.T.to(dtype)
    Q = weight * (torch.eye(5, dtype=dtype) + (curvature - 1) * torch.outer(u, u))
    rows = slope * torch.outer(torch.tensor([1.0, 1.0, 2.0], dtype=dtype), a)
    problem = Problem(lambda x: 0.5 * (x @ (Q @ x)), equality=lambda x: rows @ x)
    x = 1e-3 * normal(1, 5).to(dtype)
    point = near(problem, x, torch.zeros(3, dtype=dtype))
    result = finish(problem, point, Tolerances(1e-4 * weight, 1e-4 * slope), 10)
    assert (result is not None) is (curvature > 0)


def test_the_curvature_is_that_of_the_point_found() -> None:
    # min x_1 on the circle: (1, 0) is its maximum, with y = −½. With y = ½ it looks like a minimum.
    problem = Problem(lambda x: x[0], equality=lambda x: (x @ x - 1).reshape(1))
    x, y = vector(1.0, 0.0), vector(0.5)
    assert finish(problem, near(problem, x, y), Tolerances(EPS, EPS), 10) is None
    assert finish(problem, near(problem, -x, 0.8 * y), Tolerances(EPS, EPS), 10) is not None


def test_half_precision_and_huge_slopes_are_solved() -> None:
    problem = Problem(lambda x: x @ x, equality=lambda x: x[:1] - 1)
    x, y = torch.zeros(3, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    result = finish(problem, near(problem, x, y), Tolerances(1e-1, 1e-1), 10)
    assert result is not None
    torch.testing.assert_close(result.x.double(), vector(1, 0, 0), rtol=0, atol=1e-1)
    steep = Problem(lambda x: x @ x, equality=lambda x: 1e155 * (x[:1] - 1))
    x, y = vector(1.0, 0.5), torch.zeros(1, dtype=F64)
    result = finish(steep, near(steep, x, y), Tolerances(EPS, EPS), 10)
    assert result is not None
    torch.testing.assert_close(result.x, vector(1, 0), rtol=0, atol=EPS)


def test_another_meaning_of_bounds_is_none() -> None:
    class Term(prox.Ball):
        def bounds(self) -> int:
            return 3

    problem = Problem(lambda x: x @ x, equality=lambda x: x[:1] - 1, g=Term(2.0))
    solution = power_alm(problem, torch.zeros(2, dtype=F64))
    assert solution.status is Status.CONVERGED
    assert not by_active_set(solution)


def test_ctrl_c_in_it_completes_the_iteration() -> None:
    _, Q, q, C, b = convex_qp(0)
    x_1 = torch.zeros(6, dtype=F64)

    class Interrupted:
        """Raises at the given call."""

        def __init__(self, at: float) -> None:
            self.at, self.calls = at, 0

        def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
            self.calls += 1
            if self.calls == self.at:
                raise KeyboardInterrupt
            return float(0.5 * (x @ (Q @ x)) + q @ x), Q @ x + q

    def qp(f: Interrupted, g: prox.Proximable) -> Problem:
        return Problem(f, equality=lambda x: C @ x - b, g=g)

    f = Interrupted(math.inf)
    plain, calls = qp(f, HiddenBox()), []
    # Without Newton directions, which a hidden box does not get, both runs go the same way.
    panoc = PANOC()
    whole = power_alm(plain, x_1, solver=panoc, callback=lambda record, x: calls.append(f.calls))
    # The call after those of the plain first iteration is made by the active-set method.
    first = power_alm(qp(Interrupted(calls[0] + 1), HiddenBox.box), x_1, solver=panoc)
    assert first.status is Status.INTERRUPTED
    assert len(first.records) == 1
    rest = power_alm(plain, first.state["x"], solver=panoc, state=first.state)
    assert torch.equal(whole.x, rest.x)
    assert torch.equal(whole.y, rest.y)


def test_a_callback_gets_the_point_of_the_record() -> None:
    problem, *_ = convex_qp(0)
    seen: list[Tensor] = []
    solution = power_alm(
        problem, torch.zeros(6, dtype=F64), callback=lambda record, x: seen.append(x)
    )
    assert by_active_set(solution)
    assert torch.equal(seen[-1], solution.x)
