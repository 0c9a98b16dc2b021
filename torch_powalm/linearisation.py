"""First derivatives of ∇f + Jᵀy and of the constraints at a point, by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_powalm.problem import Problem


class Linearisation:
    """(v, r) = (∇f + Jᵀy, r) and its derivative in x, (H, J) with H = ∇²f + Σ y_i ∇²r_i, at (x, y).

    A column is a difference of two evaluations, made when it is first asked for. Everything but
    the evaluations is in float64, on the host, with a flat x.

    Args:
        problem: f and the constraints.
        x: the point.
        y: the multipliers.
        max_columns: bound on the columns.
        stop: whether a budget is used up.
    """

    def __init__(
        self, problem: Problem, x: Tensor, y: Tensor, max_columns: int, stop: Callable[[], bool]
    ) -> None:
        self.oracle, self.max_columns, self.stop = problem.oracle, max_columns, stop
        self.x, self.y = x, y
        self.at = self.oracle.at(x)
        inequality = problem.inequality(self.at)
        self.r, self.v = on_host(self.at.r), on_host(self.at.gradient(y))
        self.inequality = torch.zeros_like(self.r, dtype=torch.bool)
        if inequality is not None:
            self.inequality = inequality.cpu()
        self.eps = torch.finfo(x.dtype).eps
        self.flat = on_host(x)
        self.step = self.eps**0.4 * (float(torch.linalg.vector_norm(self.flat)) or 1.0)
        self._columns: dict[int, Tensor] = {}

    def columns(self, unknowns: Sequence[int], upper: Tensor) -> Tensor | None:
        """Columns of (H, J) side by side; None where these would be too many.

        Args:
            unknowns: at least one.
            upper: bounds that are not crossed to make a difference.
        """
        missing = [i for i in unknowns if i not in self._columns]
        if len(self._columns) + len(missing) > self.max_columns:
            return None
        for i in missing:
            if self.stop():
                return None
            direction = torch.zeros_like(self.flat)
            direction[i] = 1.0 if self.flat[i] + self.step <= upper[i] else -1.0
            self._columns[i] = self.product(direction) * direction[i]
        return torch.stack([self._columns[i] for i in unknowns], 1)

    def product(self, d: Tensor) -> Tensor:
        """(H, J) d, one evaluation."""
        at = self.oracle.at(torch.add(self.flat, d, alpha=self.step).to(self.x).view_as(self.x))
        r, v = on_host(at.r), on_host(at.gradient(self.y))
        return torch.cat((v - self.v, r - self.r)).div(self.step)

    def pull(self, w: Tensor) -> Tensor:
        """Jᵀw."""
        return on_host(self.oracle.at(self.x, objective=False).gradient(w.to(self.y)))


def on_host(tensor: Tensor) -> Tensor:
    """A flat tensor in float64."""
    return tensor.reshape(-1).to("cpu", torch.float64)
