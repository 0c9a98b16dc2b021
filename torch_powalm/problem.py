"""Problem: f, g and the constraints, with their residuals; Subproblem: ψ = L_β(·, y)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.oracle import Constraint, Function, Objective, Oracle, Point
from torch_powalm.prox import Proximable, Zero
from torch_powalm.result import Residuals

_UNBOUNDED = 1e12  # how far ψ may fall, relative to the first value of f


class Problem:
    """minimise f(x) + g(x) subject to A(x) = 0 and B(x) ≤ 0.

    x has any shape. Plain functions are differentiated by autograd, in one backward pass for f
    and all constraints. Where values and gradients share work, give objects that do it once.

    Example:
        Problem(lambda x: x @ C @ x, equality=lambda x: (x @ x - 1).reshape(1), g=Box(-1.0, 1.0))

    Args:
        f: function of x with a scalar tensor as result, or an object with `value_and_grad(x)`.
        equality: A, a function of x with a 1-D tensor as result, or an object with `values(x)`
            and `vjp(x, w)`, which is Jᵀw in the shape of x.
        inequality: B, likewise.
        g: convex term with a prox; None for none.
    """

    def __init__(
        self,
        f: Function | Objective,
        *,
        equality: Function | Constraint | None = None,
        inequality: Function | Constraint | None = None,
        g: Proximable | None = None,
    ) -> None:
        if not (callable(f) or isinstance(f, Objective)):
            raise TypeError(f"f must be callable or have value_and_grad, got {f!r}")
        constraints = {}
        for name, c in (("equality", equality), ("inequality", inequality)):
            if c is None:
                continue
            if not (callable(c) or isinstance(c, Constraint)):
                raise TypeError(f"{name} must be callable or have values and vjp, got {c!r}")
            constraints[name] = c
        if not constraints:
            raise ValueError("equality or inequality must be given, got neither")
        if g is not None and (isinstance(g, type) or not isinstance(g, Proximable)):
            raise TypeError(f"g must have value, prox and distance, got {g!r}")
        self.g: Proximable = Zero() if g is None else g
        self.oracle = Oracle(f, constraints)

    @torch.no_grad()
    def residuals(self, x: Tensor, y: Tensor) -> Residuals:
        """The certificate of (x, y), computed anew.

        Args:
            x: the point.
            y: multipliers, those of the equalities first.
        """
        return self.measure(self.oracle.at(x), y)

    def measure(self, at: Point, y: Tensor) -> Residuals:
        """The certificate of multipliers y at an evaluated point."""
        if y.shape != at.r.shape:
            raise ValueError(f"constraints have {len(at.r)} entries, multiplier has {len(y)}")
        inequality = self.inequality(at)
        stationarity = self.g.distance(at.x, at.gradient(y))
        if inequality is None:
            return Residuals(norm(at.r), 0.0, stationarity, 0.0)
        A_x, B_x, y_B = at.r[~inequality], at.r[inequality], y[inequality]
        return Residuals(
            equality=norm(A_x) if len(A_x) else 0.0,
            inequality=norm(B_x.clamp(min=0)),
            stationarity=stationarity,
            complementarity=torch.maximum((y_B * B_x).abs(), -y_B).amax().item(),
        )

    def violation(self, at: Point) -> Tensor:
        """The vector (A(x), max(B(x), 0))."""
        inequality = self.inequality(at)
        return at.r if inequality is None else torch.where(inequality, at.r.clamp(min=0), at.r)

    def inequality(self, at: Point) -> Tensor | None:
        """Which constraints are inequalities; None when none is."""
        if "inequality" not in self.oracle.constraints:
            return None
        equalities = at.sizes[0] if "equality" in self.oracle.constraints else 0
        return torch.arange(len(at.r), device=at.r.device) >= equalities


class Subproblem:
    """ψ(x) = f(x) + ⟨y, r⟩ + βφ(r), r = (A, u) with the slacks of B eliminated.

    y and β are those of the dual state, which must not move meanwhile. The last point is kept: a
    value and then the gradient at the same x cost one evaluation.

    Args:
        problem: f and the constraints.
        dual: y, β and ν.
        at: a point that is already evaluated, None for none.
        fall: the relative fall of ψ that counts as progress.
        max_idle: evaluations without progress after which it counts as starved; None for no bound.
    """

    def __init__(
        self,
        problem: Problem,
        dual: DualState,
        at: Point | None = None,
        fall: float = 1e-9,
        max_idle: int | None = None,
    ) -> None:
        self.oracle, self.dual = problem.oracle, dual
        self.fall, self.max_idle = fall, math.inf if max_idle is None else max_idle
        self._bottom = math.nan  # a value of ψ below which it has no minimiser
        self._lowest = math.inf  # the smallest value of ψ, but for falls too small to count
        self._idle = 0  # evaluations since
        self._at: Point | None = None
        self._value = math.nan  # ψ, w and ∇ψ there, as far as they were asked for
        self._w: Tensor | None = None
        self._grad: Tensor | None = None
        if at is not None:
            self._move(at)

    def value(self, x: Tensor) -> float:
        """ψ(x), inf where a constraint is not finite."""
        if self._at is None or not self._at.is_at(x):
            self._move(self.oracle.at(x))
        return self._value

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        """ψ(x) and ∇ψ(x), inf and nan where a constraint is not finite."""
        value = self.value(x)
        if self._grad is None:
            if self._w is None or self._at is None:
                self._grad = torch.full_like(x, math.nan)
            else:
                self._grad = self._at.gradient(self._w)
        return value, self._grad

    def has_failed(self) -> bool:
        """Whether it is of no use to go on."""
        return self.starves() or self.falls_forever()

    def falls_forever(self) -> bool:
        """Whether a value was seen that only a ψ without a minimiser can have."""
        return self._lowest < self._bottom

    def starves(self) -> bool:
        """Whether many evaluations have not made ψ smaller."""
        return self._idle >= self.max_idle

    def _move(self, at: Point) -> None:
        terms = self.dual.value_and_weight(at.r)
        self._at = at
        self._value, self._w = (math.inf, None) if terms is None else (at.f + terms[0], terms[1])
        self._grad = None
        if math.isnan(self._bottom):
            self._bottom = -_UNBOUNDED * max(1.0, abs(at.f))
        self._idle += 1
        if self._value < self._lowest - self.fall * (1.0 + abs(self._value)):
            self._lowest, self._idle = self._value, 0
