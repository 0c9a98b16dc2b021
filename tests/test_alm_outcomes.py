"""Budgets, interrupts, records, types and shapes, hand-written oracles, misuse."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import PROBLEMS, vector
from torch import Tensor

from experiments.benchmarks import families
from torch_powalm import prox, solvers
from torch_powalm.alm import power_alm
from torch_powalm.dual import DualState
from torch_powalm.feasibility import is_stuck, restore
from torch_powalm.problem import Problem, Subproblem
from torch_powalm.result import OuterRecord, Status

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


@pytest.mark.parametrize("f_by_hand", [False, True])
@pytest.mark.parametrize("equality_by_hand", [False, True])
@pytest.mark.parametrize("inequality_by_hand", [False, True])
def test_hand_written_oracles_and_autograd_agree(
    f_by_hand: bool, equality_by_hand: bool, inequality_by_hand: bool
) -> None:
    c, M, b = random_data()
    f, A, B = Quadratic(c), Affine(M, b), Affine(-M, b - 1)
    plain = Problem(lambda x: f.value_and_grad(x)[0], equality=A.values, inequality=B.values)
    mixed = Problem(
        f if f_by_hand else lambda x: f.value_and_grad(x)[0],
        equality=A if equality_by_hand else A.values,
        inequality=B if inequality_by_hand else B.values,
    )
    x, w = torch.ones_like(c), vector(1, -2, 3, 0.5)
    expected, got = plain.oracle.at(x), mixed.oracle.at(x)
    for _ in range(2):  # the second call does without the graph of the first
        assert torch.allclose(got.gradient(w), expected.gradient(w), rtol=1e-12)
    assert got.f == pytest.approx(expected.f, rel=1e-12)
    assert torch.equal(got.r, expected.r)
    assert mixed.residuals(x, w) == pytest.approx(plain.residuals(x, w), rel=1e-12)


def test_value_and_gradient_at_one_point_cost_one_product() -> None:
    c, M, b = random_data()
    f = Quadratic(c)
    problem = Problem(f, equality=Affine(M, b))
    dual = DualState(
        nu=0.8,
        beta_1=1.0,
        omega=2.0,
        sigma="penalty",
        sigma_1=1.0,
        beta_max=1e9,
        y_max=1e9,
        sufficient_decrease=None,
    )
    x = torch.zeros_like(c)
    at = problem.oracle.at(x)
    dual.start(at.r)
    psi = Subproblem(problem, dual, at)
    value, grad = psi.value(x), psi.value_and_grad(x)[1]
    assert psi.value_and_grad(x)[0] == value
    assert f.calls == 1
    dual.update(at.r)
    assert not torch.equal(Subproblem(problem, dual, at).value_and_grad(x)[1], grad)
    assert f.calls == 1
    x += 1  # the same tensor, another point
    assert psi.value(x) != value
    assert f.calls == 2
    assert problem.oracle.calls.function == problem.oracle.calls.gradient == 2


def test_solution_counts_the_calls_of_the_user() -> None:
    c, M, b = random_data()
    f = Quadratic(c)
    problem = Problem(f, equality=Affine(M, b))
    solution = power_alm(problem, torch.zeros_like(c))
    assert solution.converged
    assert solution.function_calls == solution.gradient_calls == f.calls - 1  # but for the check
    assert solution.records[-1].gradient_calls <= solution.gradient_calls


def test_float32_stays_float32_and_shapes_are_kept() -> None:
    C = torch.diag(torch.tensor([3.0, 1.0, -2.0, 0.5]))
    problem = Problem(
        lambda X: (X * (C @ X)).sum(), equality=lambda X: (X.T @ X - torch.eye(2)).reshape(-1)
    )
    x_1 = torch.ones(4, 2) + torch.arange(8.0).reshape(4, 2) / 8
    solution = power_alm(problem, x_1, eps_phi=1e-3, eps_A=1e-3)
    assert solution.converged
    assert solution.x.dtype == solution.y.dtype == torch.float32
    assert solution.x.shape == (4, 2)
    # The two smallest eigenvalues are −2 and 0.5.
    assert solution.objective == pytest.approx(-1.5, abs=1e-2)


@pytest.mark.parametrize("budget", [{"max_gradients": 12}, {"max_seconds": 1e-9}])
def test_budgets_end_a_run(budget: dict[str, Any]) -> None:
    solution = power_alm(KNOWN.problem, KNOWN.x_1, eps_phi=1e-13, eps_A=1e-13, **budget)
    assert solution.status is Status.BUDGET
    assert len(solution.records) <= 2
    if "max_gradients" in budget:
        assert solution.gradient_calls <= 12 + 5


def test_outer_and_inner_iterations_are_bounded() -> None:
    solution = power_alm(
        KNOWN.problem, KNOWN.x_1, max_outer=3, max_inner=1, eps_phi=1e-13, eps_A=1e-13
    )
    assert solution.status is Status.MAX_OUTER
    assert [record.inner_iterations for record in solution.records] == [1, 1, 1]


def test_ctrl_c_returns_the_best_point_so_far() -> None:
    calls = 0

    def f(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise KeyboardInterrupt
        return 0.5 * (x @ x)

    problem = Problem(f, equality=lambda x: x[:1] - 1)
    solution = power_alm(problem, vector(3, -1), lam=1e-3, eps_phi=1e-13, eps_A=1e-13)
    assert solution.status is Status.INTERRUPTED
    assert len(solution.records) >= 1
    assert solution.residuals.primal == min(r.primal_residual for r in solution.records)


def test_ctrl_c_in_the_first_subproblem_keeps_what_the_inner_solver_has_reached() -> None:
    calls = 0

    def f(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise KeyboardInterrupt
        return 0.25 * (x**4).sum()

    problem = Problem(f, equality=lambda x: x[:1] - 1)
    x_1 = vector(30, -10)
    solver = solvers.AcceleratedGradient(step=1e-4)
    solution = power_alm(problem, x_1, beta_1=1.0, lam=1e-8, solver=solver)
    assert solution.status is Status.INTERRUPTED
    assert [record.inner_status for record in solution.records] == [Status.INTERRUPTED]
    start = problem.residuals(x_1, solution.y)
    assert solution.residuals.stationarity < 0.9 * start.stationarity


@pytest.mark.parametrize("last", range(30, 150, 8))
def test_ctrl_c_ends_the_run_wherever_it_comes(last: int) -> None:
    calls = 0

    def sphere(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == last:
            raise KeyboardInterrupt
        return (x @ x - 1).reshape(1)

    # Soon feasible and never stationary enough: most calls are those of least squares.
    problem = Problem(lambda x: x @ (vector(1, 2, 3) * x), equality=sphere)
    solution = power_alm(problem, vector(3, 1, 1), beta_1=1.0, eps_phi=1e-15, eps_A=1e-1)
    assert solution.status is Status.INTERRUPTED
    assert calls <= last + 60  # what the certificate of the point found takes


def test_a_callback_sees_every_record_and_can_end_the_run() -> None:
    seen: list[OuterRecord] = []

    def callback(record: OuterRecord, x: Tensor) -> bool:
        seen.append(record)
        return len(seen) == 2

    settings = {"lam": 1e-3, "eps_phi": 1e-13, "eps_A": 1e-13}  # far more than two iterations
    solution = power_alm(KNOWN.problem, KNOWN.x_1, callback=callback, **settings)
    assert solution.status is Status.INTERRUPTED
    assert solution.records == seen


def test_values_that_are_not_finite_end_in_a_status() -> None:
    problem = Problem(lambda x: (1e200 * x**3).sum(), equality=lambda x: x**2 - 1)
    solver = solvers.AcceleratedGradient(step=1e3)
    solution = power_alm(problem, vector(2), beta_1=1.0, solver=solver)
    assert solution.status is Status.NOT_FINITE
    assert solution.x.isfinite().all()


def test_residuals_have_four_parts() -> None:
    problem = Problem(
        lambda x: (x**2).sum(), equality=lambda x: x[:1] - 3, inequality=lambda x: x - 1
    )
    # x = (0, 2), y = (1, 2, 3): ∇f + Jᵀy = (0 + 1 + 2, 4 + 3), y·B = (2·(−1), 3·1).
    residuals = problem.residuals(vector(0, 2), vector(1, 2, 3))
    assert residuals == pytest.approx((3.0, 1.0, (9 + 49) ** 0.5, 3.0), rel=1e-12)
    assert residuals.primal == pytest.approx(10**0.5, rel=1e-12)
    assert residuals.dual == residuals.stationarity
    # a negative multiplier of an inequality counts as well
    assert problem.residuals(vector(3, 1), vector(0, -5, 0)).complementarity == 10


def test_records_print_and_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    solution = power_alm(KNOWN.problem, KNOWN.x_1)
    text = str(solution)
    for word in ("converged", "primal", "dual", "objective", "outer", "inner", "function"):
        assert word in text
    rows = solution.records.to_dicts()
    assert rows[0]["k"] == 1
    assert rows[-1]["inner_status"] == "converged"
    assert len(str(solution.records).splitlines()) == len(rows) + 1
    frame = solution.records.to_dataframe()
    assert list(frame.columns) == list(rows[0])
    assert frame["primal_residual"].tolist() == [row["primal_residual"] for row in rows]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError):
        solution.records.to_dataframe()


def test_plot_shows_both_residuals() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ax = power_alm(KNOWN.problem, KNOWN.x_1).plot()
    assert ax.get_yscale() == "log"
    assert len(ax.lines) == 2


def test_progress_goes_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    solution = power_alm(KNOWN.problem, KNOWN.x_1, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    *_, last = drawn = captured.err.removesuffix("\n").split("\r")[1:]
    assert len(drawn) == len(solution.records)
    assert last.startswith(f"[{'#' * 20}] {len(solution.records)}: primal ")
    assert f"{solution.records[-1].gradient_calls} gradients" in last


def test_a_start_outside_the_domain_is_projected_and_said_once() -> None:
    known = PROBLEMS["simplex in a box"]
    with pytest.warns(UserWarning, match="x_1 is outside dom g") as caught:
        solution = power_alm(known.problem, vector(3, -2, 0.5))
    assert len(caught) == 1
    assert solution.converged


def square(x: Tensor) -> Tensor:
    return (x**2).sum()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Problem(3, equality=square), TypeError, "f must be callable"),
        (lambda: Problem(square), ValueError, "equality or inequality must be given, got neither"),
        (lambda: Problem(square, equality=1), TypeError, "equality must be callable or have"),
        (lambda: Problem(square, inequality=[1]), TypeError, "inequality must be callable or have"),
        (
            lambda: Problem(square, equality=square, g=prox.Box),
            TypeError,
            "g must have value, prox and distance, got <class",
        ),
    ],
)
def test_a_wrong_problem_raises(
    build: Callable[[], Problem], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"f": lambda x: x}, r"f must return a scalar tensor, got shape \(2,\)"),
        ({"f": lambda x: 1.0}, r"f must return a scalar tensor, got 1\.0"),
        ({"f": lambda x: x.sum() * torch.nan}, "f must be finite at x_1, got nan"),
        ({"f": lambda x: x.sqrt().sum()}, "the gradient of f must be finite at x_1, got inf"),
        ({"f": lambda x: x.sum().detach()}, "f must be differentiable .* without gradient"),
        (
            {"f": lambda x: x.sum().float()},
            "f must return torch.float64 on cpu as x_1, got torch.f",
        ),
        ({"equality": square}, r"equality must return a 1-D tensor, got shape \(\)"),
        ({"equality": lambda x: x.detach()}, "equality must be differentiable .* without gradient"),
        ({"equality": lambda x: x.float()}, "equality must return torch.float64 on cpu as x_1"),
        ({"equality": lambda x: x[:0]}, r"equality must return a 1-D tensor, got shape \(0,\)"),
        ({"inequality": lambda x: x / 0}, "inequality must be finite at x_1, got nan"),
        (
            {"equality": lambda x: torch.ones(1, dtype=x.dtype, requires_grad=True)},
            "equality must be differentiable .* does not depend on it",
        ),
        (
            {"equality": Affine(torch.ones(1, 3, dtype=torch.float64).T[:2], vector(1, 1))},
            r"equality must return a gradient of shape \(2,\), got \(1,\)",
        ),
    ],
)
def test_what_the_functions_return_is_checked(parts: dict[str, Any], message: str) -> None:
    functions = {"f": square, "equality": lambda x: x, **parts}
    if "Affine" in type(functions["equality"]).__name__:
        functions["equality"].values = lambda x: x
    problem = Problem(functions.pop("f"), **functions)
    with pytest.raises((TypeError, ValueError), match=message):
        power_alm(problem, vector(0, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps_phi": -1.0}, r"eps_phi must be positive and finite, got -1\.0"),
        ({"eps_A": 0.0}, r"eps_A must be positive and finite, got 0\.0"),
        ({"lam": -1.0}, r"lam must be positive and finite, got -1\.0"),
        ({"max_outer": 0}, "max_outer must be at least 1, got 0"),
        ({"max_inner": 0}, "max_inner must be at least 1, got 0"),
        ({"max_idle": 0}, "max_idle must be at least 1, got 0"),
        ({"max_gradients": 0}, "max_gradients must be positive, got 0"),
        ({"max_seconds": -1.0}, r"max_seconds must be positive, got -1\.0"),
        ({"nu": 1.5}, r"nu must be in \(0, 1\], got 1\.5"),
        ({"nu": 200.0}, r"nu must be in \(0, 1\], got 200\.0"),
        ({"nu": "a"}, "nu must be a number, got 'a'"),
        ({"nu": None}, "nu must be a number, got None"),
        ({"eps_phi": "1"}, "eps_phi must be a number, got '1'"),
        ({"lam": "1"}, "lam must be a number, got '1'"),
        ({"omega": 0.5}, r"omega must be at least 1 and finite, got 0\.5"),
        ({"beta_max": -1.0}, r"beta_max must be positive, got -1\.0"),
        ({"sufficient_decrease": 0.0}, r"sufficient_decrease must be None or in .*, got 0\.0"),
        ({"callback": 3}, "callback must be callable, got 3"),
        ({"sigma": "fast"}, "sigma must be 'penalty' or 'paper', got 'fast'"),
        ({"solver": solvers.PANOC}, "solver must be a solver or a function of beta, got <class"),
        ({"solver": "PANOC"}, "solver must be a solver or a function of beta, got 'PANOC'"),
        ({"x_1": vector(0, 0, torch.inf, 0)}, "x_1 must be finite, got inf"),
        ({"x_1": torch.arange(4)}, "x_1 must have a floating-point dtype, got torch.int64"),
        ({"x_1": [0.0]}, r"x_1 must be a tensor, got \[0\.0\]"),
        ({"x_1": vector()}, r"x_1 must have at least one entry, got shape \(0,\)"),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
    ],
)
def test_wrong_settings_raise_before_any_work(settings: dict[str, Any], message: str) -> None:
    settings, before = {"x_1": KNOWN.x_1, **settings}, replace(KNOWN.problem.oracle.calls)
    with pytest.raises((TypeError, ValueError), match=message):
        power_alm(KNOWN.problem, settings.pop("x_1"), **settings)
    assert KNOWN.problem.oracle.calls == before


STATE = {"y": vector(0, 0), "beta": 1.0, "k": 1, "start_norm": 1.0, "last_norm": 1.0, "tol": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"y_1": vector(1)}, r"y_1 must have shape \(2,\), got \(1,\)"),
        ({"y_1": vector(1, torch.nan)}, "y_1 must be finite, got nan"),
        ({"y_1": [0.0]}, r"y_1 must be a tensor, got \[0\.0\]"),
        ({"y_1": vector(0, 0), "state": STATE}, "y_1 must be None where state is given"),
        ({"state": {}}, r"state must be that of a Solution, got none of its \['y', 'beta'"),
        ({"state": {**STATE, "y": vector(1)}}, r"state must have y of shape \(2,\), got \(1,\)"),
        ({"state": {**STATE, "beta": math.nan}}, "must have a positive and finite beta, got nan"),
        ({"solver": lambda beta: None}, "solver must be a function of beta that returns a solver"),
    ],
)
def test_what_does_not_fit_the_problem_raises(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        power_alm(KNOWN.problem, KNOWN.x_1, **settings)


def test_something_else_than_a_problem_raises() -> None:
    with pytest.raises(TypeError, match="problem must be a Problem, got 3"):
        power_alm(3, KNOWN.x_1)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", [solvers.PANOC(), solvers.AcceleratedGradient()])
def test_a_certificate_that_is_not_a_number_is_none(solver: solvers.Solver) -> None:
    # The prox hits the minimiser 0, where ∇‖x‖ is 0/0.
    problem = Problem(
        lambda x: x.square().sum().sqrt(), equality=lambda x: x[:1] - x[1:2], g=prox.L1(1.0)
    )
    solution = power_alm(problem, vector(1, 2, 3), solver=solver)
    assert solution.status in (Status.NOT_FINITE, Status.STALLED)
    assert math.isfinite(solution.residuals.dual)


def test_functions_so_small_that_squares_vanish_raise_nothing() -> None:
    n, scale = 5000, 1e-18
    d = torch.linspace(1, 10, n, dtype=torch.float64)
    a = torch.ones_like(d) / n**0.5
    problem = Problem(
        lambda x: scale * (d * (x - 2).square()).sum(),
        equality=lambda x: scale * (a @ x - 1).reshape(1),
    )
    x_1 = torch.rand(n, generator=torch.Generator().manual_seed(0)).to(d)
    solution = power_alm(problem, x_1, eps_phi=1e-3 * scale, eps_A=1e-3 * scale, max_gradients=500)
    assert solution.x.isfinite().all()


def test_the_time_of_a_run_bounds_its_search_for_a_feasible_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def slow(x: Tensor) -> Tensor:
        nonlocal now
        now += 0.1
        last = 1 + 0.1 * x.square().sum().reshape(1)
        return torch.cat([100 * (x[1:] - x[:-1] ** 2), 1 - x[:-1], last])

    monkeypatch.setattr("torch_powalm.outlook.Budget.seconds", property(lambda self: now))
    x_1 = -torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    solution = power_alm(Problem(lambda x: x.sum(), equality=slow), x_1, max_seconds=33.0)
    assert solution.status is Status.BUDGET
    assert now <= 40.0


def test_an_interrupt_after_the_end_does_not_change_the_status() -> None:
    def stop(record: OuterRecord, x: Tensor) -> None:
        if record.primal_residual <= 1e-4 and record.dual_residual <= 1e-4:
            raise KeyboardInterrupt

    assert power_alm(KNOWN.problem, KNOWN.x_1, callback=stop).status is Status.CONVERGED


def test_multipliers_of_inequalities_must_not_be_negative() -> None:
    known = PROBLEMS["active inequality"]
    with pytest.raises(ValueError, match=r"y_1 must be nonnegative for inequalities, got -1\.0"):
        power_alm(known.problem, known.x_1, y_1=vector(-1))


def test_residuals_of_a_multiplier_of_another_size_raise() -> None:
    with pytest.raises(ValueError, match="constraints have 2 entries, multiplier has 3"):
        KNOWN.problem.residuals(KNOWN.x_1, vector(1, 2, 3))


def test_a_point_with_a_feasible_neighbour_is_not_stuck() -> None:
    problem = Problem(lambda x: x.sum(), inequality=lambda x: -x)
    assert not is_stuck(problem, vector(-1e-4), 1.0)
    square = Problem(lambda x: x.sum(), equality=lambda x: x * x + 1)
    assert is_stuck(square, vector(0), 1.0)


def test_restoring_returns_the_feasible_trial_point_that_ended_it() -> None:
    problem = Problem(lambda x: x.sum(), inequality=lambda x: 1 - x, g=prox.Box(-5.0, 5.0))
    restored = restore(problem, vector(-4, 3), 5.0, 1e-4, 100)
    assert restored is not None
    assert restored.feasible
    assert restored.x.min() >= 1 - 1e-4
    assert problem.g.value(restored.x) == 0


@pytest.mark.parametrize("nu", [0.7, 0.8, 1.0])
def test_a_multiplier_of_an_inactive_inequality_falls_before_the_penalty(nu: float) -> None:
    # y_1 is wrong for the first entry: no primal violation, and yet nothing to hold on to.
    problem = Problem(
        lambda x: ((x - vector(-1, 2)) ** 2).sum(), inequality=lambda x: x - vector(0, 1)
    )
    solution = power_alm(problem, vector(0, 0), nu=nu, y_1=vector(50, 0))
    assert solution.status is Status.CONVERGED
    torch.testing.assert_close(solution.x, vector(-1, 1), rtol=0, atol=1e-3)
    assert min(record.beta for record in solution.records) > 0.01 * solution.records[0].beta


def test_a_random_qp_whose_inequalities_are_met_early_converges() -> None:
    task = families.task("QP", 7, "as it is")
    solution = power_alm(task.plain(), task.x_1, nu=0.8)
    assert solution.status is Status.CONVERGED
    assert solution.gradient_calls <= 1_000


@pytest.mark.parametrize("bound", [{"max_outer": 2}, {"max_gradients": 5}])
def test_a_bound_that_is_reached_does_not_hide_that_the_start_is_a_solution(
    bound: dict[str, int],
) -> None:
    c, M, b = random_data()
    problem = Problem(Quadratic(c), equality=Affine(M, b))
    known = power_alm(problem, torch.zeros_like(c), eps_phi=1e-8, eps_A=1e-8)
    away = power_alm(problem, known.x, sigma="paper", beta_1=1e-3, omega=1.1, lam=1e-3, **bound)
    assert away.records[-1].primal_residual > 0.1
    assert away.status is Status.CONVERGED
    torch.testing.assert_close(away.x, known.x)
    assert problem.residuals(away.x, away.y).dual <= 1e-4


def test_a_run_goes_on_while_it_gets_nearer_to_a_start_that_was_better() -> None:
    c, M, b = random_data()
    problem = Problem(Quadratic(c), equality=Affine(M, b))
    known = power_alm(problem, torch.zeros_like(c), eps_phi=1e-6, eps_A=1e-6)
    near = known.x + 1e-4
    slow = power_alm(problem, near, sigma="paper", sigma_1=0.0, beta_1=1e-3, omega=1.3, lam=1e-3)
    assert slow.status is Status.CONVERGED
    assert slow.records[-1].beta > 1e4 * slow.records[0].beta
