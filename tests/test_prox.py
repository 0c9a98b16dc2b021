import itertools
import math
import pickle
import re
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


def cone_prox(v: Tensor) -> Tensor:
    """The best u for a given x_0 is v_u cut to length x_0; x_0 minimises what is left."""
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
    # the minimiser of ‖u − v‖²/2 + λ(‖u‖² − radius²)/2 over u ≥ 0 is max(v, 0)/(1 + λ)
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


@ROWS
def test_prox_equals_its_slow_twin(row):
    for v, step in points(row):
        atol = 1e-12 * float(v.abs().max())
        assert torch.allclose(row.g.prox(v, step), row.prox(v, step), rtol=1e-12, atol=atol)


@DTYPES
@ROWS
def test_prox_is_a_zero_of_the_optimality_condition(row, dtype):
    for v, step in points(row, dtype):
        x = row.g.prox(v, step)
        scale = 1.0 + float(vector_norm(v)) / step
        assert row.g.distance(x, (x - v) / step) <= TOL[dtype] * scale


@ROWS
def test_prox_fulfils_the_variational_inequality(row):
    """g(u) ≥ g(x) + ⟨v − x, u − x⟩/step for all u."""
    generator = Generator().manual_seed(1)
    value = row.value or (lambda x: 0.0)
    for v, step in points(row):
        x = row.g.prox(v, step)
        for _ in range(20):
            u = row.sample(generator)
            slope = float(((v - x) * (u - x)).sum()) / step
            assert value(u) >= value(x) + slope - 1e-12 * (1.0 + float(v.square().sum()) / step)


@ROWS
def test_prox_is_firmly_nonexpansive(row):
    for (v, step), (w, _) in itertools.pairwise(points(row)):
        p, q = row.g.prox(v, step), row.g.prox(w, step)
        scale = float(v.square().sum() + w.square().sum())
        assert float((p - q).square().sum()) <= float(((p - q) * (v - w)).sum()) + 1e-13 * scale


@DTYPES
@pytest.mark.parametrize("row", SETS.values(), ids=SETS.keys())
def test_projection_lands_in_the_set_and_stays_there(row, dtype):
    for v, step in points(row, dtype):
        x = row.g.prox(v, step)
        assert row.violation(x.double()) <= TOL[dtype]
        assert row.g.value(x) == 0.0
        assert torch.allclose(row.g.prox(x, step), x, rtol=TOL[dtype], atol=TOL[dtype] / 10)


@DTYPES
@ROWS
def test_value_is_that_of_the_written_out_formula(row, dtype):
    generator = Generator().manual_seed(2)
    for _ in range(10):
        x = row.sample(generator)
        expected = row.value(x) if row.value else 0.0
        assert row.g.value(x.to(dtype)) == pytest.approx(expected, rel=TOL[dtype])


@ROWS
def test_value_and_distance_are_infinite_exactly_outside_the_domain(row):
    outside = 0
    for v, _ in points(row):
        violated = row.violation is not None and row.violation(v) > 1e-12
        outside += violated
        assert (row.g.value(v) == INF) == violated
        assert (row.g.distance(v, torch.ones_like(v)) == INF) == violated
    assert outside >= 12 or row.violation is None


@pytest.mark.parametrize(
    ("g", "x"),
    [
        (Box(0.0, 1.0), vec(0.5, -0.1)),
        (Box(0.0, 1.0), vec(0.5, 1.1)),
        (NonNegativeBall(1.0), vec(0.5, -0.1)),
        (NonNegativeBall(1.0), vec(0.8, 0.8)),
        (Simplex(), vec(1.5, -0.5)),
        (Simplex(), vec(0.5, 0.6)),
        (Simplex(), vec(0.0, 0.0)),
        (Simplex(dim=0), vec(0.5, 0.5)[:, None] * vec(1.0, 1.1)),
        (SecondOrderCone(), vec(-2.0, 1.0, 1.0)),
        (SecondOrderCone(), vec(1.0, 0.0, 1.0, 1.1).reshape(2, 2)),
    ],
)
def test_one_broken_constraint_is_enough_to_be_outside(g, x):
    assert g.value(x) == INF
    assert g.distance(x, torch.ones_like(x)) == INF


