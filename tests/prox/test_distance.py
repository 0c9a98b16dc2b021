"""Distances to the subdifferential."""

import math

import pytest
import torch
from torch import Generator, Tensor
from torch.linalg import vector_norm

from tests.prox.subdifferentials import CURVED, FACES, shortest
from tests.prox.terms import DTYPES, TOL, bisect, rand, randn
from torch_powalm.prox import Simplex


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
