"""Known solutions, the textbook method and the rates of the outer loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.problems import HOPELESS, PROBLEMS, Known, vector
from tests.reference import fixed_step, inexact_alm, paper_sigma
from torch_powalm import prox, solvers
from torch_powalm.result import Solution, Status
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem

EPS = 1e-6


# solver and the gradients it may take on any problem it claims
SOLVERS = {
    "PANOC": (solvers.PANOC(), 400),
    "Spectral": (solvers.Spectral(), 300),
    "UPFAG": (solvers.UPFAG(), 700),
    "AcceleratedGradient": (solvers.AcceleratedGradient(), 1_300),
    "AdaptiveGradient": (solvers.AdaptiveGradient(), 3_500),
    "ProximalPoint": (solvers.ProximalPoint(), 6_500),
    "Adam": (solvers.FromTorch(torch.optim.Adam, lr=1e-2), 7_000),
}


# the same for solvers that have to know the curvature of ψ, between c.mu and c.L + β c.J_sq
INFORMED = {
    "FastGradient": (
        lambda c, beta: solvers.FastGradient(rho=c.mu, holder=c.L + beta * c.J_sq),
        700,
    ),
    "ProximalPoint over FastGradient": (
        lambda c, beta: solvers.ProximalPoint(
            rho=1.0,
            inner=solvers.FastGradient(rho=c.mu + 2, holder=c.L + beta * c.J_sq + 2),
        ),
        1_400,
    ),
    "AcceleratedGradient, fixed step": (
        lambda c, beta: solvers.AcceleratedGradient(step=1 / (c.L + beta * c.J_sq)),
        700,
    ),
    "SGD": (
        lambda c, beta: solvers.FromTorch(torch.optim.SGD, lr=1 / (c.L + beta * c.J_sq)),
        900,
    ),
}


LOOSE = {"Adam": 1e-4, "SGD": 1e-4}  # without acceleration or memory of its own


# Hölder-smooth ψ is claimed by these; the valley of the parabola is where ‖A‖ has its kink
BELOW_ONE = {"PANOC": 300, "Spectral": 13_000, "UPFAG": 8_000, "ProximalPoint": 11_000}


def claims(solver: str, known: Known) -> bool:
    """Whether the docstring of a solver covers a problem, for ν = 1."""
    if solver == "Adam":
        return isinstance(known.problem.g, prox.Zero | prox.Box)
    if solver == "FastGradient":
        return known.constants is not None and known.constants.mu > 0
    return solver in SOLVERS or known.constants is not None


def assert_kkt(problem: Problem, solution: Solution, eps: float) -> None:
    """Feasibility and stationarity from x and y, by a backward pass of the test's own."""
    x = solution.x.clone().requires_grad_()
    constraints = problem.oracle.constraints
    r = torch.cat([c(x) for c in constraints.values()])
    grad = torch.autograd.grad(problem.oracle.f(x) + solution.y @ r, x)[0]
    size = len(constraints["equality"](x)) if "equality" in constraints else 0
    B, y = r[size:].detach(), solution.y[size:]
    assert torch.linalg.vector_norm(torch.cat((r[:size].detach(), B.clamp(min=0)))) <= eps
    assert (y >= 0).all()
    assert ((y * B).abs() <= eps).all()
    assert problem.g.distance(solution.x, grad) <= eps


def assert_known(known: Known, solution: Solution, eps: float) -> None:
    """x* and y* to 10 eps: none of the problems amplifies its residuals by more."""
    for got, expected in (solution.x, known.x), (solution.y, known.y):
        assert expected is None or (got - expected).abs().max() <= 10 * eps


