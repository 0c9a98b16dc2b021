"""Problem: f, g and the constraints, and the residuals of a point."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from torch_powalm.functional import norm, violation
from torch_powalm.prox import Proximable, Zero
from torch_powalm.result import Residuals
from torch_powalm.solving.oracle import Constraint, Function, Objective, Oracle, Point
from torch_powalm.solving.two_sided import both_sides


class Problem:
    """Minimize f(x) + g(x), subject to A(x) = 0 and B(x) ≤ 0 if there are constraints.

    x has any shape. Plain functions are differentiated by autograd, in one backward pass for f
    and all constraints. If values and gradients share work, pass objects that do it once.

    Example:
        Problem(lambda x: x @ C @ x, equality=lambda x: (x @ x - 1).reshape(1), g=Box(-1.0, 1.0))

    Args:
        f: function of x that returns a scalar tensor, or an object with `value_and_grad(x)`.
        equality: A, a function of x that returns a 1-D tensor, or an object with `values(x)` and
            `vjp(x, w)`, which returns Jᵀw in the shape of x.
        inequality: B, of the same kind.
        two_sided: (c, lower, upper) for lower ≤ c(x) ≤ upper, with c of the same kind and bounds
            lower < upper, as floats or vectors, ±inf for none. c is evaluated once for both sides.
            Their multipliers come last: those of all finite upper bounds, then of the lower ones.
        g: convex term with a prox; None for g = 0.
    """

    f_scale = 1.0  # units of f in a run over the user's
    r_scale = 1.0  # the smallest such factor of the constraints

    def __init__(
        self,
        f: Function | Objective,
        *,
        equality: Function | Constraint | None = None,
        inequality: Function | Constraint | None = None,
        two_sided: tuple[Function | Constraint, float | Tensor, float | Tensor] | None = None,
        g: Proximable | None = None,
    ) -> None:
        if not (callable(f) or isinstance(f, Objective)):
            raise TypeError(f"f must be callable or have value_and_grad, got {f!r}")
        constraints: dict[str, Function | Constraint] = {}
        for name, c in (("equality", equality), ("inequality", inequality)):
            if c is None:
                continue
            if not (callable(c) or isinstance(c, Constraint)):
                raise TypeError(f"{name} must be callable or have values and vjp, got {c!r}")
            constraints[name] = c
        if two_sided is not None:
            constraints["two_sided"] = both_sides(two_sided)
        if g is not None and (isinstance(g, type) or not isinstance(g, Proximable)):
            raise TypeError(f"g must have value, prox and distance, got {g!r}")
        self.g: Proximable = Zero() if g is None else g
        self.oracle = Oracle(f, constraints)

    @torch.no_grad()
    def residuals(self, x: Tensor, y: Tensor) -> Residuals:
        """Residuals of (x, y), computed from scratch.

        Args:
            x: the point.
            y: multipliers, those of the equalities first.
        """
        return self.measure(self.oracle.at(x), y)

    def measure(self, at: Point, y: Tensor, v: Tensor | None = None) -> Residuals:
        """Residuals of an evaluated point with multipliers y; v = ∇f(x) + Jᵀy if it is known."""
        if y.shape != at.r.shape:
            raise ValueError(f"constraints have {len(at.r)} entries, multiplier has {len(y)}")
        v = at.gradient(y) if v is None else v
        return self.residuals_of(at, at.r, y, self.g.distance(at.x, v))

    def residuals_of(self, at: Point, r: Tensor, y: Tensor, stationarity: float) -> Residuals:
        """Residuals from the values of the constraints, multipliers and a distance."""
        inequality = self.inequality(at)
        if inequality is None:
            return Residuals(norm(r), 0.0, stationarity, 0.0)
        A_x, B_x, y_B = r[~inequality], r[inequality], y[inequality]
        return Residuals(
            equality=norm(A_x),
            inequality=norm(violation(B_x, True)),
            stationarity=stationarity,
            complementarity=torch.maximum((y_B * B_x).abs(), -y_B).amax().item(),
        )

    def objective(self, at: Point) -> float:
        """f(x) + g(x)."""
        return at.f + self.g.value(at.x)

    def multiplier(self, y: Tensor) -> Tensor:
        """A multiplier of a run in the user's units, which are those of the run here."""
        return y

    def scaled_multiplier(self, y: Tensor) -> Tensor:
        """The inverse of `multiplier`."""
        return y

    def copy(self) -> Problem:
        """The same problem with its own counters."""
        other = copy(self)
        other.oracle = self.oracle.copy()
        return other

    def without_objective(self) -> Problem:
        """The same constraints and g with f = 0, and the same counters."""
        other = copy(self)
        other.oracle = self.oracle.without_objective()
        return other

    def violation(self, at: Point) -> Tensor:
        """The vector (A(x), max(B(x), 0))."""
        return violation(at.r, self.inequality(at))

    def inequality(self, at: Point) -> Tensor | None:
        """Mask of the inequalities among the constraints; None if there are none."""
        if not {"inequality", "two_sided"} & set(self.oracle.constraints):
            return None
        equalities = at.sizes[0] if "equality" in self.oracle.constraints else 0
        return torch.arange(len(at.r), device=at.r.device) >= equalities
