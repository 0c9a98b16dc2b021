"""Smooth functions that count their calls, and the table of solvers."""

import math

import torch

from torch_powalm import prox
from torch_powalm.solvers import (
    PANOC,
    UPFAG,
    AcceleratedGradient,
    AdaptiveGradient,
    FastGradient,
    FromTorch,
    ProximalPoint,
    Spectral,
)

F64 = torch.float64


class Counted:
    """ψ from a value and a gradient, counting its calls."""

    def __init__(self, value, grad):
        self.f, self.grad = value, grad
        self.values = self.gradients = 0
        self.points = set()  # where it was asked for a gradient

    def value(self, x):
        self.values += 1
        return float(self.f(x))

    def value_and_grad(self, x):
        self.gradients += 1
        self.points.add(tuple(x.reshape(-1).tolist()))
        return float(self.f(x)), self.grad(x)

    @property
    def calls(self):
        return self.values + self.gradients


def separable(dtype=F64, n=30, condition=100.0):
    """½ Σ h_i (x_i − c_i)² with 1 ≤ h_i ≤ condition."""
    generator = torch.Generator().manual_seed(0)
    h = torch.logspace(0, math.log10(condition), n, dtype=dtype)
    c = torch.randn(n, dtype=dtype, generator=generator)
    return h, c, Counted(lambda x: 0.5 * (h * (x - c) ** 2).sum(), lambda x: h * (x - c))


def rosenbrock():
    def value(x):
        return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2

    def grad(x):
        u = x[1] - x[0] ** 2
        return torch.stack((-400 * x[0] * u - 2 * (1 - x[0]), 200 * u))

    return Counted(value, grad)


def power_term(beta, nu, n=10):
    """½‖x − c‖² + β/(1+ν) ‖x − b‖^(1+ν): a kink of the gradient at b.

    Solution x = b + t u, u = (c − b)/‖c − b‖, with t + β t^ν = ‖c − b‖.
    """
    generator = torch.Generator().manual_seed(1)
    b, c = torch.randn(2, n, dtype=F64, generator=generator)

    def grad(x):
        r = x - b
        norm = torch.linalg.vector_norm(r)
        return x - c + (beta * norm ** (nu - 1) * r if norm > 0 else 0.0)

    def value(x):
        norm = torch.linalg.vector_norm(x - b)
        return 0.5 * ((x - c) ** 2).sum() + beta / (1 + nu) * norm ** (1 + nu)

    length = float(torch.linalg.vector_norm(c - b))
    low, high = 0.0, length
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if t + beta * t**nu < length else (low, t)
    return Counted(value, grad), b + low * (c - b) / length


# g, and the minimizer of h/2 (x − c)² + g(x)
SEPARABLE = {
    "zero": (prox.Zero(), lambda h, c: c),
    "box": (prox.Box(-0.5, 0.5), lambda h, c: c.clamp(-0.5, 0.5)),
    "nonnegative": (prox.NonNegative(), lambda h, c: c.clamp(min=0)),
    "l1": (prox.L1(0.3), lambda h, c: c.sign() * (c.abs() - 0.3 / h).clamp(min=0)),
}


# solver, tolerance, and the calls of ψ (values and gradients) it may make on any row of SEPARABLE.
# UPFAG compares values of ψ + g, so that its residual has a floor near √(ε L |ψ|) = 1e-7.
SOLVERS = {
    "panoc": (PANOC(), 1e-8, 160),
    "spectral": (Spectral(), 1e-8, 220),
    "upfag": (UPFAG(), 1e-6, 950),
    "fast_gradient": (FastGradient(rho=1.0, holder=100.0), 1e-8, 290),
    "adaptive": (AdaptiveGradient(), 1e-8, 400),
    "accelerated": (AcceleratedGradient(), 1e-8, 560),
    "accelerated_fixed": (AcceleratedGradient(step=0.01), 1e-8, 340),
    "plain": (AcceleratedGradient(step=0.01, momentum=False), 1e-8, 2400),
    "proximal_point": (ProximalPoint(), 1e-8, 2100),
    "proximal_point_panoc": (ProximalPoint(rho=1.0, inner=PANOC()), 1e-8, 1700),
    "sgd": (FromTorch(torch.optim.SGD, lr=0.01), 1e-8, 2400),
}


NONCONVEX = ("panoc", "spectral", "upfag", "adaptive", "accelerated", "proximal_point")
