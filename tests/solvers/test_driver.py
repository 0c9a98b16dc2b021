"""The loop that runs every solver: statuses and the iterate it keeps."""

import math

import pytest
import torch

from tests.solvers.smooth_functions import separable
from torch_powalm import prox
from torch_powalm.result import Status
from torch_powalm.solvers import PANOC, Iterate, run


def test_statuses_of_the_driver():
    _, c, psi = separable()
    start = torch.zeros_like(c)
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 3

    out = run(PANOC(), psi, prox.Zero(), start, tol=1e-8, max_iter=2)
    assert (out.status, out.iterations) == (Status.MAX_ITER, 2)
    assert out.residual == pytest.approx(float(torch.linalg.vector_norm(psi.grad(out.x))))
    out = run(PANOC(), psi, prox.Zero(), start, tol=1e-8, max_iter=99, stop=stop)
    assert (out.status, out.iterations) == (Status.BUDGET, 3)
    # below the rounding of ∇ψ: no progress possible
    out = run(PANOC(), psi, prox.Box(-0.5, 0.5), start, tol=1e-300, max_iter=100000)
    assert out.status in (Status.STALLED, Status.CONVERGED)
    assert out.iterations < 500


class Scripted:
    """A solver that shows given iterates."""

    def __init__(self, *iterates):
        self.iterates = iterates

    def iterate(self, psi, g, x, tol):
        yield from self.iterates


def test_only_a_certified_residual_ends_a_run():
    _, c, psi = separable()
    estimate = Iterate(c, 1e-12, 0.0, certified=False)
    out = run(Scripted(estimate), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9)
    assert (out.status, out.iterations) == (Status.STALLED, 1)
    out = run(
        Scripted(estimate, Iterate(c, 1e-9, 0.0)), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9
    )
    assert (out.status, out.iterations) == (Status.CONVERGED, 2)


def test_last_finite_iterate_is_kept_unless_the_start_is_better():
    _, c, psi = separable()
    good, bad = Iterate(c + 0.1, 1.0, 0.0), Iterate(c + 9, 1.0, 0.0)
    lost = Iterate(c * math.nan, math.nan, 0.0)
    out = run(Scripted(good, lost), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9)
    assert out.status is Status.NOT_FINITE
    assert torch.equal(out.x, c + 0.1)
    out = run(Scripted(bad, lost), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9)
    assert torch.equal(out.x, c + 1)


def test_a_run_stalls_after_a_hundred_iterations_without_progress():
    _, c, psi = separable()
    still = [Iterate(c + 0.1, 1.0, 3.0)] * 1000
    out = run(Scripted(*still), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=1000)
    assert (out.status, out.iterations) == (Status.STALLED, 1 + 100)
    # a smaller residual or another merit begins anew
    for better in (Iterate(c + 0.1, 0.5, 3.0), Iterate(c + 0.1, 1.0, 2.0)):
        iterates = [*still[:60], better, *[better] * 1000]
        out = run(Scripted(*iterates), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=1000)
        assert (out.status, out.iterations) == (Status.STALLED, 61 + 100)