@pytest.mark.parametrize(
    ("solver", "name"),
    [
        (solver, name)
        for solver in SOLVERS | INFORMED
        for name, known in PROBLEMS.items()
        if claims(solver, known)
    ],
)
def test_every_solver_finds_the_known_solution(solver: str, name: str) -> None:
    known, eps = PROBLEMS[name], LOOSE.get(solver, EPS)
    start = known.x_1.clone()
    method, gradients = (SOLVERS | INFORMED)[solver]
    if solver in INFORMED:
        method = partial(method, known.constants)
    solution = power_alm(known.problem, known.x_1, solver=method, eps_phi=eps, eps_A=eps)
    assert solution.status is Status.CONVERGED
    assert_kkt(known.problem, solution, eps)
    assert_known(known, solution, eps)
    assert torch.equal(known.x_1, start)
    assert len(solution.records) <= 40
    assert solution.gradient_calls <= gradients


@pytest.mark.parametrize(
    ("solver", "name", "nu"),
    [
        # thousands of gradients, where PANOC takes a hundred
        pytest.param(*row, marks=[pytest.mark.slow] if row[1:] == ("parabola", 0.5) else [])
        for row in product(BELOW_ONE, PROBLEMS, (0.5, 0.8))
    ],
)
def test_powers_below_one_find_the_known_solution(solver: str, name: str, nu: float) -> None:
    known, (method, _), eps = PROBLEMS[name], SOLVERS[solver], 1e-5
    solution = power_alm(known.problem, known.x_1, nu=nu, solver=method, eps_phi=eps, eps_A=eps)
    assert solution.status is Status.CONVERGED
    assert_kkt(known.problem, solution, eps)
    assert_known(known, solution, eps)
    assert solution.gradient_calls <= BELOW_ONE[solver]


@pytest.mark.parametrize("name", HOPELESS)
def test_hopeless_problems_end_in_their_status(name: str) -> None:
    known = HOPELESS[name]
    solution = power_alm(known.problem, known.x_1)
    assert solution.status is known.status
    assert not solution.converged
    if known.x is not None:
        assert torch.allclose(solution.x, known.x, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "solver", "nu"), [*product(HOPELESS, SOLVERS, [0.6, 1.0])])
def test_hopeless_problems_end_with_every_solver(name: str, solver: str, nu: float) -> None:
    known = HOPELESS[name]
    solution = power_alm(
        known.problem, known.x_1, nu=nu, solver=SOLVERS[solver][0], max_gradients=2000
    )
    assert not solution.converged
    assert solution.x.isfinite().all()
    assert math.isfinite(solution.residuals.primal)


def random_qp() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    Q, q, M, b, x = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((8, 8), (8,), (3, 8), (3,), (8,))
    )
    return Q @ Q.T / 8 + torch.eye(8, dtype=torch.float64), q, M, b, x.clamp(-1, 1)


class ProjectedGradient:
    """A fixed step, and the residual at every point, as in the twin."""

    def __init__(self, step: float) -> None:
        self.step = step

    def iterate(
        self, psi: solvers.Smooth, g: prox.Proximable, x: Tensor, tol: float
    ) -> Iterator[solvers.Iterate]:
        while True:
            psi_x, grad_x = psi.value_and_grad(x)
            z = g.prox(x - self.step * grad_x, self.step)
            v = (x - z) / self.step + psi.value_and_grad(z)[1] - grad_x
            yield solvers.Iterate(z, torch.linalg.vector_norm(v).item(), psi_x)
            x = z


