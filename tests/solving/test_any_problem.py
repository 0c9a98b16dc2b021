"""Problems of every form: no constraints, two sides, domains, several threads, verdicts."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from tests.problems import vector
from torch_powalm import Problem, Status, power_alm, prox


def test_no_constraints_is_one_subproblem() -> None:
    solution = power_alm(Problem(lambda x: ((x - 1) ** 4).sum() + x @ x), vector(3, -2))
    assert solution.converged
    assert len(solution.records) == 1
    assert solution.y.shape == (0,)


def test_fixed_variables_stay() -> None:
    box = prox.Box(vector(2, -5), vector(2, 5))
    problem = Problem(lambda x: x @ x, equality=lambda x: (x.sum() - 1).reshape(1), g=box)
    solution = power_alm(problem, vector(2, 4))
    assert solution.converged
    assert torch.allclose(solution.x, vector(2, -1), atol=1e-4)


class Sum:
    """By hand, with a count of its evaluations."""

    def __init__(self) -> None:
        self.evaluations = 0

    def values(self, x: Tensor) -> Tensor:
        self.evaluations += 1
        return torch.stack((x.sum(), x[0] - x[1]))

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.stack((w[0] + w[1], w[0] - w[1]))


@pytest.mark.parametrize("by_hand", [True, False])
def test_two_sides_share_an_evaluation(by_hand: bool) -> None:
    # The nearest point of 1 ≤ a + b ≤ 2, a − b ≤ −1 to (3, 1): a + b = 2, a − b = −1.
    c = Sum()
    two_sided = (c if by_hand else c.values, vector(1, -math.inf), vector(2, -1))
    problem = Problem(lambda x: (x - vector(3, 1)) @ (x - vector(3, 1)), two_sided=two_sided)
    solution = power_alm(problem, vector(0, 0))
    assert solution.converged
    assert torch.allclose(solution.x, vector(0.5, 1.5), atol=1e-4)
    assert solution.y.shape == (3,)  # two upper bounds, one lower bound
    assert solution.y[2].abs() <= 1e-6
    assert c.evaluations <= solution.constraint_calls + 1  # and one of the checks


@pytest.mark.parametrize(
    ("two_sided", "error", "message"),
    [
        (3, TypeError, "two_sided must be a tuple"),
        ((3, 0.0, 1.0), TypeError, "two_sided must have a c that is callable"),
        ((torch.sin, 1.0, 1.0), ValueError, "two_sided must have lower < upper, got 1.0 and 1.0"),
        ((torch.sin, -math.inf, math.inf), ValueError, "two_sided must have a finite bound"),
    ],
)
def test_wrong_two_sides_raise(two_sided: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Problem(lambda x: x @ x, two_sided=two_sided)  # type: ignore[arg-type]


class Root:
    """−Σ√x + Σx by hand, which raises outside its domain."""

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        roots = [math.sqrt(entry) for entry in x.tolist()]
        grad = [1 - 0.5 / root for root in roots]
        return sum(x.tolist()) - sum(roots), x.new_tensor(grad)


def test_an_error_of_the_domain_is_a_refused_trial() -> None:
    problem = Problem(Root(), equality=lambda x: (x[0] - 4 * x[1]).reshape(1))
    solution = power_alm(problem, vector(5, 3), max_gradients=2000)
    assert solution.converged
    assert (solution.x > 0).all()


def test_other_errors_pass() -> None:
    class Broken:
        calls = 0

        def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
            self.calls += 1
            if self.calls > 5:
                raise KeyError("broken")
            return float(x @ x), 2 * x

    with pytest.raises(KeyError, match="broken"):
        power_alm(Problem(Broken(), equality=lambda x: (x.sum() - 1).reshape(1)), vector(1, 3))


@pytest.mark.parametrize("period", [7, 10])
def test_nan_now_and_then_ends_in_a_status(period: int) -> None:
    for seed in range(10):
        calls = [0]

        def f(x: Tensor, calls: list[int] = calls) -> Tensor:
            calls[0] += 1
            return (x @ x) * (math.nan if calls[0] > 3 and calls[0] % period == 0 else 1.0)

        x_1 = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        problem = Problem(f, equality=lambda x: (x.sum() - 1).reshape(1))
        assert isinstance(power_alm(problem, x_1, max_gradients=500).status, Status)


def test_one_problem_in_several_threads() -> None:
    problem = Problem(lambda x: x @ x, equality=lambda x: (x @ x + x.sum() - 3).reshape(1))
    starts = [vector(1, k) for k in range(4)]
    alone = [power_alm(problem, x_1).gradient_calls for x_1 in starts]
    before = problem.oracle.calls.gradient
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x_1: power_alm(problem, x_1).gradient_calls, starts))
    assert together == alone
    assert problem.oracle.calls.gradient >= before


def test_the_missing_residual_is_named() -> None:
    problem = Problem(lambda x: x @ x, equality=lambda x: (x[0] ** 2 - 2 + x[1]).reshape(1))
    solution = power_alm(problem, vector(3, 3), max_gradients=4)
    assert solution.status is Status.BUDGET
    assert any(text.startswith("primal residual") for text in solution.missing)
    assert "primal residual" in str(solution).splitlines()[0]


def test_low_values_outside_the_bounds_are_no_sign_of_an_unbounded_problem() -> None:
    # Trials may leave the bounds, where f decreases without end: HS3MOD.
    box = prox.Box(vector(-math.inf, 0), vector(math.inf, math.inf))
    solution = power_alm(Problem(lambda x: x[1] + (x[1] - x[0]) ** 2, g=box), vector(10, 1))
    assert solution.converged
    assert abs(solution.objective) <= 1e-6


@pytest.mark.parametrize("budget", [50, 60, 70])
def test_a_budget_ends_a_step_in_its_middle(budget: int) -> None:
    """After 45 steps the Hessian is measured, which takes 45 gradients."""

    def f(x: Tensor) -> Tensor:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    x_1 = torch.full((45,), -1.0, dtype=torch.float64)
    solution = power_alm(Problem(f), x_1, max_gradients=budget)
    assert solution.status is Status.BUDGET
    assert solution.gradient_calls <= budget + 5


def stiff_rows(x: Tensor) -> Tensor:
    """90 rows of curved inequalities that are active together."""
    t = torch.linspace(0.0, 3.0, 90, dtype=torch.float64)
    k = torch.arange(1.0, 61.0, dtype=torch.float64)
    return torch.sin(torch.outer(t, k)) @ x + 0.1 * (x * x).sum() - 1.0


def test_many_active_rows_are_known_to_the_steps() -> None:
    """Directions from pairs alone take 107 gradients."""
    x_1 = torch.full((60,), 0.5, dtype=torch.float64)
    problem = Problem(lambda x: -x.sum() + 0.01 * (x**4).sum(), inequality=stiff_rows)
    solution = power_alm(problem, x_1)
    assert solution.converged
    assert solution.gradient_calls <= 60
