"""The table of proximal terms, with slow twins of their operators."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Generator, Tensor
from torch.linalg import vector_norm

from torch_powalm.prox import (
    L1,
    Affine,
    Ball,
    Box,
    L2Group,
    NonNegative,
    NonNegativeBall,
    NuclearNorm,
    Proximable,
    SecondOrderCone,
    Separable,
    Simplex,
    SpectralNormBall,
    Zero,
)

INF = math.inf


TOL = {torch.float64: 1e-12, torch.float32: 1e-5}


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def vec(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def randn(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def rand(generator: Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


# Slow twins of the proximal operators: an optimality condition solved by bisection, or brute force.


def bisect(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function, to the last bit."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return high


def box_prox(v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    triples = zip(*(t.expand_as(v).flatten().tolist() for t in (lower, v, upper)), strict=True)
    return vec(*(sorted(triple)[1] for triple in triples)).reshape(v.shape)


def ball_prox(v: Tensor, radius: float) -> Tensor:
    """v/(1 + λ) with the multiplier λ ≥ 0 of the constraint."""
    lam = bisect(lambda lam: radius - float(vector_norm(v / (1 + lam))), 0.0, 1e6)
    return v / (1 + lam) if vector_norm(v) > radius else v


def simplex_prox(v: Tensor, total: float) -> Tensor:
    entries = v.flatten().tolist()
    tau = bisect(
        lambda tau: total - math.fsum(max(a - tau, 0.0) for a in entries),
        min(entries) - total,
        max(entries),
    )
    return (v - tau).clamp(min=0)


def l1_prox(v: Tensor, t: float) -> Tensor:
    """The best of the three candidates for the minimum of t|u| + (u − v)²/2."""

    def entry(a: float) -> float:
        return min((0.0, a - t, a + t), key=lambda u: t * abs(u) + (u - a) ** 2 / 2)

    return vec(*(entry(a) for a in v.flatten().tolist())).reshape(v.shape)


def group_prox(v: Tensor, t: float) -> Tensor:
    """Columns c v_j with c ≥ 0 the minimum of t c ‖v_j‖ + (c − 1)²‖v_j‖²/2."""
    x = v.clone()
    for column in x.reshape(x.shape[0], -1).T:
        n = float(vector_norm(column))
        column *= max(bisect(lambda c, n=n: t + (c - 1) * n, -1e3, 2.0), 0.0)
    return x


def nuclear_prox(v: Tensor, t: float) -> Tensor:
    lam, V = torch.linalg.eigh(v.T @ v)
    return v @ V @ (1 - t / lam.clamp(min=1e-30).sqrt()).clamp(min=0).diag() @ V.T


def spectral_prox(v: Tensor, radius: float) -> Tensor:
    lam, V = torch.linalg.eigh(v.T @ v)
    return v @ V @ (radius / lam.clamp(min=1e-30).sqrt()).clamp(max=1).diag() @ V.T


def cone_prox(v: Tensor) -> Tensor:
    """The best u for a given x_0 is v_u cut to length x_0; x_0 minimizes what is left."""
    x = v.clone()
    for row in x:
        head, n = float(row[0]), float(vector_norm(row[1:]))
        row[0] = max(bisect(lambda t, h=head, n=n: (t - h) - max(n - t, 0.0), -1e3, 1e3), 0.0)
        row[1:] *= min(1.0, float(row[0]) / n)
    return x


def affine_prox(v: Tensor) -> Tensor:
    x = v.flatten()
    return (x - torch.linalg.pinv(MATRIX) @ (MATRIX @ x - RHS)).reshape(v.shape)


# Points of dom g, made without the prox; about half of them on a face.


def in_ball(generator: Generator, radius: float, *shape: int) -> Tensor:
    x = randn(generator, *shape)
    return x * radius * (2 * torch.rand((), generator=generator)).clamp(max=1.0) / vector_norm(x)


def in_spectral_ball(generator: Generator, radius: float, *shape: int) -> Tensor:
    U, sigma, Vt = torch.linalg.svd(randn(generator, *shape), full_matrices=False)
    return (U * radius * (2 * rand(generator, len(sigma))).clamp(max=1.0)) @ Vt


def in_simplex(generator: Generator, total: float, *shape: int) -> Tensor:
    x = (rand(generator, *shape) - 0.5).clamp(min=0)
    x[..., 0] += 0.1
    return total * x / x.sum(-1, keepdim=True)


def in_cone(generator: Generator, *shape: int) -> Tensor:
    x = randn(generator, *shape)
    x[..., 0] = vector_norm(x[..., 1:], dim=-1) * (1 + rand(generator, *shape[:-1]).round())
    return x


def in_affine(generator: Generator) -> Tensor:
    x = randn(generator, 6)
    x[:2] = RHS - MATRIX[:, 2:] @ x[2:]  # the first two columns are the identity
    return x


LOWER, UPPER = vec(-1.0, -INF, 0.0, 0.5, -INF), vec(1.0, 2.0, INF, 0.5, INF)


CENTER = vec(3.0, -1.0, 0.5, 2.0, 4.0)


MATRIX, RHS = vec(1, 0, 2, 0, -1, 1, 0, 1, 0, 1, 3, 1).reshape(2, 6), vec(1.0, -2.0)


# the third row is the mean of the other two
DEPENDENT = Affine(torch.cat((MATRIX, MATRIX.mean(0)[None])), torch.cat((RHS, RHS.mean(0)[None])))


SEPARABLE = Separable([(slice(4, None), L1(1.0)), (slice(1, 3), Ball(0.8))])


class Row(NamedTuple):
    g: Proximable
    shape: tuple[int, ...]
    prox: Callable[[Tensor, float], Tensor]  # by another road
    sample: Callable[[Generator], Tensor]
    value: Callable[[Tensor], float] | None = None  # None for an indicator
    violation: Callable[[Tensor], float] | None = None  # None for a term that is finite everywhere


TABLE = {
    "zero": Row(Zero(), (2, 3), lambda v, t: v, lambda g: randn(g, 2, 3)),
    "nonnegative": Row(
        NonNegative(),
        (2, 3),
        lambda v, t: box_prox(v, vec(0.0), vec(INF)),
        lambda g: randn(g, 2, 3).abs() * rand(g, 2, 3).round(),
        violation=lambda x: -float(x.min()),
    ),
    "box": Row(
        Box(-0.5, 0.75),
        (3, 1, 2),
        lambda v, t: box_prox(v, vec(-0.5), vec(0.75)),
        lambda g: -0.5 + 1.25 * rand(g, 3, 1, 2),
        violation=lambda x: max(-0.5 - float(x.min()), float(x.max()) - 0.75),
    ),
    "box of tensors": Row(
        Box(LOWER, UPPER),
        (4, 5),
        lambda v, t: box_prox(v, LOWER, UPPER),
        lambda g: LOWER.clamp(min=-3) + rand(g, 4, 5) * (UPPER.clamp(max=3) - LOWER.clamp(min=-3)),
        violation=lambda x: float(torch.maximum(LOWER - x, x - UPPER).max()),
    ),
    "ball": Row(
        Ball(1.5),
        (2, 3),
        lambda v, t: ball_prox(v, 1.5),
        lambda g: in_ball(g, 1.5, 2, 3),
        violation=lambda x: float(vector_norm(x)) - 1.5,
    ),
    "ball with center": Row(
        Ball(0.7, CENTER),
        (1, 5),
        lambda v, t: CENTER + ball_prox(v - CENTER, 0.7),
        lambda g: CENTER + in_ball(g, 0.7, 1, 5),
        violation=lambda x: float(vector_norm(x - CENTER)) - 0.7,
    ),
    # the minimizer of ‖u − v‖²/2 + λ(‖u‖² − radius²)/2 over u ≥ 0 is max(v, 0)/(1 + λ)
    "nonnegative ball": Row(
        NonNegativeBall(1.2),
        (3, 2),
        lambda v, t: ball_prox(v.clamp(min=0), 1.2),
        lambda g: in_ball(g, 1.2, 3, 2).abs() * rand(g, 3, 2).round(),
        violation=lambda x: max(-float(x.min()), float(vector_norm(x)) - 1.2),
    ),
    "simplex": Row(
        Simplex(total=2.0),
        (2, 4),
        lambda v, t: simplex_prox(v, 2.0),
        lambda g: in_simplex(g, 2.0, 8).reshape(2, 4),
        violation=lambda x: max(-float(x.min()), abs(float(x.sum()) - 2.0)),
    ),
    "simplex along dim": Row(
        Simplex(dim=1),
        (2, 5, 3),
        lambda v, t: torch.stack(
            [torch.stack([simplex_prox(row, 1.0) for row in m.T], dim=-1) for m in v]
        ),
        lambda g: in_simplex(g, 1.0, 2, 3, 5).movedim(-1, 1),
        violation=lambda x: max(-float(x.min()), float((x.sum(1) - 1).abs().max())),
    ),
    "l1": Row(
        L1(0.7),
        (2, 4),
        lambda v, t: l1_prox(v, 0.7 * t),
        lambda g: randn(g, 2, 4) * rand(g, 2, 4).round(),
        value=lambda x: 0.7 * math.fsum(abs(a) for a in x.flatten().tolist()),
    ),
    "l2 group": Row(
        L2Group(0.9, dim=0),
        (3, 2, 2),
        lambda v, t: group_prox(v, 0.9 * t),
        lambda g: randn(g, 3, 2, 2) * rand(g, 2, 2).round(),
        value=lambda x: 0.9 * math.fsum(math.hypot(*c) for c in x.reshape(3, 4).T.tolist()),
    ),
    "nuclear norm": Row(
        NuclearNorm(0.8),
        (4, 3),
        lambda v, t: nuclear_prox(v, 0.8 * t),
        lambda g: randn(g, 4, 3),
        value=lambda x: 0.8 * float(torch.linalg.eigvalsh(x.T @ x).clamp(min=0).sqrt().sum()),
    ),
    "spectral norm ball": Row(
        SpectralNormBall(1.1),
        (3, 4),
        lambda v, t: spectral_prox(v, 1.1),
        lambda g: in_spectral_ball(g, 1.1, 3, 4),
        violation=lambda x: float(torch.linalg.eigvalsh(x @ x.T)[-1].sqrt()) - 1.1,
    ),
    "second-order cone": Row(
        SecondOrderCone(),
        (5, 3),
        lambda v, t: cone_prox(v),
        lambda g: in_cone(g, 5, 3),
        violation=lambda x: float((vector_norm(x[:, 1:], dim=-1) - x[:, 0]).max()),
    ),
    "affine": Row(
        Affine(MATRIX, RHS),
        (2, 3),
        lambda v, t: affine_prox(v),
        lambda g: in_affine(g).reshape(2, 3),
        violation=lambda x: float((MATRIX @ x.flatten() - RHS).abs().max()),
    ),
    "affine with dependent rows": Row(
        DEPENDENT,
        (6,),
        lambda v, t: affine_prox(v),
        in_affine,
        violation=lambda x: float((MATRIX @ x - RHS).abs().max()),
    ),
    "separable": Row(
        SEPARABLE,
        (6, 2),
        lambda v, t: torch.cat((v[:1], ball_prox(v[1:3], 0.8), v[3:4], l1_prox(v[4:], t))),
        lambda g: torch.cat((randn(g, 1, 2), in_ball(g, 0.8, 2, 2), randn(g, 3, 2))),
        value=lambda x: float(x[4:].abs().sum()),
        violation=lambda x: float(vector_norm(x[1:3])) - 0.8,
    ),
}


ROWS = pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())


SETS = {name: row for name, row in TABLE.items() if row.violation and not row.value}


def points(row: Row, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, float]]:
    """Arguments (v, step) of the prox: near the kinks, around them, and far away."""
    generator = Generator().manual_seed(0)
    grid = itertools.product((0.3, 1.0, 10.0), (0.25, 2.0), range(4))
    return [((scale * randn(generator, *row.shape)).to(dtype), step) for scale, step, _ in grid]