def test_exponent_one_is_the_textbook_method() -> None:
    Q, q, M, b, x_1 = random_qp()
    settings = {"omega": 2.0, "lam": 1e-2}
    twin = inexact_alm(Q, q, M, b, x_1, beta=0.5, bound=1.0, iterations=8, **settings)
    seen: list[Tensor] = []
    problem = Problem(
        lambda x: 0.5 * (x @ (Q @ x)) + q @ x, equality=lambda x: M @ x - b, g=prox.Box(-1.0, 1.0)
    )
    solution = power_alm(
        problem,
        x_1,
        beta_1=0.5,
        solver=lambda beta: ProjectedGradient(fixed_step(Q, M, beta)),
        active_set=False,
        eps_phi=1e-14,
        eps_A=1e-14,
        max_outer=8,
        callback=lambda record, x: seen.append(x),
        **settings,
    )
    assert solution.status is Status.MAX_OUTER
    for x, (x_twin, _, _) in zip(seen, twin, strict=True):
        assert torch.allclose(x, x_twin, rtol=1e-10, atol=1e-10)
    assert torch.allclose(solution.state["y"], twin[-1][1], rtol=1e-10, atol=1e-10)
    assert solution.state["beta"] == pytest.approx(twin[-1][2], rel=1e-10)


def test_sequences_of_algorithm_1_equal_a_hand_computation() -> None:
    Q, q, M, b, x_1 = random_qp()
    nu, y, seen = 0.7, torch.zeros(3, dtype=torch.float64), []
    problem = Problem(lambda x: 0.5 * (x @ (Q @ x)) + q @ x, equality=lambda x: M @ x - b)
    solution = power_alm(
        problem,
        x_1,
        nu=nu,
        beta_1=0.3,
        omega=1.5,
        lam=1e-3,
        active_set=False,
        sigma="paper",
        sigma_1=4.0,
        eps_phi=1e-12,
        eps_A=1e-12,
        max_outer=6,
        callback=lambda record, x: seen.append(x),
    )
    A_1 = torch.linalg.vector_norm(M @ x_1 - b).item()
    for k, (x, record) in enumerate(zip(seen, solution.records, strict=True), start=1):
        A = M @ x - b
        A_norm = torch.linalg.vector_norm(A).item()
        sigma = paper_sigma(4.0, A_1, A_norm, nu, k)
        y = y + sigma * A_norm ** (nu - 1) * A
        assert record.k == k
        assert record.beta == pytest.approx(0.3 * 1.5 ** (k - 1), rel=1e-12)
        assert record.sigma == pytest.approx(sigma, rel=1e-10)
        assert record.y_norm == pytest.approx(torch.linalg.vector_norm(y).item(), rel=1e-10)
        assert record.primal_residual == pytest.approx(A_norm, rel=1e-10)
        assert record.dual_residual <= 1e-3 / record.beta


# The theorem on the outer complexity asks nothing of σ_1: it enters through the bound on y alone,
#     ‖y_k‖ ≤ y_max = σ_1‖A(x_1)‖^ν Σ_i log²2/((i+1) log²(i+2)).
# Here g = 0, y_1 = 0, A(x) = Mx − b, so that ‖J_Aᵀ A‖ ≥ R‖A‖ with R the smallest singular value of
# M, and J_max is the largest. From ‖∇f + Mᵀy + β‖A‖^(ν−1)MᵀA‖ ≤ λ/β, which is all it needs to know
# of the inner solver, follows
#     Rβ‖A(x_k)‖^ν ≤ Q = ∇f_max + J_max y_max + λ/β_1,
#     ‖A(x_k)‖ ≤ (Q/(Rβ_1))^(1/ν) ω^(−(k−1)/ν)
# with ∇f_max over the iterates. For σ_1 = 0 the violation comes within a factor of 0.7 of it.
@pytest.mark.parametrize("sigma_1", [0.0, 10.0])
@pytest.mark.parametrize("nu", [0.4, 0.6, 0.8, 1.0])
def test_violation_falls_like_the_theory_says(nu: float, sigma_1: float) -> None:
    Q, q, M, b, x_1 = random_qp()
    beta_1, omega, lam, seen = 1.0, 1.5, 1e-3, []
    problem = Problem(lambda x: 0.5 * (x @ (Q @ x)) + q @ x, equality=lambda x: M @ x - b)
    solution = power_alm(
        problem,
        x_1,
        nu=nu,
        beta_1=beta_1,
        omega=omega,
        lam=lam,
        active_set=False,
        sigma="paper",
        sigma_1=sigma_1,
        eps_phi=1e-3,
        eps_A=1e-9,
        max_outer=25,
        callback=lambda record, x: seen.append(x),
    )
    assert all(record.inner_status is Status.CONVERGED for record in solution.records)
    terms = [math.log(2) ** 2 / ((k + 1) * math.log(k + 2) ** 2) for k in range(1, 1 + len(seen))]
    y_max = sigma_1 * torch.linalg.vector_norm(M @ x_1 - b).item() ** nu * sum(terms)
    assert all(record.y_norm <= (1 + 1e-12) * y_max for record in solution.records)

    J_max, *_, R = torch.linalg.svdvals(M).tolist()
    grad_f_max = max(torch.linalg.vector_norm(Q @ x + q).item() for x in seen)
    first = ((grad_f_max + J_max * y_max + lam / beta_1) / (R * beta_1)) ** (1 / nu)
    ratios = [
        record.primal_residual / (first * omega ** (-(k - 1) / nu))
        for k, record in enumerate(solution.records, start=1)
    ]
    assert len(ratios) >= 5
    assert max(ratios) <= 1
    assert sigma_1 > 0 or max(ratios) >= 0.7


