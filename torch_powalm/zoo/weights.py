"""Constraints on weights: functions of the parameters, so `augment` needs no value for them.

A weight is given as a module with a `weight`, or as a function that returns the tensor, such as
`lambda: model.mix.log_weights.exp()`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.zoo.hard_concrete import HardConcrete
from torch_powalm.zoo.power_iteration import SpectralNorms
from torch_powalm.zoo.zoo_entry import Entry, Weight, check_bound, check_number, square, weight_of

Weights = Weight | Sequence[Weight]


def orthonormal(constraints: ConstraintRegistry, name: str, weight: Weight) -> Entry:
    """Make the rows of a wide matrix, or the columns of a tall one, orthonormal.

    W Wᵀ = I or Wᵀ W = I, the entries on and above the diagonal
    """
    read = weight_of(name, weight)

    def gram() -> Tensor:
        W = read()
        G = W @ W.T if W.shape[0] <= W.shape[1] else W.T @ W
        row, column = torch.triu_indices(*G.shape, device=G.device)
        return (G - torch.eye(len(G), dtype=G.dtype, device=G.device))[row, column]

    constraints.equality(name, gram)
    return Entry(name)


def unit_norm(constraints: ConstraintRegistry, name: str, weight: Weight) -> Entry:
    """Give every row of a weight the norm 1: ‖w_i‖² = 1; a row is all that belongs to an output."""
    read = weight_of(name, weight, dim=None)
    constraints.equality(name, lambda: read().flatten(1).square().sum(1) - 1)
    return Entry(name)


def symmetric(constraints: ConstraintRegistry, name: str, weight: Weight) -> Entry:
    """Make a square matrix symmetric: W_ij = W_ji above the diagonal."""
    read = square(name, weight)

    def difference() -> Tensor:
        W = read()
        row, column = torch.triu_indices(len(W), len(W), 1, device=W.device)
        return W[row, column] - W[column, row]

    constraints.equality(name, difference)
    return Entry(name)


def positive_definite(
    constraints: ConstraintRegistry, name: str, weight: Weight, *, bound: float = 0.0
) -> Entry:
    """Keep the eigenvalues of (W + Wᵀ)/2 at or above a bound ≥ 0."""
    check_number(f"bound of {name!r}", bound, 0)
    read = square(name, weight)

    def eigenvalues() -> Tensor:
        W = read()
        found: Tensor = torch.linalg.eigvalsh((W + W.T) / 2)
        return bound - found

    constraints.inequality(name, eigenvalues)
    return Entry(name)


def doubly_stochastic(constraints: ConstraintRegistry, name: str, weight: Weight) -> Entry:
    """Make rows and columns of a square matrix sum to 1, and its entries nonnegative.

    Registers two blocks, `name` for the sums and `name_entries` for the signs.
    """
    read = square(name, weight)

    def sums() -> Tensor:
        W = read()
        return torch.cat([W.sum(1), W.sum(0)]) - 1

    constraints.equality(name, sums)
    constraints.inequality(f"{name}_entries", lambda: -read())
    return Entry(name)


def spectral_norm(
    constraints: ConstraintRegistry, name: str, weights: Weights, *, bound: float
) -> "SpectralEntry":
    """Bound the largest singular value of each weight, found by warm-started power iteration.

    `certified()` of the returned entry has the exact values by SVD. Its state dict belongs into a
    checkpoint that is to be resumed bit for bit.
    """
    norms = _spectral_norms(name, weights, bound)
    constraints.inequality(name, lambda: norms() - bound)
    return SpectralEntry(name, None, lambda: norms.exact() - bound, norms)


def lipschitz(
    constraints: ConstraintRegistry, name: str, weights: Weights, *, bound: float
) -> "SpectralEntry":
    """Bound the product of spectral norms, and so a network's Lipschitz constant.

        Π σ_max(W_l) ≤ bound,   for linear layers between activations of slope at most 1

    Entry and checkpoint as for `spectral_norm`.
    """
    norms = _spectral_norms(name, weights, bound)
    constraints.inequality(name, lambda: norms().prod().reshape(1) - bound)
    return SpectralEntry(name, None, lambda: norms.exact().prod().reshape(1) - bound, norms)


def l1_budget(
    constraints: ConstraintRegistry, name: str, weights: Weights, *, bound: float
) -> Entry:
    """Bound the sum of absolute values of weights: Σ|w| ≤ bound."""
    check_bound(name, bound)
    reads = [weight_of(name, w, dim=None) for w in _several(weights)]

    def excess() -> Tensor:
        return torch.stack([read().abs().sum() for read in reads]).sum() - bound

    constraints.inequality(name, excess)
    return Entry(name)


def l0_budget(
    constraints: ConstraintRegistry,
    name: str,
    gates: HardConcrete | Sequence[HardConcrete],
    *,
    bound: float,
) -> Entry:
    """Bound the number of open gates: Σ P(gate ≠ 0) ≤ bound (Louizos et al. 2018).

    `certified()` of the returned entry has the exact count of gates that are open in evaluation
    mode, minus the bound.

    Args:
        constraints: the registry.
        name: name of the block.
        gates: modules that multiply weights or activations by gates in [0, 1].
        bound: largest number of open gates, in all modules together.
    """
    check_bound(name, bound)
    modules = [gates] if isinstance(gates, HardConcrete) else list(gates)
    for module in modules:
        if not isinstance(module, HardConcrete):
            got = type(module).__name__
            raise TypeError(f"gates of {name!r} must be HardConcrete modules, got {got}")
    constraints.inequality(name, lambda: torch.stack([m.expected() for m in modules]).sum() - bound)

    def count() -> Tensor:
        return torch.tensor([float(sum(m.count() for m in modules)) - bound])

    return Entry(name, None, count)


@dataclass(frozen=True)
class SpectralEntry(Entry):
    """Entry with the singular vectors that the next estimate starts from."""

    norms: SpectralNorms | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the singular vectors."""
        return self.norms.state_dict() if self.norms else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        if self.norms:
            self.norms.load_state_dict(state)


def _spectral_norms(name: str, weights: Weights, bound: float) -> SpectralNorms:
    check_bound(name, bound)
    if not bound > 0:
        raise ValueError(f"bound of {name!r} must be positive, got {bound!r}")
    return SpectralNorms([weight_of(name, w) for w in _several(weights)])


def _several(weights: Weights) -> Sequence[Weight]:
    return weights if isinstance(weights, list | tuple) else [weights]  # type: ignore[list-item]
