"""Solvers against their textbook twins, iterate by iterate."""

import math
from itertools import islice

import pytest
import torch

from tests import reference
from tests.solvers.smooth_functions import F64, Counted, separable
from torch_powalm import prox
from torch_powalm.solvers import PANOC, UPFAG, AcceleratedGradient, FastGradient


def wells():
    """Σ h_i (x_i² − 1)²/4 with 1 ≤ h_i ≤ 100: concave around 0, two minima in every coordinate."""
    h = torch.logspace(0, 2, 6, dtype=F64)
    return Counted(lambda x: (h * (x * x - 1) ** 2).sum() / 4, lambda x: h * (x * x - 1) * x)


@pytest.mark.parametrize(
    ("psi", "start"),
    [(separable()[2], torch.ones(30, dtype=F64)), (wells(), torch.full((6,), 0.02, dtype=F64))],
    ids=["convex", "concave at the start"],
)
def test_upfag_equals_the_textbook(psi, start):
    g = prox.L1(0.3 if len(start) == 30 else 1e-3)
    settings = {"gamma_1": 0.4, "gamma_2": 0.3, "gamma_3": 0.6, "delta": 1e-2, "step_1": 1.0}
    twin = reference.upfag(
        psi.f, psi.grad, lambda x: psi.f(x) + g.value(x), g.prox, start, iterations=20, **settings
    )
    ours = islice(UPFAG(**settings).iterate(psi, g, start, 1e-8), 20)
    for iterate, pair in zip(ours, twin, strict=True):
        point = min(pair, key=lambda x: g.distance(x, psi.grad(x)))
        torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)
        assert iterate.residual == pytest.approx(g.distance(point, psi.grad(point)), rel=1e-6)


@pytest.mark.parametrize("memory", [2, 7])
@pytest.mark.parametrize("g", [prox.Zero(), prox.L1(0.3), prox.Box(-2.0, 2.0)], ids=repr)
def test_panoc_equals_the_textbook(g, memory):
    """Waves on a bowl: some quasi-Newton points gain too little and are refused."""
    h = torch.linspace(1, 10, 5, dtype=F64)
    psi = Counted(
        lambda x: (h * x * x).sum() / 2 + torch.cos(3 * x).sum(),
        lambda x: h * x - 3 * torch.sin(3 * x),
    )
    start = 1.5 * torch.randn(5, dtype=F64, generator=torch.Generator().manual_seed(9))
    twin = reference.panoc(
        psi.f, psi.grad, g.value, g.prox, start, step=0.01, memory=memory, iterations=12
    )
    ours = islice(PANOC(memory=memory, step_1=0.01).iterate(psi, g, start, 1e-8), 12)
    for iterate, point in zip(ours, twin, strict=True):
        torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nu", [0.6, 1.0])
def test_fast_gradient_equals_the_textbook(nu):
    _, c, psi = separable()
    g = prox.Box(-0.5, 0.5)
    settings = {"rho": 1.0, "holder": 120.0, "nu": nu, "delta": 1e-3}
    start = torch.full_like(c, 0.4)
    twin = reference.fast_gradient(
        psi.grad, lambda v: g.prox(v, 1.0), start, iterations=20, **settings
    )
    ours = islice(FastGradient(**settings).iterate(psi, g, start, 1e-8), 20)
    for iterate, point in zip(ours, twin, strict=True):
        torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)


def test_fast_gradient_weights_do_not_overflow():
    # S_k grows like (1 + √(ρ/L))^k: 2^k here, past the largest float after 1100 iterations
    _, c, psi = separable(condition=1.0)
    iterates = FastGradient(rho=1.0, holder=1.0).iterate(psi, prox.Zero(), torch.zeros_like(c), 1.0)
    *_, iterate = islice(iterates, 2000)
    assert math.isfinite(iterate.residual)
    torch.testing.assert_close(iterate.x, c, rtol=1e-12, atol=1e-12)


def test_acceleration_off_is_proximal_gradient_and_on_is_fista():
    _, c, psi = separable()
    g = prox.L1(0.3)
    start = torch.ones_like(c)
    plain = reference.proximal_gradient(psi.grad, g.prox, start, step=0.01, iterations=10)
    fista = reference.accelerated_gradient(psi.grad, g.prox, start, step=0.01, iterations=10)
    off = AcceleratedGradient(step=0.01, momentum=False).iterate(psi, g, start, 1e-8)
    on = AcceleratedGradient(step=0.01, restart=False).iterate(psi, g, start, 1e-8)
    for ours, twin in ((off, plain), (on, fista)):
        for iterate, point in zip(islice(ours, 10), twin, strict=True):
            torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)
