"""Derivatives of ∇f + Jᵀy and of the constraints at a point, column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from torch_powalm.solving.problem import Problem


class Linear(Protocol):
    """What the path to a solution needs of linearized optimality conditions, flat."""

    flat: Tensor  # x
    y: Tensor
    v: Tensor  # ∇f + Jᵀy
    r: Tensor
    inequality: Tensor
    eps: float

    def columns(self, variables: Sequence[int], upper: Tensor) -> Tensor | None:
        """Columns of (H, J) side by side; None if that would be too many."""
        ...

    def pull(self, w: Tensor) -> Tensor:
        """Jᵀw."""
        ...


class Linearization:
    """(v, r) = (∇f + Jᵀy, r) at (x, y) and its derivative (H, J) in x, H = ∇²f + Σ y_i ∇²r_i.

    A column is a finite difference of two evaluations, computed on first use. Everything except
    the evaluations is in float64, on the CPU, with x flattened.

    Args:
        problem: f and the constraints.
        x: the point.
        y: the multipliers.
        max_columns: bound on the number of columns.
        stop: whether a budget is used up.
    """

    def __init__(
        self, problem: Problem, x: Tensor, y: Tensor, max_columns: int, stop: Callable[[], bool]
    ) -> None:
        self.oracle, self.max_columns, self.stop = problem.oracle, max_columns, stop
        self.x, self.y = x, y
        self.at = self.oracle.at(x)
        inequality = problem.inequality(self.at)
        self.r, self.v = to_cpu(self.at.r), to_cpu(self.at.gradient(y))
        self.inequality = torch.zeros_like(self.r, dtype=torch.bool)
        if inequality is not None:
            self.inequality = inequality.cpu()
        self.eps = torch.finfo(x.dtype).eps
        self.flat = to_cpu(x)
        self.step = self.eps**0.4 * (float(torch.linalg.vector_norm(self.flat)) or 1.0)
        self._columns: dict[int, Tensor] = {}

    def columns(self, variables: Sequence[int], upper: Tensor) -> Tensor | None:
        """Columns of (H, J) side by side; None if that would be too many.

        Args:
            variables: indices of the columns, at least one.
            upper: upper bounds, which the finite differences do not cross.
        """
        missing = [i for i in variables if i not in self._columns]
        if len(self._columns) + len(missing) > self.max_columns:
            return None
        for i in missing:
            if self.stop():
                return None
            direction = torch.zeros_like(self.flat)
            direction[i] = 1.0 if self.flat[i] + self.step <= upper[i] else -1.0
            self._columns[i] = self.product(direction) * direction[i]
        return torch.stack([self._columns[i] for i in variables], 1)

    def product(self, d: Tensor) -> Tensor:
        """(H, J) d, at the cost of one evaluation."""
        at = self.oracle.at(torch.add(self.flat, d, alpha=self.step).to(self.x).view_as(self.x))
        r, v = to_cpu(at.r), to_cpu(at.gradient(self.y))
        return torch.cat((v - self.v, r - self.r)).div(self.step)

    def pull(self, w: Tensor) -> Tensor:
        """Jᵀw."""
        return to_cpu(self.oracle.at(self.x, objective=False).gradient(w.to(self.y)))


def to_cpu(tensor: Tensor) -> Tensor:
    """A tensor flattened, on the CPU and in float64."""
    return tensor.reshape(-1).to("cpu", torch.float64)
