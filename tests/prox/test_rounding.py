"""Rounding: what sets forgive, and projections of long and far vectors."""

import math

import pytest
import torch
from torch import Generator
from torch.linalg import vector_norm

from tests.prox.subdifferentials import frame
from tests.prox.terms import DTYPES, INF, MATRIX, RHS, TOL, randn, vec
from torch_powalm.prox import (
    Affine,
    Ball,
    Box,
    NonNegativeBall,
    NuclearNorm,
    SecondOrderCone,
    Simplex,
)

# Rounding


def test_box_recognizes_a_bound_that_float32_cannot_hold():
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
def test_affine_projection_of_a_far_point_satisfies_the_equations(dtype):
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
