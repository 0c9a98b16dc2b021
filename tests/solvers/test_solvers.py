"""Every solver on problems with known solutions: calls, types, memory."""

import gc
import math
from itertools import islice

import pytest
import torch

from tests.solvers.smooth_functions import (
    F64,
    NONCONVEX,
    SEPARABLE,
    SOLVERS,
    Counted,
    power_term,
    rosenbrock,
    separable,
)
from torch_powalm import prox
from torch_powalm.result import Status
from torch_powalm.solvers import PANOC, AcceleratedGradient, FromTorch, run


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("row", SEPARABLE)
def test_known_solution_is_found_within_the_calls_stated(name, row):
    (solver, tol, calls), (g, solution) = SOLVERS[name], SEPARABLE[row]
    h, c, psi = separable()
    start = torch.full_like(c, 0.4)
    kept = start.clone()
    result = run(solver, psi, g, start, tol=tol, max_iter=5000)
    assert result.status is Status.CONVERGED
    assert psi.calls <= calls
    assert torch.equal(start, kept)
    # ψ is 1-strongly convex, so the distance is at most the residual
    assert torch.linalg.vector_norm(result.x - solution(h, c)) <= tol
    assert g.distance(result.x, psi.grad(result.x)) <= 1.01 * result.residual + 1e-12


@pytest.mark.parametrize("name", SOLVERS)
def test_float32_and_the_shape_are_kept(name):
    h, c, psi = separable(torch.float32)
    psi = Counted(lambda x: psi_flat(x.view(-1)), lambda x: (h * (x.view(-1) - c)).view(5, 6))

    def psi_flat(x):
        return 0.5 * (h * (x - c) ** 2).sum()

    start = torch.zeros(5, 6)
    result = run(SOLVERS[name][0], psi, prox.Box(-0.5, 0.5), start, tol=1e-3, max_iter=3000)
    assert result.status is Status.CONVERGED
    assert result.x.dtype is torch.float32
    assert torch.linalg.vector_norm(result.x.view(-1) - c.clamp(-0.5, 0.5)) <= 1e-3 + 1e-5


# In the box x_1 ≤ ½ the valley x_2 = x_1² ends at (½, ¼), where ∂_2 ψ = 0 and ∂_1 ψ = −1 < 0.
@pytest.mark.parametrize("name", NONCONVEX)
def test_nonconvex_valley_with_an_active_bound(name):
    psi = rosenbrock()
    start = torch.tensor([-1.2, 1.0], dtype=F64)
    result = run(SOLVERS[name][0], psi, prox.Box(-2.0, 0.5), start, tol=1e-6, max_iter=20000)
    assert result.status is Status.CONVERGED
    # λ_min of the Hessian on the free coordinate is 200
    assert (result.x - torch.tensor([0.5, 0.25], dtype=F64)).abs().max() <= 1e-6


@pytest.mark.parametrize("nu", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("beta", [1.0, 1e2, 1e4])
def test_panoc_reaches_a_solution_beside_the_kink(nu, beta):
    psi, solution = power_term(beta, nu)
    start = torch.zeros_like(solution)
    result = run(PANOC(), psi, prox.Zero(), start, tol=1e-4, max_iter=500)
    assert result.status is Status.CONVERGED
    # ψ is 1-strongly convex
    assert torch.linalg.vector_norm(result.x - solution) <= 1e-4
    assert psi.calls <= 60


@pytest.mark.parametrize("name", ["panoc", "spectral", "upfag", "accelerated", "adaptive"])
def test_start_on_the_kink_ends_without_nan(name):
    psi, solution = power_term(1e4, 0.4)
    b = solution  # closer to b than rounding
    result = run(SOLVERS[name][0], psi, prox.Zero(), b, tol=1e-10, max_iter=300)
    assert result.x.isfinite().all()
    assert psi.calls <= 40 * 300


# Backtracks included: UPFAG makes 3 calls per iteration without them, and with them 3.7 or 3.8 as
# the rounding of the processor has it.
@pytest.mark.parametrize(
    ("name", "per_iteration"),
    [("panoc", 1.3), ("spectral", 1.3), ("fast_gradient", 1.1), ("adaptive", 1.2), ("upfag", 4.2)],
)
def test_gradients_are_passed_on(name, per_iteration):
    _, c, psi = separable()
    result = run(SOLVERS[name][0], psi, prox.L1(0.3), torch.ones_like(c), tol=1e-6, max_iter=500)
    assert psi.calls <= per_iteration * result.iterations + 2
    # Whatever the backtracks: no gradient is asked for twice, but where two trials coincide.
    assert psi.gradients <= len(psi.points) + 2


def test_certificate_costs_one_gradient_when_it_holds():
    _, c, psi = separable(condition=1.0)
    result = run(
        AcceleratedGradient(step=0.5), psi, prox.Zero(), torch.zeros_like(c), tol=1e-6, max_iter=99
    )
    assert psi.gradients == result.iterations + 1


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "LBFGS"])
def test_torch_optimizers_descend(optimizer):
    _, c, psi = separable(condition=4.0)
    solver = FromTorch(getattr(torch.optim, optimizer), lr=0.1)
    result = run(solver, psi, prox.Zero(), torch.zeros_like(c), tol=1e-3, max_iter=2000)
    assert psi.f(result.x) < 1e-3 * psi.f(torch.zeros_like(c))


def test_fixed_step_that_diverges_ends_not_finite_with_a_point_no_worse_than_the_start():
    _, c, psi = separable()
    start = torch.zeros_like(c)
    result = run(AcceleratedGradient(step=1.0), psi, prox.Zero(), start, tol=1e-8, max_iter=5000)
    assert result.status is Status.NOT_FINITE
    assert psi.f(result.x) <= psi.f(start)


@pytest.mark.parametrize("name", SOLVERS)
def test_nan_everywhere_ends_not_finite_or_stalled(name):
    psi = Counted(lambda x: math.nan, lambda x: torch.full_like(x, math.nan))
    start = torch.ones(3, dtype=F64)
    result = run(SOLVERS[name][0], psi, prox.Zero(), start, tol=1e-8, max_iter=50)
    assert result.status in (Status.NOT_FINITE, Status.STALLED)
    assert result.x.isfinite().all()


@pytest.mark.parametrize("name", NONCONVEX)
def test_infinite_values_beyond_a_wall_are_backed_off(name):
    # −log x: inf or nan for x ≤ 0; minimizer of −log x + x is 1
    def value(x):
        return (x - x.log()).sum() if (x > 0).all() else math.inf

    psi = Counted(value, lambda x: torch.where(x > 0, 1 - 1 / x, math.nan))
    start = torch.tensor([1e-2, 30.0], dtype=F64)
    result = run(SOLVERS[name][0], psi, prox.Zero(), start, tol=1e-7, max_iter=20000)
    assert result.status is Status.CONVERGED
    assert (result.x - 1).abs().max() <= 1e-6


@pytest.mark.parametrize("name", SOLVERS)
def test_tensors_alive_do_not_grow_over_iterations(name):
    def alive():
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    _, c, psi = separable(condition=1e4)
    iterates = SOLVERS[name][0].iterate(psi, prox.Box(-0.5, 0.5), torch.zeros_like(c), 1e-14)
    # a proximal point takes hundreds of inner iterations
    first, more = (5, 10) if name.startswith("proximal_point") else (50, 200)
    assert len(list(zip(range(first), (None for _ in iterates), strict=False))) == first
    before = alive()
    for _ in islice(iterates, more):
        pass
    assert alive() <= before + 20
