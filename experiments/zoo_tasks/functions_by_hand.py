"""Constraints on weights and at points as the zoo has them, written by hand."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.zoo_tasks.batches_by_hand import B, Twin
from torch_powalm import ConstraintRegistry

POINTS = torch.randn(128, 32, generator=torch.Generator().manual_seed(3))
GRID = POINTS.reshape(4, 32, 32)


def _parameters(kind: str, fn: Callable[[nn.Module], Tensor]) -> Twin:
    def register(c: ConstraintRegistry, model: nn.Module) -> None:
        getattr(c, kind)(B, lambda: fn(model))

    return register


def _gram(m: Any) -> Tensor:
    W = m[2].weight
    G = W @ W.T
    row, column = torch.triu_indices(len(G), len(G))
    return (G - torch.eye(len(G)))[row, column]


def _skew(m: Any) -> Tensor:
    W = m[2].weight
    row, column = torch.triu_indices(len(W), len(W), 1)
    return W[row, column] - W[column, row]


def _stochastic(c: ConstraintRegistry, m: Any) -> None:
    c.equality(B, lambda: torch.cat([m[2].weight.sum(1), m[2].weight.sum(0)]) - 1)
    c.inequality(f"{B}_entries", lambda: -m[2].weight)


def _spectral(layers: tuple[int, ...], product: bool) -> Twin:
    """Power iteration: the two products with the matrix, twice."""

    def register(c: ConstraintRegistry, m: Any) -> None:
        pairs: dict[int, tuple[Tensor, Tensor]] = {}
        for i in layers:
            u, _, vh = torch.linalg.svd(m[i].weight.detach(), full_matrices=False)
            pairs[i] = u[:, 0], vh[0]

        def value() -> Tensor:
            norms = []
            for i in layers:
                W, (u, v) = m[i].weight, pairs[i]
                with torch.no_grad():
                    for _ in range(2):
                        u = nn.functional.normalize(W @ v, dim=0)
                        v = nn.functional.normalize(u @ W, dim=0)
                pairs[i] = u, v
                norms.append(u @ (W @ v))
            found = torch.stack(norms)
            return (found.prod().reshape(1) if product else found) - 1.0

        c.inequality(B, value)

    return register


WEIGHTS: dict[str, Twin] = {
    "orthonormal": _parameters("equality", _gram),
    "unit_norm": _parameters("equality", lambda m: m[2].weight.square().sum(1) - 1),
    "symmetric": _parameters("equality", _skew),
    "positive_definite": _parameters(
        "inequality", lambda m: -torch.linalg.eigvalsh((m[2].weight + m[2].weight.T) / 2)
    ),
    "doubly_stochastic": _stochastic,
    "spectral_norm": _spectral((2,), False),
    "lipschitz": _spectral((2, 4), True),
    "l1_budget": _parameters("inequality", lambda m: m[2].weight.abs().sum().reshape(1) - 9.0),
    "l0_budget": _parameters(
        "inequality",
        lambda m: (
            torch.sigmoid(m.gates.log_alpha - 2 / 3 * math.log(0.1 / 1.1)).sum().reshape(1) - 9.0
        ),
    ),
}


def slope(m: Any) -> Tensor:
    """Derivatives of the outputs at the points."""
    x = POINTS.clone().requires_grad_()
    (found,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    return found


def _chord(m: Any) -> Tensor:
    other = POINTS.roll(-1, 0)
    ends = m(torch.cat([POINTS, other]))
    return m((POINTS + other) / 2) - (ends[:128] + ends[128:]) / 2


def _reflected(m: Any) -> Tensor:
    before, after = m(torch.cat([POINTS, -POINTS])).chunk(2)
    return after - before


def _conserved(m: Any) -> Tensor:
    total = m(POINTS).reshape(4, 32).mean(1)
    return total[1:] - total[0]


AT_POINTS: dict[str, Twin] = {
    "monotone": _parameters("inequality", lambda m: -slope(m)[:, 0]),
    "convex": _parameters("inequality", _chord),
    "bounded": _parameters("inequality", lambda m: -m(POINTS)),
    "invariant": _parameters("equality", _reflected),
    "equivariant": _parameters("equality", _reflected),
    "boundary": _parameters("equality", lambda m: m(POINTS)[:, 0] - 1.0),
    "initial": _parameters("equality", lambda m: m(POINTS)[:, 0] - 1.0),
    "normal_derivative": _parameters("equality", lambda m: slope(m)[:, 0] - 1.0),
    "conservation": _parameters("equality", _conserved),
    "pde_residual": _parameters("equality", lambda m: slope(m).sum(1)),
}
