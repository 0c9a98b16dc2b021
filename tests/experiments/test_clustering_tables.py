"""Tables of clusterings over several instances, from made-up runs."""

import pytest

from experiments import clustering_tables as clustering
from experiments import tables
from experiments.run_folder import Run


def made(nu, count, *, seed=0, rule="paper_runs", status="converged", violations=(1.0, 2e-4, 9e-5)):
    scores = {"accuracy": 0.9 + 0.01 * seed, "nmi": 0.8, "ari": 0.7}
    history = [
        {"primal_residual": str(value), "inner_status": "max_iter" if k == 0 else "converged"}
        for k, value in enumerate(violations)
    ]
    run = {
        "run": f"nu={nu}/seed={seed}",
        "config": {"name": "clustering_mnist", "case": "clustering_mnist", "nu": nu, "rule": rule},
        "clusters": {"network_accuracy": 0.97, **scores, "k_means": scores},
        "result": {
            "inner_iterations": count,
            "outer_iterations": len(violations),
            "primal_residual": violations[-1],
            "dual_residual": 5e-5,
            "objective": 41.0,
        },
        "seed": seed,
        "status": status,
        "seconds": 2.0,
    }
    return Run(run, {"history": history})


def test_a_row_has_the_median_and_the_range_over_the_instances():
    runs = [made(1.0, n, seed=seed) for seed, n in enumerate((30_000, 20_400, 10_000))]
    runs.append(made(1.0, 7, seed=3, status="max_outer"))
    (row,) = clustering.powers(runs)
    assert row["converged"] == "3 of 4"
    assert row["iterations, median (range)"] == "20,400 (10,000–30,000)"
    assert (row["paper"], row["ratio"], row["paper's"]) == ("102,000", "0.2", "68")
    assert row["subproblems"] == "3 (3–3)"
    assert row["until ‖A‖ ≤ ε"] == "3 (3–3)"
    assert row["ended by N"] == "1 (1–1)"
    assert row["ends on ‖A‖"] == "3 of 3"


def test_the_dual_steps_are_apart_and_one_run_has_no_range():
    runs = [made(0.7, 10), made(0.7, 20, rule="paper_text"), made(0.65, 30, status="stalled")]
    rows = clustering.powers(runs)
    assert [(row["ν"], row["dual step"]) for row in rows] == [
        ("0.65", "σ_1/√(k+1)"),
        ("0.7", "σ_1/√(k+1)"),
        ("0.7", "Algorithm 1"),
    ]
    assert [row["iterations, median (range)"] for row in rows] == ["–", "10", "20"]


@pytest.mark.parametrize(
    ("case", "nu", "found"),
    [
        ("clustering_mnist", 1.0, "41–50"),
        ("clustering_mnist", 0.7, "1–10"),
        ("clustering_fashion", 1.0, "61–70"),
        ("clustering_mnist", 0.75, "–"),
    ],
)
def test_the_papers_curve_says_among_which_subproblems_the_violation_is_small_enough(
    case, nu, found
):
    assert clustering.papers_until_feasible(case, nu) == found


def test_a_violation_that_rises_again_does_not_count_as_small():
    (row,) = clustering.powers([made(0.7, 10, violations=(1.0, 9e-5, 2e-4, 8e-5, 7e-5))])
    assert row["until ‖A‖ ≤ ε"] == "4"


def test_an_instance_has_the_range_of_its_scores():
    rows = clustering.qualities([made(0.7, 1, seed=1), made(1.0, 2, seed=1), made(0.7, 1, seed=2)])
    assert [(row["instance"], row["runs"], row["accuracy"]) for row in rows] == [
        ("1", "2", "0.910"),
        ("2", "1", "0.920"),
    ]


def test_the_rule_that_is_shown_is_the_first_that_was_run():
    runs = [made(0.7, 1, rule=rule) for rule in ("paper", "paper_text", "ours")]
    assert tables.papers_choice(runs) == runs[:1]
    assert tables.with_rule(runs, "paper_text", "paper") == runs[1:2]
    assert tables.with_rule(runs, "paper_runs") == []
