"""Settings that make a run the paper's: its stop, its inner solvers and its random problems."""

import math
from itertools import islice

import pytest
import torch

from experiments.problems import deterministic, instances
from experiments.suboptimality import suboptimality_stop
from torch_powalm import Status, power_alm, solvers

QP = {"n": 15, "m": 3, "eigenvalues": math.sqrt(50), "q": math.sqrt(2), "norm": "spectral"}
PAPER = {"sigma": "sqrt", "active_set": False, "least_squares": False, "max_idle": None}


def test_a_gevp_stops_on_violation_and_suboptimality():
    instance = instances.gevp(0, 30, 0.5)
    stop = suboptimality_stop("suboptimality", instance, 1e-3)
    settings = {"beta_1": 0.01, "omega": 3.0, "lam": 1.0, "eps_phi": 1e-12, "eps_A": 1e-3}
    solution = power_alm(instance.problem, instance.x_1, **PAPER, **settings, callback=stop)
    assert solution.status is Status.INTERRUPTED
    end = stop.end.solution(solution)
    assert end.converged
    assert abs(end.objective - instance.f_star) <= 1e-3
    r = instance.problem.oracle.at(end.x).r
    assert end.residuals.primal == pytest.approx(abs(r.item()))
    assert end.residuals.dual == solution.records[-1].dual_residual
    for record in solution.records[:-1]:
        assert record.primal_residual > 1e-3 or abs(record.objective - instance.f_star) > 1e-3
    assert {record.multiplier for record in solution.records} == {"weight"}


def test_a_stop_must_be_known_and_possible():
    instance = instances.qp(0, **QP)
    assert suboptimality_stop("residuals", instance, 1e-3) is None
    with pytest.raises(ValueError, match=r"^stop must be 'residuals' or 'suboptimality', got 'f'$"):
        suboptimality_stop("f", instance, 1e-3)
    with pytest.raises(ValueError, match=r"^stop must be 'residuals' where f"):
        suboptimality_stop("suboptimality", instance, 1e-3)


def test_the_generator_of_qps_has_the_deviations_and_the_norm_that_it_is_given():
    small, _, _ = deterministic.qp_parts(0, 40, 5, eigenvalues=7.0, q=1.0)
    large, _, _ = deterministic.qp_parts(0, 40, 5, eigenvalues=14.0, q=3.0)
    torch.testing.assert_close(large.Q, 2 * small.Q)
    torch.testing.assert_close(large.q, 3 * small.q)
    other, _, _ = deterministic.qp_parts(0, 40, 5, eigenvalues=7.0, q=1.0, norm="frobenius")
    ratio = (other.Q / small.Q).flatten()
    assert ratio[0] < 0.5  # the Frobenius norm is larger
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio))
    with pytest.raises(ValueError, match=r"^norm must be 'spectral' or 'frobenius', got 'max'$"):
        deterministic.qp_parts(0, 40, 5, norm="max")


@pytest.mark.parametrize("name", ["proximal point", "upfag", "last", "curvature"])
def test_the_papers_inner_solvers_reach_its_tolerances(name):
    """Within three thousand gradients; first trials that grow all the time took 60,000 and more."""
    instance = instances.qp(1, **QP)
    solver = {
        "proximal point": lambda: instances.qp_proximal_point(seed=1, **QP),
        "upfag": lambda: solvers.UPFAG(point="x_bar"),
        "last": lambda: solvers.UPFAG(point="x_bar", trial="last"),
        "curvature": lambda: instances.qp_upfag(point="x_bar", seed=1, **QP),
    }[name]()
    nu = 1.0 if name == "curvature" else 0.8  # 1/(‖Q‖ + β‖C‖²) is too long at a kink
    settings = {"beta_1": 5.0, "omega": 1.1, "lam": 1e-2, "nu": nu, "scale": False}
    settings |= {"eps_phi": 1e-3, "eps_A": 1e-3, "max_gradients": 3000}
    solution = power_alm(instance.problem, instance.x_1, solver=solver, **PAPER, **settings)
    assert solution.converged
    assert {record.inner_status for record in solution.records} == {Status.CONVERGED}
    assert {record.multiplier for record in solution.records} == {"weight"}
    sigmas = [record.sigma for record in solution.records]
    assert sigmas == pytest.approx([10 / math.sqrt(k + 1) for k in range(1, len(sigmas) + 1)])


def test_rho_is_the_norm_of_q_and_both_tests_of_the_paper_must_hold():
    f, _, _ = deterministic.qp_parts(1, **QP)
    solver = instances.qp_proximal_point(seed=1, **QP)
    assert solver.rho == pytest.approx(float(torch.linalg.eigvalsh(f.Q).abs().max()))
    instance = instances.qp(1, **QP)
    tol, center = 1e-2, instance.x_1

    class Psi:
        def value(self, x):
            return f.value_and_grad(x)[0]

        def value_and_grad(self, x):
            return f.value_and_grad(x)

    found = None
    for found in islice(solver.iterate(Psi(), instance.problem.g, center, tol), 50):
        moved = 2 * solver.rho * float((found.x - center).norm())
        assert (found.residual <= tol) <= (moved <= tol / 2)
        assert found.residual >= 2 * moved * (1 - 1e-12)
        center = found.x
        if found.residual <= tol:
            break
    assert found.residual <= tol


def test_last_trials_never_grow():
    instance = instances.qp(1, **QP)
    tried = {"first": [], "second": []}

    class Watched(solvers.UPFAG):
        def _first_search(self, psi, g, x, x_ag, lambda_hat, lambda_sum, shortest):
            tried["first"].append(lambda_hat)
            return super()._first_search(psi, g, x, x_ag, lambda_hat, lambda_sum, shortest)

        def _second_search(self, psi, g, x_ag, beta_hat, k, shortest):
            tried["second"].append(beta_hat)
            return super()._second_search(psi, g, x_ag, beta_hat, k, shortest)

    solver = Watched(step_1=10.0, trial="last")
    power_alm(instance.problem, instance.x_1, solver=solver, beta_1=1.0, max_outer=1, max_inner=50)
    for steps in tried.values():
        assert steps == sorted(steps, reverse=True)
        assert steps[0] == 10.0 > steps[-1]


def test_a_first_trial_that_stays_is_tried_in_every_iteration():
    instance = instances.qp(1, **QP)
    seen = []

    class Watched(solvers.UPFAG):
        def _second_search(self, psi, g, x_ag, beta_hat, k, shortest):
            seen.append(beta_hat)
            return super()._second_search(psi, g, x_ag, beta_hat, k, shortest)

    solver = Watched(step_1=0.01, trial="first")
    power_alm(instance.problem, instance.x_1, solver=solver, beta_1=1.0, max_outer=1, max_inner=9)
    assert len(seen) == 9
    assert set(seen) == {0.01}