@DTYPES
@ROWS
def test_prox_leaves_its_argument_alone_and_keeps_its_type(row, dtype):
    for v, step in points(row, dtype)[::5]:
        for argument in (v, v.clone().requires_grad_(), row.g.prox(v, step)):
            before = argument.detach().clone()
            x = row.g.prox(argument, step)
            assert (x.dtype, x.shape) == (dtype, argument.shape)
            assert x.untyped_storage().data_ptr() != argument.untyped_storage().data_ptr()
            assert torch.equal(argument, before)


@ROWS
def test_terms_read_strided_tensors_and_tensors_that_require_grad(row):
    v, step = points(row)[0]
    strided = torch.stack((v, v + 1), dim=-1)[..., 0]
    x = row.g.prox(v, step)
    assert torch.equal(row.g.prox(strided, step), x)
    with_grad = x.clone().requires_grad_()
    assert row.g.value(with_grad) == pytest.approx(row.g.value(x), rel=1e-12)
    distance = row.g.distance(with_grad, strided.requires_grad_())
    assert distance == pytest.approx(row.g.distance(x, v), rel=1e-12)


def broken(row: Row, bad: float) -> tuple[Tensor, Tensor]:
    x = row.sample(Generator().manual_seed(3)).contiguous()
    y = x.clone()
    y.view(-1)[2] = bad
    return x, y


@pytest.mark.parametrize("name", [name for name in TABLE if name != "zero"])
def test_nan_is_passed_on(name):
    g = TABLE[name].g
    x, y = broken(TABLE[name], math.nan)
    assert g.prox(y, 1.0).isnan().any()
    for number in (g.value(y), g.distance(y, x), g.distance(x, y)):
        assert not math.isfinite(number)


@ROWS
def test_infinite_numbers_do_not_raise(row):
    x, y = broken(row, INF)
    assert row.g.prox(y, 1.0).shape == x.shape
    for number in (row.g.value(y), row.g.distance(y, x), row.g.distance(x, y)):
        assert isinstance(number, float)


# Distances. First the polyhedral subdifferentials, written out as offset + Σ λ_j direction_j with
# bounds on λ_j, and measured by trying every set of active bounds.


class Face(NamedTuple):
    g: Proximable
    x: Tensor
    directions: list[tuple[Tensor, float, float]]  # with the bounds of λ_j
    offset: Tensor | float = 0.0


def unit(x: Tensor, *index: int) -> Tensor:
    e = torch.zeros_like(x)
    e[index] = 1.0
    return e


def rays(x: Tensor, low: float, high: float, *indices: int) -> list[tuple[Tensor, float, float]]:
    return [(unit(x.flatten(), i).reshape(x.shape), low, high) for i in indices]


def simplex_normals(x: Tensor) -> list[tuple[Tensor, float, float]]:
    """s_i = μ on the support, s_i ≤ μ off it, for each row of a matrix x."""
    rows = [(unit(x, j), -INF, INF) for j in range(x.shape[0])]
    return rows + rays(x, -INF, 0.0, *(x == 0).flatten().nonzero().flatten().tolist())


