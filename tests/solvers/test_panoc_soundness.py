"""PANOC on random polynomials: ψ at its points stays bounded by the start."""

from __future__ import annotations

import math
from itertools import islice

import pytest
import torch
from torch import Tensor

from torch_powalm import prox
from torch_powalm.result import Status
from torch_powalm.solvers import PANOC, panoc, run
from torch_powalm.solvers.prox_gradient import ProxStep

F64 = torch.float64


class Polynomial:
    """f + (β/(ν+1)) ‖A‖^(ν+1) for random polynomials f and A, f with a dominant even power."""

    def __init__(self, seed: int, nu: float) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.n = int(torch.randint(1, 6, (1,), generator=draw))
        degree = int(torch.randint(4, 9, (1,), generator=draw))
        self.even, self.nu = degree + degree % 2, nu
        self.powers = torch.arange(1, degree, dtype=F64)
        self.c, self.a = (
            torch.randn(self.n, degree - 1, dtype=F64, generator=draw) for _ in range(2)
        )
        self.M = torch.randn(2, self.n, dtype=F64, generator=draw)
        self.beta = 10 ** float(4 * torch.rand(1, dtype=F64, generator=draw) - 1)
        self.x_1 = 3 * torch.randn(self.n, dtype=F64, generator=draw)

    def value(self, x: Tensor) -> float:
        return self.value_and_grad(x)[0]

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        terms, slopes = x[:, None] ** self.powers, self.powers * x[:, None] ** (self.powers - 1)
        A = self.M @ (self.a * terms).sum(1) - 1
        A_norm = float(torch.linalg.vector_norm(A))
        f = (self.c * terms).sum() + (x**self.even).sum()
        grad_f = (self.c * slopes).sum(1) + self.even * x ** (self.even - 1)
        pull = (self.a * slopes).sum(1) * (self.M.T @ A)
        stiffness = self.beta * A_norm ** (self.nu - 1) if A_norm > 0 else 0.0
        penalty = self.beta * A_norm ** (self.nu + 1) / (self.nu + 1)
        return float(f) + penalty, grad_f + stiffness * pull


@pytest.mark.parametrize(("newton", "count"), [(0, 500), (200, 100)])
@pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])
@torch.no_grad()
def test_psi_stays_below_its_start(
    nu: float, newton: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[float] = []
    original = panoc._Accepted

    def spy(at_next: ProxStep, s: Tensor, L: float) -> object:
        accepted.append(at_next.psi_x)
        return original(at_next, s, L)

    monkeypatch.setattr(panoc, "_Accepted", spy)
    for seed in range(count):
        psi = Polynomial(seed, nu)
        g = prox.Box(-2.0, 2.5) if seed % 2 else prox.Zero()
        start = g.prox(psi.x_1, 1.0)
        psi_1 = lowest = psi.value(start)
        accepted.clear()
        list(islice(PANOC(newton=newton).iterate(psi, g, start, 1e-6), 1, 40))
        for value in accepted:
            assert math.isfinite(value), seed
            # The margin is ten times the decrease so far.
            assert value <= psi_1 + 10 * (psi_1 - lowest) + 1e-9 * (1 + abs(psi_1)), seed
            lowest = min(lowest, value)


@pytest.mark.parametrize("nu", [0.3, 0.7, 1.0])
def test_it_ends_below_its_start(nu: float) -> None:
    for seed in range(100):
        psi = Polynomial(seed, nu)
        g = prox.Box(-2.0, 2.5) if seed % 2 else prox.Zero()
        start = g.prox(psi.x_1, 1.0)
        result = run(PANOC(newton=200), psi, g, start, tol=1e-4, max_iter=2000)
        assert result.status is not Status.NOT_FINITE, seed
        assert psi.value(result.x) <= psi.value(start), seed
