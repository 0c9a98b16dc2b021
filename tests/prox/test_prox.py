"""Proximal operators and values against slow twins and optimality conditions."""

import itertools
import math

import pytest
import torch
from torch import Generator, Tensor
from torch.linalg import vector_norm

from tests.prox.terms import DTYPES, INF, ROWS, SETS, TABLE, TOL, Row, points, vec
from torch_powalm.prox import Box, Elementwise, NonNegativeBall, SecondOrderCone, Simplex


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
def test_prox_satisfies_the_variational_inequality(row):
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


@pytest.mark.parametrize("name", [n for n, r in TABLE.items() if isinstance(r.g, Elementwise)])
def test_a_term_of_single_entries_takes_a_step_per_entry(name):
    row = TABLE[name]
    for v, step in points(row):
        steps = torch.full_like(v, step)
        if not row.g.is_elementwise:
            continue
        assert torch.equal(row.g.prox(v, steps), row.g.prox(v, step))
        steps[..., 0] *= 3.0
        expected = torch.where(steps == step, row.g.prox(v, step), row.g.prox(v, 3.0 * step))
        assert torch.equal(row.g.prox(v, steps), expected)
    assert row.g.is_elementwise == (name != "separable")
