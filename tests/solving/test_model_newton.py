"""The model of ψ for few unknowns: its derivatives, its minimizer, and what steps with it reach."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.problems import dual_state, vector
from torch_powalm import Problem, Status, power_alm, prox
from torch_powalm.prox import Proximable
from torch_powalm.solvers import run
from torch_powalm.solvers.model_newton import ModelNewton
from torch_powalm.solving.box_newton import minimize_on_box
from torch_powalm.solving.lagrangian_curvature import LagrangianCurvature, is_small
from torch_powalm.solving.penalty_model import Expansion, PenaltyModel
from torch_powalm.solving.subproblem import Subproblem
from torch_powalm.solving.violation_slope import half_square_dual

F64 = torch.float64


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def model(seed: int, nu: float, *, inequality: bool) -> PenaltyModel:
    n, m = 5, 4
    M, r, y = normal(seed, n, n), normal(seed + 1, m), normal(seed + 2, m)
    dual = dual_state(nu=nu, beta_1=3.0)
    mask = torch.tensor([False, False, True, True]) if inequality else None
    dual.start(r, mask)
    if mask is not None:
        y[mask] = y[mask].abs()
    dual.load_state_dict({**dual.state_dict(), "y": y})
    at = Expansion(normal(seed + 3, n), normal(seed + 4, n), r, normal(seed + 5, m, n))
    return PenaltyModel(at, M @ M.T + torch.eye(n, dtype=F64), dual)


@pytest.mark.parametrize("nu", [1.0, 0.7, 0.4])
@pytest.mark.parametrize("inequality", [False, True])
def test_gradient_of_the_model_is_that_of_its_values(nu: float, inequality: bool) -> None:
    m, d = model(3, nu, inequality=inequality), 0.3 * normal(9, 5)
    grad = m.value_and_grad(d)[1]
    for i, e in enumerate(torch.eye(5, dtype=F64)):
        ahead, behind = (m.value_and_grad(d + s * e)[0] for s in (1e-6, -1e-6))
        assert (ahead - behind) / 2e-6 == pytest.approx(grad[i].item(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("nu", [1.0, 0.7])
def test_hessian_of_the_model_is_that_of_its_gradients(nu: float) -> None:
    m, d = model(3, nu, inequality=False), 0.3 * normal(9, 5)
    m.value_and_grad(d)
    H = m.hessian(d)
    columns = [
        (m.value_and_grad(d + 1e-6 * e)[1] - m.value_and_grad(d - 1e-6 * e)[1]) / 2e-6
        for e in torch.eye(5, dtype=F64)
    ]
    torch.testing.assert_close(H, torch.stack(columns, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(0, 40, 10))
@pytest.mark.parametrize("nu", [1.0, 0.5])
def test_minimizer_of_the_model_has_no_projected_gradient(seed: int, nu: float) -> None:
    m = model(seed, nu, inequality=True)
    lower, upper = torch.full((5,), -0.3, dtype=F64), torch.full((5,), 0.4, dtype=F64)
    start = torch.zeros(5, dtype=F64)
    d, value = minimize_on_box(m, start, lower, upper)
    grad = m.value_and_grad(d)[1]
    assert value == pytest.approx(m.value_and_grad(d)[0])
    assert torch.equal(d, d.clamp(lower, upper))
    at_lower, at_upper = (d <= lower) & (grad > 0), (d >= upper) & (grad < 0)
    first = m.value_and_grad(start)[1]
    assert grad[~(at_lower | at_upper)].norm() <= 1e-3 * first.norm()


def test_curvature_of_a_quadratic_is_measured_exactly() -> None:
    Q = normal(0, 4, 4)
    Q = Q + Q.T
    problem = Problem(lambda x: 0.5 * (x @ (Q @ x)), equality=lambda x: x[:1] * x[1:2])
    x, w = normal(1, 4), vector(2)
    point = problem.oracle.at(x)
    J = point.jacobian()
    at = Expansion(x, Q @ x, point.r, J)
    curvature = LagrangianCurvature(problem, x)
    curvature._measure(at, w)
    Q[0, 1] += 2
    Q[1, 0] += 2
    torch.testing.assert_close(curvature.B, Q, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("g", "x", "small"),
    [
        (prox.Zero(), torch.zeros(80, dtype=F64), True),
        (prox.Box(0.0, 1.0), torch.zeros(80, dtype=F64), True),
        (prox.Zero(), torch.zeros(81, dtype=F64), False),
        (prox.Zero(), torch.zeros(20), False),
        (prox.L1(1.0), torch.zeros(20, dtype=F64), False),
    ],
)
def test_dense_matrices_are_for_small_problems(g: Proximable, x: Tensor, small: bool) -> None:
    assert is_small(g, x, 10) is small
    assert not is_small(g, x, 100_000)


def test_jacobian_by_autograd_by_products_and_by_hand_agree() -> None:
    class Products:
        def values(self, x: Tensor) -> Tensor:
            return torch.stack((x[0] * x[1], x[1] ** 2))

        def vjp(self, x: Tensor, w: Tensor) -> Tensor:
            return torch.stack((w[0] * x[1], w[0] * x[0] + 2 * w[1] * x[1]))

    class ByHand(Products):
        def jacobian(self, x: Tensor) -> Tensor:
            return torch.stack((x.flip(0), torch.stack((x.new_zeros(()), 2 * x[1]))))

    x = vector(2, 3)
    for c in (Products().values, Products(), ByHand()):
        problem = Problem(lambda x: x @ x, equality=c)
        J = problem.oracle.at(x).jacobian()
        torch.testing.assert_close(J, torch.tensor([[3.0, 2.0], [0.0, 6.0]], dtype=F64))


def test_a_run_with_hand_written_jacobians_takes_the_same_steps() -> None:
    class Circle:
        def values(self, x: Tensor) -> Tensor:
            return (x @ x - 2).reshape(1)

        def vjp(self, x: Tensor, w: Tensor) -> Tensor:
            return 2 * w * x

    class WithRows(Circle):
        def jacobian(self, x: Tensor) -> Tensor:
            return 2 * x.reshape(1, -1)

    runs = [
        power_alm(Problem(lambda x: x[0] + x[1], equality=c), vector(1, -0.5))
        for c in (Circle(), WithRows())
    ]
    assert runs[0].converged
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].gradient_calls == runs[1].gradient_calls <= 40


def test_a_wrong_curvature_in_a_state_raises() -> None:
    problem, x = Problem(lambda x: x @ x, equality=lambda x: x[:1] - 1), vector(1, 2)
    curvature = LagrangianCurvature(problem, x)
    wrong = {**curvature.state_dict(), "B": torch.eye(3, dtype=F64)}
    with pytest.raises(ValueError, match=r"\['B'\] must have shape \(2, 2\), got \(3, 3\)"):
        curvature.load_state_dict(wrong)
    assert curvature.B is None


def test_a_refused_trial_far_away_does_not_change_the_model() -> None:
    curvature = LagrangianCurvature(Problem(lambda x: x.sum()), vector(0, 0))
    curvature.B, curvature.is_guess = torch.eye(2, dtype=F64), False
    none = torch.zeros(0, dtype=F64), torch.zeros(0, 2, dtype=F64)
    old, far = (Expansion(vector(s, 0), vector(g, 0), *none) for s, g in ((0, 0), (1, 1e20)))
    curvature.learn(old, far, none[0], accepted=False)
    torch.testing.assert_close(curvature.B, torch.eye(2, dtype=F64), rtol=0, atol=0)
    curvature.learn(old, far._replace(grad_f=vector(10, 0)), none[0], accepted=False)
    assert curvature.B[0, 0] > 2


class _Half:
    """½‖x + 1‖², with a gradient only where x ≥ 0."""

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        grad = x + 1 if x.min() >= 0 else torch.full_like(x, math.nan)
        return 0.5 * (x + 1).square().sum().item(), grad


def test_a_trial_whose_gradient_is_not_finite_is_refused() -> None:
    solution = power_alm(Problem(_Half()), vector(2, 1), max_gradients=60)
    assert solution.status is Status.BUDGET
    assert solution.objective < 2.6  # at x_1 it is 6.5, at (1, 0) 2.5


def test_equations_are_solved_by_gauss_newton_steps() -> None:
    def equality(x: Tensor) -> Tensor:
        return torch.stack((10 * (x[1] - x[0] ** 2), 1 - x[0]))

    solution = power_alm(Problem(lambda x: 0 * x.sum(), equality=equality), vector(-1.2, 1))
    assert solution.status is Status.CONVERGED
    assert solution.gradient_calls <= 10


def test_the_curvature_replaces_gauss_newton_where_the_violation_stays() -> None:
    # The least-squares point of x and λx² + x - 1 is not feasible, and J says little near it.
    def equality(x: Tensor) -> Tensor:
        return torch.cat((x + 1, -10 * x**2 + x - 1))

    problem = Problem(lambda x: 0 * x.sum(), equality=equality)
    x = vector(0.6)
    curvature = LagrangianCurvature(problem, x)
    dual = half_square_dual(problem, problem.oracle.at(x))
    psi = Subproblem(problem, dual, None, None, curvature)
    result = run(ModelNewton(), psi, prox.Zero(), x, tol=1e-8, max_iter=50)
    assert result.status is Status.CONVERGED
    assert not curvature.is_flat


def test_a_newton_step_that_a_close_bound_turns_uphill_is_replaced() -> None:
    class Narrow:
        H = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=F64)

        def value_and_grad(self, d: Tensor) -> tuple[float, Tensor]:
            grad = self.H @ d + vector(1.0, 0.5)
            return 0.5 * torch.dot(d, grad + vector(1.0, 0.5)).item(), grad

        def hessian(self, d: Tensor) -> Tensor:
            return self.H

    lower = vector(-1e-9, -10)
    d, _ = minimize_on_box(Narrow(), vector(0, 0), lower, vector(10, 10))
    torch.testing.assert_close(d, vector(-1e-9, -0.5), rtol=0, atol=1e-6)


def test_a_step_to_a_bound_ends_on_it() -> None:
    lower = torch.linspace(0.1, 0.9, 9, dtype=F64) / 3
    problem = Problem(
        lambda x: -x.square().sum() + (2 + x).sum(),
        inequality=lambda x: x.sum().reshape(1) - 100,
        g=prox.Box(lower, lower + 1),
    )
    solution = power_alm(problem, lower + torch.linspace(0.1, 0.15, 9, dtype=F64))
    assert solution.status is Status.CONVERGED
    assert bool(((solution.x == lower) | (solution.x == lower + 1)).all())


class Flat:
    """A model that promises less than the rounding of ψ, which rises."""

    calls = 0

    def value(self, x: Tensor) -> float:
        return self.value_and_grad(x)[0]

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        self.calls += 1
        return 1e6 + 1e-6 * self.calls, torch.ones_like(x)

    def first_radius(self, x: Tensor) -> float:
        return 1.0

    def model_step(self, x: Tensor, radius: float) -> tuple[Tensor, float]:
        return torch.full_like(x, 1e-3), 1e-12

    def corrected_step(self, x: Tensor, refused: Tensor, radius: float) -> None:
        return None

    def learn(self, x: Tensor, x_next: Tensor, *, accepted: bool) -> None:
        pass


def test_steps_end_where_psi_cannot_be_compared_any_more() -> None:
    psi = Flat()
    result = run(ModelNewton(), psi, prox.Zero(), vector(1, 2), tol=1e-3, max_iter=100)
    assert result.status is Status.STALLED
    assert result.iterations <= 22
    assert psi.calls <= 70
