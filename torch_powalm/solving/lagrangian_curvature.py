"""LagrangianCurvature: the Hessian of the Lagrangian of few unknowns, and steps that use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import (
    check_count,
    check_flag,
    check_keys,
    check_tensor,
    refuse,
)
from torch_powalm.dual import DualState
from torch_powalm.functional import norm
from torch_powalm.prox import Bounded, Proximable
from torch_powalm.prox.broadcasting import expand_like
from torch_powalm.solving.box_newton import minimize_on_box
from torch_powalm.solving.penalty_model import Expansion, PenaltyModel
from torch_powalm.solving.problem import Problem

LARGEST = 80  # unknowns: secants learn B in so many steps;
_LARGEST_STIFF = 200  # unknowns if there are enough constraints that βJᵀJ is most of the curvature:
_ROWS = 0.25  # of them for one unknown
_LARGEST_JACOBIAN = 200_000  # entries of J, up to which dense matrices are used
_DIFFERENCE = 1e-7  # length of a difference, relative to an entry of x or to their mean square
_DAMPING = 0.2  # a secant shows at least this fraction of the curvature of B (Powell 1978)
_FLATTEST = 1e-3  # first curvature relative to the one that makes a step as long as x
_FEWEST = 20  # steps before differences replace the secants
_RUNNING = ("B", "is_guess", "by_differences", "is_flat", "steps", "rejected", "period")
_FIRST_RADIUS = 10.0  # relative to the size of x: a step that is much longer rarely succeeds
_WILD = 1e4  # curvature at a refused point, relative to that of B, that says nothing of B
_REJECTED = 4  # steps refused in a row that show that the secants are misleading
_ROUNDING = 1e-13  # of a product with J
_PREFERRED = 1.5  # factor of the error of a model by which another one must be better


class LagrangianCurvature:
    """B ≈ ∇²f + Σ w_i ∇²r_i, kept from one subproblem to the next.

    B starts as a multiple of the identity and learns from every point that is tried, by damped BFGS
    updates. J is known, so B does not have to learn βJᵀJ. If many steps were made or several were
    refused in a row, B is computed by differences of ∇f + Jᵀw with fixed w, one for each variable,
    and then corrected by symmetric rank-one updates.

    Where f is constant, Σ w_i ∇²r_i vanishes at a feasible point, and the model without B, that of
    Gauss and Newton, is used until the one with B would have predicted the last value of ψ better
    (Dennis, Gay, Welsch 1981).

    Args:
        problem: f, g and the constraints.
        x: the start.
    """

    def __init__(self, problem: Problem, x: Tensor) -> None:
        self.problem, self.like = problem, x
        self.lower, self.upper = bounds_of(problem.g, x)
        self.B: Tensor | None = None
        self.is_guess = True  # whether B is still a guess of the size of a step
        self.by_differences = False
        self.is_flat = False  # whether steps use the model without B
        self.steps, self.rejected = 0, 0  # since B was measured; in a row
        self.period = max(_FEWEST, x.numel())

    def state_dict(self) -> dict[str, Any]:
        """What a run that continues this one needs."""
        return {name: getattr(self, name) for name in _RUNNING}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the curvature of another run; a wrong one raises and changes nothing."""
        where, n = "state['curvature']", self.like.numel()
        check_keys(state, where, _RUNNING)
        found: dict[str, Any] = {"B": state["B"]}
        if found["B"] is not None:
            B = found["B"] = check_tensor(state["B"], f"{where}['B']", shapes=[(n, n)]).to(
                self.like
            )
            if bool(((B - B.T).abs() > 1e-6 * B.abs().amax()).any()):
                refuse(f"{where}['B']", "be symmetric", state["B"])
        for name in ("is_guess", "by_differences", "is_flat"):
            found[name] = check_flag(state[name], f"{where}[{name!r}]")
        for name, low in (("steps", 0), ("rejected", 0), ("period", _FEWEST)):
            found[name] = check_count(state[name], f"{where}[{name!r}]", low=low)
        self.__dict__.update(found)

    def first_radius(self, x: Tensor) -> float:
        """Ten times the largest entry of x or of its finite bounds, or at least 10."""
        finite = [v[v.isfinite()] for v in (x.reshape(-1), self.lower, self.upper)]
        return _FIRST_RADIUS * max(1.0, torch.cat(finite).abs().amax().item())

    def step(
        self, at: Expansion, w: Tensor, dual: DualState, radius: float
    ) -> tuple[Tensor, float]:
        """Minimizer of the model in a box of this radius, and the decrease that it predicts."""
        n = len(at.x)
        if self.B is None:
            size = norm(at.grad_f + at.J.T @ w) / max(1.0, norm(at.x))
            self.B = (size or 1.0) * torch.eye(n, dtype=at.x.dtype)
            self.is_flat = is_constant(at, w)
        late = self.steps >= self.period or (self.rejected >= _REJECTED and self.steps >= n)
        if late and not self.is_flat:
            self._measure(at, w)
        self.steps += 1
        return self._minimize(PenaltyModel(at, self._used(self.B), dual), radius)

    def corrected_step(
        self, at: Expansion, there: Expansion, dual: DualState, radius: float
    ) -> tuple[Tensor, float] | None:
        """The step of a model whose constraints have the values found at a refused point.

        None if the linearized constraints are not the reason why ψ is higher there than predicted.
        """
        if self.B is None or len(at.r) == 0:
            return None
        B, d = self._used(self.B), there.x - at.x
        linear = torch.addmv(at.r, at.J, d)
        rise = dual.value(there.r) - dual.value(linear)
        change = torch.dot(there.grad_f - at.grad_f - B @ d, d).item()
        if not rise > abs(change):
            return None
        bent = PenaltyModel(at._replace(r=at.r + there.r - linear), B, dual)
        shift = dual.value(at.r) - dual.value(bent.at.r)
        step, decrease = self._minimize(bent, radius)
        return step, decrease + shift

    def choose(self, old: Expansion, w: Tensor, new: Expansion, dual: DualState) -> None:
        """Take the model that predicts ψ better between two points, where f is constant."""
        if self.B is None or not is_constant(old, w):
            self.is_flat = False
            return
        if self.is_guess:
            return
        d = new.x - old.x
        error = dual.value(new.r) - dual.value(torch.addmv(old.r, old.J, d))
        of_B = abs(error - 0.5 * torch.dot(d, self.B @ d).item())
        flat, curved = (1, _PREFERRED) if self.is_flat else (_PREFERRED, 1)
        self.is_flat = flat * abs(error) <= curved * of_B

    def _used(self, B: Tensor) -> Tensor:
        return torch.zeros_like(B) if self.is_flat else B

    def _minimize(self, model: PenaltyModel, radius: float) -> tuple[Tensor, float]:
        x = model.at.x
        lower = (self.lower - x).clamp(min=-radius)
        upper = (self.upper - x).clamp(max=radius)
        start = torch.zeros_like(x)
        d, value = minimize_on_box(model, start, lower, upper)
        # A bit beyond a bound that is reached: x + d must not end a bit beside it.
        bit = 4 * torch.finfo(x.dtype).eps * (x.abs() + d.abs())
        below, above = d <= self.lower - x, d >= self.upper - x
        d = torch.where(below, d - bit, torch.where(above, d + bit, d))
        return d, model.value_and_grad(start)[0] - value

    def learn(self, old: Expansion, new: Expansion, w: Tensor, *, accepted: bool) -> None:
        """Update B so that it maps the step to the change of ∇f + Jᵀw."""
        self.rejected = 0 if accepted else self.rejected + 1
        s, y = new.x - old.x, new.grad_f - old.grad_f + (new.J - old.J).T @ w
        s_norm, y_norm = norm(s), norm(y)
        if self.B is None or not (0 < s_norm < math.inf and y_norm < math.inf):
            return
        if not accepted and y_norm > _WILD * norm(self.B) * s_norm:
            return  # so far away that it tells nothing of the model here
        if self.is_guess:
            theta = max(y_norm / s_norm, _FLATTEST * float(self.B[0, 0]))
            self.B, self.is_guess = theta * torch.eye(len(s), dtype=s.dtype), False
        Bs = self.B @ s
        s_y, s_B_s = torch.dot(s, y).item(), torch.dot(s, Bs).item()
        if self.by_differences:
            error = y - Bs
            product = s_y - s_B_s
            if abs(product) > 1e-8 * s_norm * norm(error):
                self.B = self.B + torch.outer(error, error) / product
        elif s_B_s > 0:
            if s_y < _DAMPING * s_B_s:
                theta = (1 - _DAMPING) * s_B_s / (s_B_s - s_y)
                y = torch.lerp(Bs, y, theta)
                s_y = torch.dot(s, y).item()
            self.B = self.B - torch.outer(Bs, Bs) / s_B_s + torch.outer(y, y) / s_y

    def _measure(self, at: Expansion, w: Tensor) -> None:
        """Compute B by differences, one for each variable that is not fixed."""
        x, v = at.x, at.grad_f + at.J.T @ w
        typical = norm(x) / math.sqrt(len(x)) or 1.0
        B = torch.eye(len(x), dtype=x.dtype)
        for i in (self.lower < self.upper).nonzero().reshape(-1).tolist():
            h = _DIFFERENCE * max(abs(float(x[i])), typical)
            shifted = x.clone()
            shifted[i] += -h if x[i] + h > self.upper[i] else h
            there = self.problem.oracle.at(shifted.view_as(self.like))
            B[:, i] = (there.gradient(w).reshape(-1) - v) / (shifted[i] - x[i])
        if B.isfinite().all():
            self.B, self.by_differences, self.is_guess = (B + B.T) / 2, True, False
        self.steps, self.rejected, self.period = 0, 0, 2 * self.period


def is_constant(at: Expansion, w: Tensor) -> bool:
    """Whether ∇f = 0 at a point, up to rounding: it is what ∇ψ leaves of Jᵀw."""
    return bool((at.grad_f.abs() <= _ROUNDING * (at.J.abs().T @ w.abs())).all())


def is_small(g: Proximable, x: Tensor, constraints: int) -> bool:
    """Whether dense matrices pay off: few unknowns in float64 on the CPU, a box or nothing as g.

    Fewer if there are few constraints: the rest of the curvature has to be learned or measured.
    """
    n = x.numel()
    largest = _LARGEST_STIFF if constraints >= _ROWS * n else LARGEST
    few = n <= largest and n * constraints <= _LARGEST_JACOBIAN
    box = isinstance(g, Bounded) and g.is_indicator and isinstance(g.bounds, tuple)
    return few and box and x.dtype == torch.float64 and x.is_cpu


def bounds_of(g: Proximable, x: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of every entry of x, flat."""
    assert isinstance(g, Bounded)
    assert isinstance(g.bounds, tuple)
    lower, upper = (expand_like(bound, x) + torch.zeros_like(x) for bound in g.bounds)
    return lower.reshape(-1), upper.reshape(-1)
