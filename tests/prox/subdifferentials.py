"""Points of the terms' domains with their subdifferentials written out."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.linalg import vector_norm

from tests.prox.terms import (
    CENTER,
    DEPENDENT,
    INF,
    LOWER,
    MATRIX,
    RHS,
    SEPARABLE,
    UPPER,
    in_affine,
    randn,
    vec,
)
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
    Simplex,
    SpectralNormBall,
    Zero,
)

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
        "spectral norm ball, one singular value on the bound": Face(
            SpectralNormBall(2.0),
            (U * weights) @ V.T,
            [(torch.outer(U[:, 0], V[:, 0]), 0, INF)],
        ),
        "spectral norm ball inside": Face(SpectralNormBall(2.1), (U * weights) @ V.T, []),
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
        # S ⪰ 0 of rank 1 for two singular values on the bound: a negative eigenvalue, an
        # antisymmetric part, and whatever is outside of their block
        "spectral norm ball, two singular values on the bound": (
            SpectralNormBall(2.0),
            combine((0, 0, 2.0), (1, 1, 2.0), (2, 2, 0.5)),
            combine((0, 0, 1.5)),
            combine(
                (1, 1, -0.7), (0, 1, 0.4), (1, 0, -0.4), (2, 0, 0.3), (3, 2, 0.5), (2, 2, -0.6)
            ),
        ),
        "spectral norm ball, a multiple of an isometry": (
            SpectralNormBall(2.0),
            combine((0, 0, 2.0), (1, 1, 2.0), (2, 2, 2.0)),
            combine((0, 0, 1.5), (1, 1, 0.3), (0, 1, 0.1), (1, 0, 0.1)),
            combine((2, 2, -1.0), (0, 1, 0.2), (1, 0, -0.2), (3, 1, 0.4)),
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
