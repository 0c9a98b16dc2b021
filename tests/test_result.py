"""Residuals, records and their plot."""

from __future__ import annotations

import sys

import pytest

from tests.problems import KNOWN, vector
from torch_powalm import Status, prox, solvers
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem


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


def test_without_inequalities_their_residuals_are_zero() -> None:
    problem = Problem(lambda x: x.sum(), equality=lambda x: x[:1] - 3)
    assert problem.residuals(vector(0, 0), vector(0)) == (3.0, 0.0, 2**0.5, 0.0)


def test_the_dual_residual_is_the_larger_of_stationarity_and_complementarity() -> None:
    problem = Problem(lambda x: -2 * x.sum(), inequality=lambda x: x - 3)
    # At 0 with y = 2 the point is stationary, and the inequality is far from active.
    assert problem.residuals(vector(0), vector(2)).stationarity == 0
    assert problem.residuals(vector(0), vector(2)).dual == 6
    # At 3 with y = 0 it is the other way round.
    assert problem.residuals(vector(3), vector(0)).complementarity == 0
    assert problem.residuals(vector(3), vector(0)).dual == 2


def test_a_stationary_point_that_is_not_complementary_is_no_solution() -> None:
    problem = Problem(lambda x: -2 * x.sum(), inequality=lambda x: x - 3, g=prox.Box(-5.0, 5.0))
    still = solvers.AcceleratedGradient(step=1e-12)
    settings = {"solver": still, "beta_1": 1e-9, "max_inner": 1, "max_outer": 1, "lam": 1e-3}
    solution = power_alm(problem, vector(0), y_1=vector(2), **settings)
    assert solution.residuals.stationarity < 1e-6
    assert solution.records[-1].dual_residual > 1
    assert solution.status is Status.MAX_OUTER


def test_a_negative_multiplier_counts_where_its_inequality_is_active() -> None:
    problem = Problem(lambda x: 5 * x.sum(), inequality=lambda x: x)
    residuals = problem.residuals(vector(0), vector(-5))  # y B = 0, and nothing else is wrong
    assert residuals == (0.0, 0.0, 0.0, 5.0)
    assert residuals.dual == 5


def test_records_print_and_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
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
