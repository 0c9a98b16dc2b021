"""Outer iterations: callbacks, progress, multipliers and bounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.problems import KNOWN, Affine, Quadratic, random_data, vector
from torch_powalm.result import OuterRecord, Status
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem


def test_a_callback_sees_every_record_and_can_end_the_run() -> None:
    seen: list[OuterRecord] = []

    def callback(record: OuterRecord, x: Tensor) -> bool:
        seen.append(record)
        return len(seen) == 2

    # far more than two iterations
    settings = {"lam": 1e-3, "active_set": False, "eps_phi": 1e-13, "eps_A": 1e-13}
    solution = power_alm(KNOWN.problem, KNOWN.x_1, callback=callback, **settings)
    assert solution.status is Status.INTERRUPTED
    assert solution.records == seen


def test_progress_goes_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    solution = power_alm(KNOWN.problem, KNOWN.x_1, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    *_, last = drawn = captured.err.removesuffix("\n").split("\r")[1:]
    assert len(drawn) == len(solution.records)
    assert last.startswith(f"[{'#' * 20}] {len(solution.records)}: primal ")
    assert f"{solution.records[-1].gradient_calls} gradients" in last


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
    pytest.importorskip("scipy")  # of the ruler of the benchmarks
    from experiments.benchmarks import families

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
    paper = {"sigma": "paper", "beta_1": 1e-3, "omega": 1.1, "lam": 1e-3, "active_set": False}
    away = power_alm(problem, known.x, **paper, **bound)
    assert away.records[-1].primal_residual > 0.1
    assert away.status is Status.CONVERGED
    torch.testing.assert_close(away.x, known.x)
    assert problem.residuals(away.x, away.y).dual <= 1e-4


def test_a_run_goes_on_while_it_gets_nearer_to_a_start_that_was_better() -> None:
    c, M, b = random_data()
    problem = Problem(Quadratic(c), equality=Affine(M, b))
    known = power_alm(problem, torch.zeros_like(c), eps_phi=1e-6, eps_A=1e-6)
    near = known.x + 1e-4
    paper = {"sigma": "paper", "beta_1": 1e-3, "omega": 1.3, "lam": 1e-3, "active_set": False}
    slow = power_alm(problem, near, sigma_1=0.0, **paper)
    assert slow.status is Status.CONVERGED
    assert slow.records[-1].beta > 1e4 * slow.records[0].beta
