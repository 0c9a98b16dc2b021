"""Terms as objects: Separable, pickling, and arguments that raise."""

import math
import pickle
import re

import pytest
import torch

from tests.prox.terms import CENTER, INF, LOWER, MATRIX, RHS, ROWS, UPPER, points, vec
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
    Separable,
    Simplex,
    SpectralNormBall,
    Zero,
)

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
        (lambda: SpectralNormBall(0.0), ValueError, f"radius {POSITIVE} 0.0"),
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
            lambda: SpectralNormBall(1.0).prox(vec(1.0), 1.0),
            ValueError,
            "v must have 2 dimensions, got shape (1,)",
        ),
        (
            lambda: SpectralNormBall(1.0).value(vec(1.0)),
            ValueError,
            "x must have 2 dimensions, got shape (1,)",
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