def test_multipliers_stay_bounded_where_the_constraints_contradict_each_other() -> None:
    known = HOPELESS["contradiction"]
    solution = power_alm(known.problem, known.x_1, sigma="paper", sigma_1=2.0, omega=1.1)
    A_1 = torch.linalg.vector_norm(vector(3, 2)).item()
    assert max(record.y_norm for record in solution.records) <= 2.0 * A_1 * 4


@pytest.mark.parametrize("sigma", ["penalty", "paper"])
def test_a_run_in_two_parts_is_the_run_in_one(sigma: str) -> None:
    known = PROBLEMS["equality and inequality"]
    settings = {"nu": 0.8, "sigma": sigma, "eps_phi": 1e-12, "eps_A": 1e-12, "active_set": False}
    whole = power_alm(known.problem, known.x_1, max_outer=4, **settings)
    first = power_alm(known.problem, known.x_1, max_outer=2, **settings)
    second = power_alm(known.problem, first.state["x"], state=first.state, max_outer=2, **settings)
    assert torch.equal(second.state["x"], whole.state["x"])
    assert torch.equal(second.state["y"], whole.state["y"])
    assert second.records[-1].k == 4
    assert second.records[-1].primal_residual == whole.records[-1].primal_residual


def test_x_y_and_beta_alone_continue_the_classical_method() -> None:
    known = PROBLEMS["several equations"]
    settings = {"omega": 2.0, "lam": 1e-2, "active_set": False, "eps_phi": 1e-13, "eps_A": 1e-13}
    whole = power_alm(known.problem, known.x_1, beta_1=1.0, max_outer=6, **settings)
    first = power_alm(known.problem, known.x_1, beta_1=1.0, max_outer=3, **settings)
    second = power_alm(known.problem, first.x, y_1=first.y, beta_1=8.0, max_outer=3, **settings)
    assert torch.equal(second.x, whole.x)
    assert torch.equal(second.y, whole.y)


def test_a_solution_given_as_start_costs_one_subproblem() -> None:
    known = PROBLEMS["circle"]
    solution = power_alm(known.problem, known.x, y_1=known.y)
    assert solution.converged
    assert [record.inner_iterations for record in solution.records] == [1]


def test_tolerance_goes_on_falling_where_the_penalty_is_capped() -> None:
    known = PROBLEMS["affine equality"]
    solution = power_alm(
        known.problem,
        known.x_1,
        beta_1=1.0,
        omega=2.0,
        beta_max=2.0,
        lam=1.0,
        active_set=False,
        eps_phi=1e-8,
    )
    assert solution.converged
    assert solution.records[-1].beta == 2.0
