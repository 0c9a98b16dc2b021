"""Last steps of a run: the linearized optimality conditions, solved by an active-set method."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_powalm.prox import Bounded
from torch_powalm.prox.broadcasting import expand_like
from torch_powalm.solving.kkt_certificate import Certified
from torch_powalm.solving.linearization import Linear, Linearization, to_cpu
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.settings import Tolerances

_MAX_CHANGES = 30  # of the active set
_MAX_SIZE = 300  # free variables plus active constraints: the size of a dense linear system
_MAX_ENTRIES = 10**7  # of all columns together
_CORRECTIONS = 2  # Newton steps with the matrix of the linearization
_REGULARIZATION = 1e-10  # δ relative to ‖H‖, with J scaled to the size of H
_SAME_HESSIAN = 1e-3  # relative change of H treated as zero

Pair = tuple[Tensor, Tensor]


def finish(
    problem: Problem,
    point: Certified,
    tolerances: Tolerances,
    max_columns: int,
    stop: Callable[[], bool] = lambda: False,
) -> Certified | None:
    """Find a solution near a point; None if there is none, g is no box or x has many free entries.

    The path to the solution of the linearized conditions is in `ActiveSetPath`. Its end is
    corrected with the true residuals. It counts as a solution if both residuals are within their
    tolerances and if the matrix there has as many negative eigenvalues as there are active
    constraints: otherwise it is a saddle point or a maximum over the free variables.

    Args:
        problem: the problem.
        point: x in dom g, and y ≥ 0 for inequalities.
        tolerances: of both residuals.
        max_columns: bound on the columns of the linearization, each of which is one evaluation.
        stop: whether the budget of the run is used up.
    """
    g, x, y = problem.g, point.x, point.y
    if not (isinstance(g, Bounded) and g.is_indicator and isinstance(g.bounds, tuple)):
        return None
    lower, upper = (expand_like(bound, x) for bound in g.bounds)
    inside = int(((x > lower) & (x < upper)).sum())
    if inside > min(max_columns, _MAX_SIZE) or inside * (x.numel() + len(y)) > _MAX_ENTRIES:
        return None
    bounds = (to_cpu(torch.zeros_like(x) + bound) for bound in (lower, upper))
    path = ActiveSetPath(Linearization(problem, x, y, max_columns, stop), *bounds)
    matrix = path.follow()
    if matrix is None:
        return None
    for _ in range(_CORRECTIONS + 1):
        x, y = g.prox(path.x.to(x).view_as(x), 1.0), path.y.to(y)
        there = Linearization(problem, x, y, len(path.F), stop)
        residuals = problem.measure(there.at, y)
        if residuals.primal <= tolerances.eps_A and residuals.dual <= tolerances.eps_phi:
            if not path.is_minimum(matrix, there):
                return None
            return Certified(x, y, residuals, problem.objective(there.at), "active set")
        if not path.correct(matrix, there):
            return None
    return None


class ActiveSetPath:
    """Path from a point to the solution of its linearized optimality conditions.

    With v = ∇f(x) + Jᵀy, free variables F (off their bounds) and active constraints E (all
    equalities, and inequalities with y_i > 0), a solution satisfies v_F = 0, r_E = 0, B ≤ 0, and
    has the right signs of v at the bounds and of y. Linearized at the point,

        ( H_FF   J_EFᵀ ) ( dx )       ( v_F )
        ( J_EF   −δ I  ) ( dy )  =  − ( r_E )         H = ∇²f + Σ y_i ∇²r_i

    leads there as long as F and E do not change. So a step ends as soon as a variable reaches its
    bound (it leaves F), v_i changes sign at a bound (the variable enters F), y_i of an active
    inequality vanishes, or an inactive one becomes active; the next step uses the new F and E. δ
    matters only if F is too small for r_E = 0: dy is then so large that the next v_i to vanish ends
    the step. H and J are known by columns, one evaluation for each variable that is or becomes
    free.

    Reference: Best 1996; Ferreau, Bock, Diehl 2008 (parametric active sets).

    Args:
        model: the linearization at the point.
        lower: lower bounds, flat.
        upper: upper bounds, flat.
    """

    def __init__(self, model: Linear, lower: Tensor, upper: Tensor) -> None:
        self.model, self.lower, self.upper = model, lower, upper
        self.x, self.y = model.flat, to_cpu(model.y)
        self.v, self.r = model.v, model.r
        self.inequality = model.inequality
        self.active = ~self.inequality | (self.y > 0)
        self.bounded = self.lower < self.upper  # the other variables are fixed
        # A variable on its bound counts as free if v drives it away from the bound.
        self.free = (self.x > self.lower) | (self.v < 0)
        self.free &= (self.x < self.upper) | (self.v > 0)
        self.free &= self.bounded
        self.F, self.E = self._sets()
        self.columns = self.x.new_zeros(0)  # columns of F
        self.scale = self.delta = 0.0  # factor that scales J to the size of H, and δ

    def follow(self) -> Tensor | None:
        """Follow the path to its end; return the matrix there, None if the end is not reached."""
        last = -1
        for _ in range(_MAX_CHANGES):
            matrix = self._matrix(self.model)
            step = None if matrix is None else self._newton(matrix)
            if matrix is None or step is None:
                return None
            length, change = self._advance(*step, longest=1.0)
            if length == 1:
                return matrix
            if length == 0 and change == last:
                # The variable that has just become free is pushed back to its bound: the path ends
                # because H is not positive definite on F. Continue at the next bound in this
                # direction.
                leap = self._leap(matrix, change)
                if leap is None:
                    return None
                length, change = self._advance(*leap, longest=math.inf)
                if not 0 < length < math.inf:
                    return None
            self._flip(change)
            last = change
        return None

    def correct(self, matrix: Tensor, there: Linearization) -> bool:
        """Make a Newton step with the true residuals; return False if there is none."""
        self.x, self.v, self.r = there.flat, there.v, there.r
        step = self._newton(matrix)
        if step is not None:
            self.x, self.y = self.x + step[0], self.y + step[1]
        return step is not None

    def has_inertia(self, matrix: Tensor) -> bool:
        """Whether the matrix has as many negative eigenvalues as there are active constraints."""
        if not matrix.isfinite().all():
            return False
        return int((torch.linalg.eigvalsh(matrix) < 0).sum()) == len(self.E)

    def is_minimum(self, matrix: Tensor, there: Linearization) -> bool:
        """Whether the matrix has the inertia of a minimum; it is rebuilt if H has changed."""
        n, d = len(self.F), torch.zeros_like(self.x)
        noise = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        d[self.F] = noise / math.sqrt(n)
        H = matrix[:n, :n]
        # On average ‖ΔH d‖ is the norm of a column of ΔH.
        change = there.product(d)[self.F] - H @ d[self.F]
        if not float(torch.linalg.vector_norm(change)) <= _SAME_HESSIAN * float(H.abs().max()):
            rebuilt = self._matrix(there)
            if rebuilt is None:
                return False
            matrix = rebuilt
        return self.has_inertia(matrix)

    def _matrix(self, model: Linear) -> Tensor | None:
        """The matrix for F and E with J scaled; None if it would be too large or too expensive."""
        n, size = len(self.F), len(self.F) + len(self.E)
        fits = 0 < n and size <= _MAX_SIZE
        columns = model.columns(self.F.tolist(), self.upper) if fits else None
        if columns is None:
            return None
        self.columns = columns
        H, J = columns[self.F], columns[len(self.x) + self.E]
        if self.delta == 0:
            H_max, J_max = (float(part.abs().max()) if len(part) else 0.0 for part in (H, J))
            self.scale = (H_max or 1.0) / (J_max or 1.0)
            self.delta = max(_REGULARIZATION, model.eps**0.8) * (H_max or 1.0)
        matrix = H.new_zeros(size, size)
        matrix[:n, :n] = (H + H.T) / 2
        matrix[n:, :n], matrix[:n, n:] = self.scale * J, self.scale * J.T
        matrix.diagonal()[n:] = -self.delta
        return matrix

    def _newton(self, matrix: Tensor) -> Pair | None:
        return self._solve(matrix, -torch.cat((self.v[self.F], self.scale * self.r[self.E])))

    def _leap(self, matrix: Tensor, i: int) -> Pair | None:
        """The direction in which x_i leaves its bound while all other conditions still hold."""
        if i >= len(self.x):
            return None
        force = matrix.new_zeros(len(matrix))
        force[: len(self.F)][i == self.F] = 1.0
        step = self._solve(matrix, force)
        if step is None or step[0][i] == 0:
            return None
        inward = 1.0 if self.x[i] <= self.lower[i] else -1.0
        sign = inward * float(step[0][i].sign())
        return sign * step[0], sign * step[1]

    def _solve(self, matrix: Tensor, right: Tensor) -> Pair | None:
        """The steps of x and y, zero outside F and E; None if the system has no finite solution."""
        step, info = torch.linalg.solve_ex(matrix, right)
        if info.item() != 0 or not step.isfinite().all():
            return None
        dx, dy = torch.zeros_like(self.x), torch.zeros_like(self.y)
        dx[self.F], dy[self.E] = step[: len(self.F)], self.scale * step[len(self.F) :]
        return dx, dy

    def _advance(self, dx: Tensor, dy: Tensor, longest: float) -> tuple[float, int]:
        """Go along a step until F or E changes; return the step length and the index that changes.

        Variables come first in the numbering of indices, then constraints.
        """
        n = len(self.x)
        change = torch.mv(self.columns, dx[self.F])
        dv, dr = change[:n] + self.model.pull(dy), change[n:]
        bound = torch.where(dx > 0, self.upper, self.lower)
        turns = torch.where(self.x <= self.lower, dv < 0, dv > 0) & self.bounded
        # Step lengths at which F or E changes; infinite if nothing moves.
        times = torch.where(self.free, (bound - self.x) / dx, -self.v / dv)
        times = torch.where(torch.where(self.free, dx != 0, turns), times, math.inf)
        if self.inequality.any():
            happens = self.inequality & torch.where(self.active, dy < 0, dr > 0)
            more = torch.where(self.active, -self.y / dy, -self.r / dr)
            times = torch.cat((times, torch.where(happens, more, math.inf)))
        first = int(times.argmin())
        time = max(0.0, float(times[first]))
        length = min(time, longest)
        if length < math.inf:
            self.x, self.y = self.x + length * dx, self.y + length * dy
            self.v, self.r = self.v + length * dv, self.r + length * dr
        if time < longest and first < n and self.free[first]:
            self.x[first] = bound[first]  # exactly
        return length, first

    def _flip(self, change: int) -> None:
        """Move a variable in or out of F, or a constraint in or out of E."""
        n = len(self.x)
        if change < n:
            self.free[change] = ~self.free[change]
        else:
            self.active[change - n] = ~self.active[change - n]
            self.y = torch.where(self.active, self.y, 0.0)
        self.F, self.E = self._sets()

    def _sets(self) -> Pair:
        return self.free.nonzero().reshape(-1), self.active.nonzero().reshape(-1)
