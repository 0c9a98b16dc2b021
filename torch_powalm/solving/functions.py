"""The functions of a problem as a user writes them, their counts, and their dense Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Objective(Protocol):
    """A hand-written f whose value and gradient share work."""

    def value_and_grad(self, x: Tensor) -> tuple[float | Tensor, Tensor]:
        """f(x) and ∇f(x)."""


@runtime_checkable
class Constraint(Protocol):
    """A hand-written A or B."""

    def values(self, x: Tensor) -> Tensor:
        """The vector A(x)."""

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        """J(x)ᵀw in the shape of x."""


@runtime_checkable
class WithJacobian(Protocol):
    """A hand-written A or B that knows its dense Jacobian."""

    def jacobian(self, x: Tensor) -> Tensor:
        """J(x), one row for every constraint."""


Function: TypeAlias = Callable[[Tensor], Tensor]


@dataclass
class Calls:
    """Number of evaluations of f, ∇f and the constraints."""

    function: int = 0
    gradient: int = 0
    constraint: int = 0

    def add(self, other: Calls) -> None:
        """Add the counts of a run."""
        self.function += other.function
        self.gradient += other.gradient
        self.constraint += other.constraint


def dense_rows(
    x: Tensor,
    blocks: Sequence[tuple[Function | None, Constraint | None]],
    sizes: Sequence[int],
    calls: Calls,
) -> list[Tensor]:
    """Rows of the Jacobian of every block of constraints, with x flat.

    A hand-written constraint may have `jacobian(x)`; else one product is made for every row.
    """
    parts = []
    for (plain, by_hand), m in zip(blocks, sizes, strict=True):
        if isinstance(by_hand, WithJacobian):
            parts.append(by_hand.jacobian(x).reshape(m, -1))
        elif by_hand is not None:
            unit = torch.eye(m, dtype=x.dtype, device=x.device)
            parts.append(torch.stack([by_hand.vjp(x, e).reshape(-1) for e in unit]))
        elif plain is not None:
            calls.constraint += 1
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                entries = plain(leaf).unbind()
            rows = [torch.autograd.grad(r, leaf, retain_graph=True)[0] for r in entries]
            parts.append(torch.stack([row.reshape(-1) for row in rows]))
    return parts
