"""The paper's claims and tables, from made-up runs."""

from experiments import paper_claims, tables
from experiments.run_folder import Run


def made(name, nu, count, *, seed=0, primal=1e-4, status="converged", method="UPFAG"):
    config = {"name": name, "nu": nu, "case": "qp", "rule": "paper", "method": method}
    result = {"inner_iterations": count, "gradient_calls": 3 * count, "primal_residual": primal}
    result |= {"dual_residual": 1e-5, "objective": -1.0, "f_star": -1.001}
    return Run({"config": config, "result": result, "seed": seed, "status": status, "seconds": 1.0})


def verdicts(runs):
    return [answer.verdict for answer in paper_claims.answers(runs)]


def test_claims_are_answered_from_the_runs():
    good, bad = [], []
    for experiment in ("clustering_mnist", "clustering_fashion"):
        for nu, few, many in ((0.7, 10, 40), (0.8, 20, 30), (1.0, 50, 50)):
            good.append(made(experiment, nu, few))
            bad.append(made(experiment, nu, many))
    for seed in range(10):
        for nu in (0.4, 1.0):
            apgm = {"seed": seed, "method": "AcceleratedGradient"}
            good.append(made("gevp", nu, 10 if nu < 1 else 200, **apgm))
            bad.append(made("gevp", nu, 10 if nu < 1 else 90, **apgm))
        for nu in (0.6, 0.7, 0.8, 0.9, 1.0):
            double, triple = {"seed": seed}, {"seed": seed, "method": "ProximalPoint"}
            cost = 70 if nu == 0.8 else 100
            good.append(made("qp_double", nu, cost * (1 + seed % 2), primal=nu, **double))
            good.append(made("qp_triple", nu, 1000 + seed, primal=nu, **triple))
            bad.append(made("qp_double", nu, 100 + seed, primal=1 / nu, **double))
            bad.append(made("qp_triple", nu, 10 * (1 + seed % 2), primal=1 - nu, **triple))
    assert verdicts(good) == ["yes"] * 8
    assert verdicts(bad) == ["no"] * 8
    nine = [run for run in good if run.run["seed"] < 9 or run.config["name"] != "qp_triple"]
    assert verdicts(nine) == ["yes"] * 8
    said = "qp_triple over 9 of 10 instances"
    partial = [said in answer.evidence for answer in paper_claims.answers(nine)]
    assert partial == [False] * 4 + [True, False, True, True]
    four = [run for run in good if run.run["seed"] < 4]
    assert verdicts(four) == ["yes"] * 2 + ["not run"] * 3 + ["yes"] + ["not run"] * 2
    one = [run for run in good if run.run["seed"] < 1]
    assert verdicts(one) == ["yes"] * 2 + ["not run"] * 6
    holes = [run for run in good if run.config["nu"] != 0.7 or run.config["name"] != "qp_triple"]
    assert verdicts(holes) == ["yes"] * 4 + ["not run", "yes", "not run", "not run"]
    assert verdicts([]) == ["not run"] * 8


def test_a_claim_that_holds_for_some_powers_says_for_which():
    runs = [made("clustering_mnist", nu, n) for nu, n in ((0.7, 40), (0.8, 20), (1.0, 50))]
    assert paper_claims.half(runs, "clustering_mnist", "MNIST").verdict == "for ν = 0.8 only"
    for seed in range(5):
        for nu in (0.6, 0.7, 0.8, 0.9, 1.0):
            runs.append(made("qp_double", nu, 100, seed=seed))
            cost = 200 if nu < 0.65 else 50
            triple = made("qp_triple", nu, cost, seed=seed, method="ProximalPoint")
            runs.append(triple)
    assert paper_claims.slower(runs).verdict == "for 1 of 5 powers"


def test_clusterings_are_answered_over_the_instances_that_have_all_powers():
    counts = {0.7: (10, 20), 0.8: (20, 20), 1.0: (50, 70)}
    runs = [
        made("clustering_mnist", nu, n, seed=seed)
        for nu, of_nu in counts.items()
        for seed, n in enumerate(of_nu)
    ]
    runs.append(made("clustering_mnist", 1.0, 1, seed=2))
    answer = paper_claims.half(runs, "clustering_mnist", "MNIST")
    assert answer.verdict == "yes"
    assert answer.evidence == "ν = 0.7: 15, ν = 0.8: 20, ν = 1: 60; mean of 2"


def test_a_power_that_fails_answers_no_and_shows_as_failing():
    runs = [made("clustering_mnist", nu, 10, status="max_outer") for nu in (0.7, 0.8)]
    runs.append(made("clustering_mnist", 1.0, 100))
    answer = paper_claims.half(runs, "clustering_mnist", "MNIST")
    assert answer.verdict == "no"
    assert "ν = 0.7: not all converged" in answer.evidence
    failed = [made("qp_double", 0.8, 10, seed=seed, status="stalled") for seed in range(2)]
    (row,) = tables.trials(failed, "qp_double")
    assert (row["ours"], row["ratio"], row["converged"]) == ("–", "–", "0 of 2")


def test_a_table_sets_the_mean_beside_the_papers():
    runs = [made("qp_double", 0.8, count, seed=seed) for seed, count in enumerate((100, 300, 200))]
    (row,) = tables.trials(runs, "qp_double")
    assert row["ours"] == "200"
    assert row["paper"] == "61,940"  # the paper's Table 1
    assert row["median (range)"] == "200 (100–300)"
    assert row["ratio"] == "0.0032"