def frame(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(4)
    return (
        torch.linalg.qr(randn(generator, rows, rows))[0],
        torch.linalg.qr(randn(generator, columns, columns))[0],
    )


def faces() -> dict[str, Face]:
    x4 = vec(0.0, 1.0, 0.0, 2.0)
    simplex = vec(0.0, 1.5, 0.0, 0.0, 0.5)
    rows = vec(0.2, 0.8, 0.0, 0.0, 1.0, 0.0).reshape(2, 3)
    sphere = CENTER + 0.7 * vec(0.6, 0.0, -0.8, 0.0, 0.0)
    corner = 1.2 * vec(0.0, 0.6, 0.0, 0.8)
    boundary = vec(1.0, 0.6, 0.8, 5.0, 1.0, 1.0).reshape(2, 3)
    groups = vec(3.0, 0.0, 4.0, -2.0).reshape(2, 2)
    U, V = frame(3, 3)
    weights = vec(2.0, 0.5, 0.0)
    R, _ = frame(2, 2)
    box = vec(-1.0, 2.0, 0.3, 0.5, 9.0)
    affine = in_affine(Generator().manual_seed(5))
    blocks = torch.zeros(6, 2, dtype=torch.float64)
    blocks[1], blocks[5] = vec(0.8, 0.0), vec(0.0, -3.0)
    return {
        "zero": Face(Zero(), x4, []),
        "nonnegative": Face(NonNegative(), x4, rays(x4, -INF, 0, 0, 2)),
        "nonnegative at 0": Face(NonNegative(), 0 * x4, rays(x4, -INF, 0, 0, 1, 2, 3)),
        "nonnegative inside": Face(NonNegative(), x4 + 1, []),
        "box": Face(
            Box(LOWER, UPPER),
            box,
            [*rays(box, -INF, 0, 0), *rays(box, 0, INF, 1), *rays(box, -INF, INF, 3)],
        ),
        "box, other corner": Face(
            Box(LOWER, UPPER),
            vec(1.0, -8.0, 0.0, 0.5, 0.0),
            [*rays(box, 0, INF, 0), *rays(box, -INF, 0, 2), *rays(box, -INF, INF, 3)],
        ),
        "box of a float and a tensor": Face(
            Box(-1.0, vec(-1.0, 2.0, 3.0, 4.0)),
            vec(-1.0, -1.0, 3.0, 0.0),
            [*rays(x4, -INF, INF, 0), *rays(x4, -INF, 0, 1), *rays(x4, 0, INF, 2)],
        ),
        "ball on the sphere": Face(Ball(0.7, CENTER), sphere, [(sphere - CENTER, 0, INF)]),
        "ball inside": Face(Ball(0.7, CENTER), CENTER + 0.1, []),
        "ball at its center": Face(Ball(0.7, CENTER), CENTER, []),
        "nonnegative ball, corner": Face(
            NonNegativeBall(1.2), corner, [(corner, 0, INF), *rays(corner, -INF, 0, 0, 2)]
        ),
        "nonnegative ball, on the sphere": Face(
            NonNegativeBall(4.0), 2 + 0 * x4, [(torch.ones_like(x4), 0, INF)]
        ),
        "nonnegative ball, on an axis": Face(
            NonNegativeBall(3.0),
            3 * unit(x4, 1),
            [*rays(x4, 0, INF, 1), *rays(x4, -INF, 0, 0, 2, 3)],
        ),
        "nonnegative ball, on a coordinate plane": Face(
            NonNegativeBall(9.0), x4, rays(x4, -INF, 0, 0, 2)
        ),
        "nonnegative ball at 0": Face(NonNegativeBall(1.0), 0 * x4, rays(x4, -INF, 0, 0, 1, 2, 3)),
        "nonnegative ball inside": Face(NonNegativeBall(9.0), x4 + 1, []),
        "simplex, edge": Face(
            Simplex(2.0),
            simplex,
            [(torch.ones_like(simplex), -INF, INF), *rays(simplex, -INF, 0, 0, 2, 3)],
        ),
        "simplex, vertex": Face(
            Simplex(), unit(x4, 2), [(torch.ones_like(x4), -INF, INF), *rays(x4, -INF, 0, 0, 1, 3)]
        ),
        "simplex inside": Face(Simplex(), 0 * x4 + 0.25, [(torch.ones_like(x4), -INF, INF)]),
        "simplex along rows": Face(Simplex(dim=-1), rows, simplex_normals(rows)),
        "simplex along columns": Face(
            Simplex(dim=0),
            rows.T.contiguous(),
            [(d.T.contiguous(), low, high) for d, low, high in simplex_normals(rows)],
        ),
        "l1": Face(L1(0.7), x4 * vec(1, -1, 1, 1), rays(x4, -0.7, 0.7, 0, 2), vec(0, -0.7, 0, 0.7)),
        "l1 at 0": Face(L1(0.7), 0 * x4, rays(x4, -0.7, 0.7, 0, 1, 2, 3)),
        "l2 group": Face(L2Group(0.5, 0), groups, [], vec(0.3, 0, 0.4, -0.5).reshape(2, 2)),
        # with one entry a group, the norm is the absolute value
        "l2 group of single entries": Face(
            L2Group(0.5, 0),
            vec(0, -2)[None],
            rays(vec(0, -2)[None], -0.5, 0.5, 0),
            vec(0, -0.5)[None],
        ),
        "nuclear norm, full rank": Face(
            NuclearNorm(0.8), (U * vec(2.0, 0.5, 1.0)) @ V.T, [], 0.8 * U @ V.T
        ),
        "nuclear norm, tall matrix of full rank": Face(
            NuclearNorm(0.8), (U * weights)[:, :2] @ R, [], 0.8 * U[:, :2] @ R
        ),
        "nuclear norm, one singular value 0": Face(
            NuclearNorm(0.8),
            (U * weights) @ V.T,
            [(torch.outer(U[:, 2], V[:, 2]), -0.8, 0.8)],
            0.8 * U[:, :2] @ V[:, :2].T,
        ),
        "cone, one row on the boundary": Face(
            SecondOrderCone(), boundary, [(vec(-1, 0.6, 0.8, 0, 0, 0).reshape(2, 3), 0, INF)]
        ),
        "cone, on its axis": Face(SecondOrderCone(), unit(x4, 0), []),
        # in the plane the polar cone has two edges
        "cone in the plane at 0": Face(
            SecondOrderCone(), vec(0, 0), [(vec(-1, 1), 0, INF), (vec(-1, -1), 0, INF)]
        ),
        "cone on the line at 0": Face(SecondOrderCone(), vec(0), [(vec(-1), 0, INF)]),
        "affine": Face(Affine(MATRIX, RHS), affine, [(row, -INF, INF) for row in MATRIX]),
        "affine with dependent rows": Face(DEPENDENT, affine, [(row, -INF, INF) for row in MATRIX]),
        "separable": Face(
            SEPARABLE,
            blocks,
            [(unit(blocks, 1, 0), 0, INF), *rays(blocks, -1, 1, 8, 9, 10)],
            -unit(blocks, 5, 1),
        ),
    }


FACES = faces()


def shortest(face: Face, v: Tensor) -> float:
    """min ‖v + offset + Σ λ_j direction_j‖: least squares for each choice of bounds that hold."""
    target = (v + face.offset).flatten()
    choices = [
        [None, *(b for b in (low, high) if math.isfinite(b))] for _, low, high in face.directions
    ]
    best = INF
    for choice in itertools.product(*choices):
        fixed = [b * d.flatten() for b, (d, _, _) in zip(choice, face.directions, strict=True) if b]
        free = [t for b, t in zip(choice, face.directions, strict=True) if b is None]
        residual = target + sum(fixed)
        if free:
            G = torch.stack([d.flatten() for d, _, _ in free], dim=1)
            lam = torch.linalg.lstsq(G, -residual[:, None]).solution[:, 0]
            bounds = zip(lam.tolist(), free, strict=True)
            if not all(low <= value <= high for value, (_, low, high) in bounds):
                continue
            residual = residual + G @ lam
        best = min(best, float(vector_norm(residual)))
    return best


@DTYPES
@pytest.mark.parametrize("face", FACES.values(), ids=FACES.keys())
def test_distance_equals_the_shortest_residual_over_all_active_sets(face, dtype):
    generator = Generator().manual_seed(6)
    for scale in (0.5, 1.0, 1.0, 1.0, 5.0):
        v = scale * randn(generator, *face.x.shape)
        distance = face.g.distance(face.x.to(dtype), v.to(dtype))
        assert distance == pytest.approx(shortest(face, v), rel=TOL[dtype], abs=TOL[dtype] * scale)


@DTYPES
@pytest.mark.parametrize("face", FACES.values(), ids=FACES.keys())
def test_distance_vanishes_on_the_subdifferential(face, dtype):
    generator = Generator().manual_seed(7)
    for _ in range(5):
        s = torch.zeros_like(face.x) + face.offset
        for direction, low, high in face.directions:
            low, high = max(low, -3.0), min(high, 3.0)
            s = s + (low + (high - low) * float(rand(generator))) * direction
        assert face.g.distance(face.x.to(dtype), -s.to(dtype)) <= 10 * TOL[dtype]


# The others: s in ∂g(x) and w normal to ∂g(x) at s, so that s is the point nearest to s + w.


def curved_faces() -> dict[str, tuple[Proximable, Tensor, Tensor, Tensor]]:
    U, V = frame(4, 3)

    def combine(*entries: tuple[int, int, float]) -> Tensor:
        return sum(c * torch.outer(U[:, i], V[:, j]) for i, j, c in entries)

    e = vec(0.6, 0.0, -0.8)
    group = torch.stack((vec(3.0, 4.0, 0.0), vec(0.0, 0.0, 0.0)))
    nuclear, soc = NuclearNorm(0.8), SecondOrderCone()
    edge = torch.cat((vec(-1.0), -e))  # of the polar cone, which lies below (1, −e)
    return {
        "l2 group, one at 0": (
            L2Group(0.5, 1),
            group,
            torch.stack((0.5 * vec(0.6, 0.8, 0.0), 0.5 * e)),
            torch.stack((vec(0.1, -2.0, 0.3), 0.9 * e)),
        ),
        "l2 group, inside the ball": (
            L2Group(0.5, 1),
            group,
            torch.stack((0.5 * vec(0.6, 0.8, 0.0), 0.4 * e)),
            torch.stack((vec(0.1, -2.0, 0.3), 0 * e)),
        ),
        # tangent to the matrices of rank 1 anything is normal, elsewhere only what ‖W‖ ≤ 1 stops
        "nuclear norm, rank 1": (
            nuclear,
            combine((0, 0, 2.0)),
            0.8 * combine((0, 0, 1.0), (1, 1, 1.0), (2, 2, 0.3)),
            combine((1, 1, 0.7), (0, 0, -0.6), (0, 2, 0.4), (3, 0, 0.2)),
        ),
        "nuclear norm at 0": (
            nuclear,
            combine((0, 0, 0.0)),
            0.8 * combine((0, 0, 1.0), (1, 1, 1.0), (2, 2, 0.5)),
            combine((0, 0, 0.3), (1, 1, 2.0)),
        ),
        "cone at 0, edge of the polar": (
            soc,
            torch.zeros(4, dtype=torch.float64),
            2.0 * edge,
            0.3 * torch.cat((vec(1.0), -e)),
        ),
        "cone at 0, inside the polar": (soc, 0 * edge, vec(-2.0, 1.0, 0.0, 1.0), 0 * edge),
        "cone at 0, at the tip of the polar": (soc, 0 * edge, 0 * edge, vec(2.0, 1.0, -1.0, 0.5)),
        "cones, a mixture": (
            soc,
            torch.stack((0 * edge, vec(1.0, 0.6, 0.0, -0.8), vec(2.0, 0.0, 0.0, 1.0))),
            torch.stack((2.0 * edge, torch.cat((vec(-1.0), e)), 0 * edge)),
            torch.stack((-0.3 * edge * vec(1, -1, -1, -1), vec(1, 1, 5, -0.5), vec(1, 2, 3, 4))),
        ),
    }


CURVED = curved_faces()


@DTYPES
@pytest.mark.parametrize("name", CURVED)
def test_distance_equals_the_length_of_a_normal_of_the_subdifferential(name, dtype):
    g, x, s, w = (t.to(dtype) if isinstance(t, Tensor) else t for t in CURVED[name])
    for length in (0.0, 0.01, 1.0, 20.0):
        expected = pytest.approx(length * float(vector_norm(w)), TOL[dtype], 2 * TOL[dtype])
        assert g.distance(x, -(s + length * w)) == expected


@pytest.mark.parametrize("name", [*FACES, *CURVED])
def test_distance_is_the_speed_at_which_the_prox_leaves(name):
    """‖x − prox(x − t v)‖/t → dist(−v, ∂g(x)) as t → 0, for every convex g."""
    g, x = FACES[name][:2] if name in FACES else CURVED[name][:2]
    generator = Generator().manual_seed(8)
    t = 1e-8
    for _ in range(5):
        v = randn(generator, *x.shape)
        speed = float(vector_norm(x - g.prox(x - t * v, t))) / t
        assert speed == pytest.approx(g.distance(x, v), rel=1e-6, abs=1e-6)


def test_simplex_distance_solves_for_the_multiplier_on_long_rows():
    """μ is the root of Σ_S (μ − a_i) − Σ_off max(a_i − μ, 0), a = −v."""
    generator = Generator().manual_seed(9)
    for size in (1, 2, 10, 100):
        x = torch.zeros(100, dtype=torch.float64)
        x[torch.randperm(100, generator=generator)[:size]] = 1.0 / size
        v = 3.0 + randn(generator, 100)
        on, off = (-v[x > 0]).tolist(), (-v[x == 0]).tolist()

        def slope(mu, on=on, off=off):
            return math.fsum(mu - a for a in on) - math.fsum(max(a - mu, 0.0) for a in off)

        mu = bisect(slope, -10.0, 10.0)
        expected = math.hypot(*(a - mu for a in on), *(max(a - mu, 0.0) for a in off))
        assert Simplex().distance(x, v) == pytest.approx(expected, rel=1e-12)


# Rounding


def test_box_recognises_a_bound_that_float32_cannot_hold():
    # 0.7 rounds down to float32 and 0.1 rounds up
    for bound in (0.1, 0.7, vec(0.1), vec(0.7)):
        for box, sign in ((Box(bound, 5.0), 1.0), (Box(-5.0, bound), -1.0)):
            x = box.prox(torch.full((3,), -9.0 * sign), 1.0)
            assert box.value(x) == 0.0
            assert box.distance(x, torch.full((3,), sign)) == 0.0
            assert box.distance(x, torch.full((3,), -sign)) == pytest.approx(math.sqrt(3.0))


# a point of the boundary and a way out
EDGES = [
    (Box(-3.0, 2.0), vec(2.0, 1.0), vec(2.0, 0.0)),
    (Ball(5.0), vec(3.0, 4.0), vec(3.0, 4.0)),
    (Ball(5.0, 1e4), vec(10003.0, 10004.0), vec(10003.0, 10004.0)),
    (NonNegativeBall(5.0), vec(3.0, 4.0), vec(3.0, 4.0)),
    (Simplex(7.0), vec(3.0, 4.0), vec(3.0, 4.0)),
    (SecondOrderCone(), vec(5.0, 3.0, 4.0), vec(0.0, 3.0, 4.0)),
    (Affine(MATRIX[:, :2], vec(3.0, 4.0)), vec(3.0, 4.0), vec(3.0, 4.0)),
]


@DTYPES
@pytest.mark.parametrize(("g", "x", "out"), EDGES)
def test_sets_forgive_rounding_and_nothing_else(g, x, out, dtype):
    eps = torch.finfo(dtype).eps
    near, far = ((x + k * eps * out).to(dtype) for k in (16, 1000))
    assert g.value(near) == 0.0
    assert math.isfinite(g.distance(near, x.to(dtype)))
    assert g.value(far) == INF
    assert g.distance(far, x.to(dtype)) == INF


@DTYPES
@pytest.mark.parametrize(
    ("g", "x", "normal"),
    [
        (Ball(5.0), vec(3.0, 4.0), vec(3.0, 4.0)),
        (Ball(5.0, 1e4), vec(10003.0, 10004.0), vec(3.0, 4.0)),
        (NonNegativeBall(5.0), vec(3.0, 4.0), vec(3.0, 4.0)),
        (SecondOrderCone(), vec(5.0, 3.0, 4.0), vec(-5.0, 3.0, 4.0)),
    ],
)
def test_a_curved_boundary_is_as_thick_as_rounding(g, x, normal, dtype):
    eps, length = torch.finfo(dtype).eps, float(vector_norm(normal))
    near, far = ((x - k * eps * vector_norm(x) / 5 * normal).to(dtype) for k in (1, 1000))
    # from 1e4 away, the float32 direction of the normal has three digits
    tol = 1e-3 if dtype == torch.float32 else 1e-11
    assert g.distance(near, -normal.to(dtype)) <= tol * length
    assert g.distance(far, -normal.to(dtype)) == pytest.approx(length, rel=tol)


@DTYPES
def test_a_long_vector_projected_onto_a_set_is_on_its_boundary(dtype):
    # few digits each, so that the errors of the norm change with the scale: 800 epsilons in float32
    v = torch.randint(1, 256, (1_000_000,), generator=Generator().manual_seed(0)).to(dtype) / 256
    for g in (Ball(3.3), NonNegativeBall(3.3)):
        x = g.prox(v, 1.0)
        assert g.value(x) == 0.0
        assert g.distance(x, -v) <= 10 * TOL[dtype] * float(vector_norm(v))
    assert Simplex(3.3).value(Simplex(3.3).prox(v[:100_000], 1.0)) == 0.0


@DTYPES
def test_simplex_projection_survives_a_large_shift_and_a_spread(dtype):
    # (v_0 + v_1 + v_2 − 1)/3 = −ulp/3 keeps the last entry, but rounds to 0 next to the shift
    ulp = 2.0**-10
    shift = ulp / torch.finfo(dtype).eps
    v = torch.tensor([0.5, 0.5 - ulp, 0.0], dtype=dtype)
    x = torch.tensor([0.5 + ulp / 3, 0.5 - ulp * 2 / 3, ulp / 3], dtype=dtype)
    assert torch.equal((v + shift) - shift, v)
    assert torch.allclose(Simplex().prox(v + shift, 1.0), x, rtol=TOL[dtype], atol=0.0)
    # one entry takes half of the total, the others share the rest
    v = torch.zeros(10_001, dtype=dtype)
    v[0] = 0.5
    x = Simplex().prox(v, 1.0)
    assert Simplex().value(x) == 0.0
    assert float(x[0]) == pytest.approx(0.5 + 0.5 / 10_001, rel=TOL[dtype])


@DTYPES
def test_affine_projection_of_a_far_point_fulfils_the_equations(dtype):
    g = Affine(MATRIX, RHS)
    # in the range of matrixᵀ, so that the projection is short
    x = g.prox((1e6 * MATRIX.sum(0)).to(dtype), 1.0)
    assert g.value(x) == 0.0
    assert g.distance(x, MATRIX[0].to(dtype)) <= 10 * TOL[dtype]
    g = Affine(MATRIX, 0 * RHS)
    generator = Generator().manual_seed(12)
    for _ in range(100):  # projections that are 0 but for rounding
        assert g.value(g.prox((MATRIX.T @ randn(generator, 2)).to(dtype), 1.0)) == 0.0


def test_nuclear_norm_of_a_thresholded_matrix_knows_its_rank():
    U, V = frame(40, 30)
    sigma = torch.linspace(3.0, 0.1, 30, dtype=torch.float64)
    v = (U[:, :30] * sigma) @ V.T
    g = NuclearNorm(1.0)
    x = g.prox(v, 1.0)  # 9 singular values are cut to 0
    # a normal of W at the threshold: one of the cut directions leaves by 0.25
    out = torch.outer(U[:, 29], V[:, 29])
    sigma_cut = (U[:, :30] * sigma.clamp(max=1.0)) @ V.T
    assert g.distance(x, -sigma_cut) == pytest.approx(0.0, abs=1e-10)
    assert g.distance(x, -sigma_cut - 1.15 * out) == pytest.approx(0.25, abs=1e-10)


# Whole objects


def test_separable_gives_rows_without_a_term_the_whole_gradient():
    g = Separable([(slice(1, 2), NonNegative())])
    assert g.distance(torch.zeros(3), torch.tensor([3.0, 7.0, 4.0])) == 5.0
    assert g.distance(torch.zeros(3), torch.tensor([0.0, -2.0, 0.0])) == 2.0
    assert Separable([]).distance(torch.zeros(2), torch.tensor([3.0, 4.0])) == 5.0
    whole = Separable([(slice(None), NonNegative())])
    assert whole.distance(torch.zeros(2), torch.tensor([3.0, -4.0])) == 4.0


def test_separable_does_not_follow_a_list_that_grows():
    parts = [(slice(0, 2), NonNegative())]
    g = Separable(parts)
    parts.append((slice(1, 3), NonNegative()))
    assert g.prox(-torch.ones(3), 1.0).tolist() == [0.0, 0.0, -1.0]


@ROWS
def test_terms_are_proximable_frozen_and_survive_pickling(row):
    assert isinstance(row.g, Proximable)
    with pytest.raises(AttributeError):
        row.g.radius = 1.0
    hash(row.g)
    v, step = points(row)[0]
    assert torch.equal(pickle.loads(pickle.dumps(row.g)).prox(v, step), row.g.prox(v, step))


POSITIVE = "must be positive and finite, got"


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Ball(-1.0), ValueError, f"radius {POSITIVE} -1.0"),
        (lambda: Ball(INF), ValueError, f"radius {POSITIVE} inf"),
        (lambda: Ball(1.0, math.nan), ValueError, "center must be finite, got nan"),
        (lambda: Ball(1.0, vec(0.0, -INF)), ValueError, "center must be finite, got -inf"),
        (lambda: NonNegativeBall(0.0), ValueError, f"radius {POSITIVE} 0.0"),
        (lambda: Simplex(-2.0), ValueError, f"total {POSITIVE} -2.0"),
        (lambda: Simplex(math.nan), ValueError, f"total {POSITIVE} nan"),
        (lambda: L1(0.0), ValueError, f"weight {POSITIVE} 0.0"),
        (lambda: L2Group(-0.5, 0), ValueError, f"weight {POSITIVE} -0.5"),
        (lambda: NuclearNorm(INF), ValueError, f"weight {POSITIVE} inf"),
        (lambda: Box(1.0, 0.0), ValueError, "lower must be at most upper, got 1.0 > 0.0"),
        (
            lambda: Box(vec(0.0, 3.0), vec(1.0)),
            ValueError,
            "lower must be at most upper, got 3.0 > 1.0",
        ),
        (lambda: Box(math.nan, 0.0), ValueError, "lower must be less than inf, got nan"),
        (lambda: Box(INF, INF), ValueError, "lower must be less than inf, got inf"),
        (lambda: Box(0.0, math.nan), ValueError, "upper must be greater than -inf, got nan"),
        (
            lambda: Box(-INF, vec(1.0, -INF)),
            ValueError,
            "upper must be greater than -inf, got -inf",
        ),
        (lambda: Affine(RHS, RHS), ValueError, "matrix must have 2 dimensions, got shape (2,)"),
        (
            lambda: Affine(MATRIX.long(), RHS),
            TypeError,
            "matrix must have a floating-point dtype, got torch.int64",
        ),
        (lambda: Affine(MATRIX / 0, RHS), ValueError, "matrix must be finite, got inf"),
        (lambda: Affine(MATRIX, RHS / 0), ValueError, "rhs must be finite, got inf"),
        (lambda: Affine(MATRIX, RHS[:1]), ValueError, "rhs must have shape (2,), got (1,)"),
        (
            lambda: Affine(torch.ones(2, 3), vec(2.0, 4.0)),
            ValueError,
            "rhs must be in the range of matrix, got a residual of 1.414",
        ),
        (
            lambda: Affine(MATRIX, RHS).prox(vec(1.0), 1.0),
            ValueError,
            "x has 1 entries, matrix has 6 columns",
        ),
        (
            lambda: NuclearNorm(1.0).prox(vec(1.0), 1.0),
            ValueError,
            "v must have 2 dimensions, got shape (1,)",
        ),
        (
            lambda: NuclearNorm(1.0).value(vec(1.0)),
            ValueError,
            "x must have 2 dimensions, got shape (1,)",
        ),
        (
            lambda: NuclearNorm(1.0).distance(vec(1.0), vec(1.0)),
            ValueError,
            "x must have 2 dimensions, got shape (1,)",
        ),
        (
            lambda: Separable([(slice(0, 2), L1)]),
            TypeError,
            "parts must be pairs of a slice and a term, got (slice(0, 2, None), <class",
        ),
        (
            lambda: Separable([(0, Zero())]),
            TypeError,
            "parts must be pairs of a slice and a term, got (0, Zero())",
        ),
        *(
            (
                lambda rows=rows: Separable([(rows, Zero())]),
                ValueError,
                f"parts must have slices with 0 <= start < stop and no step, got {rows!r}",
            )
            for rows in (slice(-2, None), slice(2, 2), slice(2, -1), slice(0, 4, 2))
        ),
        *(
            (
                lambda first=first, second=second: Separable([(second, Zero()), (first, Zero())]),
                ValueError,
                f"parts must be disjoint, got {first!r} and {second!r}",
            )
            for first, second in (
                (slice(0, 3), slice(2, 4)),
                (slice(1, None), slice(5, 6)),
                (slice(None, 5), slice(1, 2)),
            )
        ),
        *(
            (call, ValueError, "x has 3 rows, parts need 4")
            for call in (
                lambda: Separable([(slice(1, 4), Zero())]).value(torch.ones(3)),
                lambda: Separable([(slice(1, 4), Zero())]).prox(torch.ones(3), 1.0),
                lambda: Separable([(slice(4, None), Zero())]).distance(vec(1, 1, 1), vec(1, 1, 1)),
            )
        ),
    ],
)
def test_misuse_raises_at_once(build, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        build()


def test_bounds_that_do_not_fit_the_argument_raise():
    for g in (Box(LOWER, UPPER), Ball(1.0, CENTER)):
        for x in (torch.ones(3), torch.ones(())):
            with pytest.raises(RuntimeError, match="expand"):
                g.prox(x, 1.0)
