"""The proximal-point method on functions that are not convex."""

from itertools import islice

import torch

from tests.solvers.smooth_functions import F64, Counted, rosenbrock
from torch_powalm import prox
from torch_powalm.result import Status
from torch_powalm.solvers import ProximalPoint, run


def test_proximal_point_bounds_the_residual_of_psi():
    psi = rosenbrock()
    g = prox.Box(-2.0, 0.5)
    start = torch.tensor([-1.2, 1.0], dtype=F64)
    seen = 0
    for iterate in islice(ProximalPoint().iterate(psi, g, start, 1e-3), 200):
        if iterate.certified:
            seen += 1
            exact = g.distance(iterate.x, psi.grad(iterate.x))
            assert exact <= iterate.residual * (1 + 1e-9) + 1e-12
    assert seen > 0


def test_proximal_point_raises_rho_past_the_concavity():
    # ψ = −x²/2 is 1-weakly convex; ρ = 0.1 at first, for which F is concave
    psi = Counted(lambda x: -0.5 * (x * x).sum(), lambda x: -x)
    result = run(
        ProximalPoint(),
        psi,
        prox.Box(-1.0, 2.0),
        torch.tensor([0.5], dtype=F64),
        tol=1e-8,
        max_iter=1000,
    )
    assert result.status is Status.CONVERGED
    assert result.x.item() == 2.0
