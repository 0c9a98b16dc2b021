"""The last steps of a run: the linearised conditions, solved by a parametric active-set method."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_powalm.certificate import Certified
from torch_powalm.oracle import Point
from torch_powalm.problem import Problem
from torch_powalm.prox import Bounded

_CHANGES = 30  # of the active set
_LARGEST = 300  # free unknowns and active constraints: the size of a dense linear system
_CORRECTIONS = 3  # Newton steps with the matrix of the linearisation
_REGULAR = 1e-10  # δ, relative to ‖J‖²/‖H‖


def finish(
    problem: Problem,
    point: Certified,
    eps_phi: float,
    eps_A: float,
    max_columns: int,
    stop: Callable[[], bool] = lambda: False,
) -> Certified | None:
    """A certified point near this one, or None. Only for a g that is a box, and few free unknowns.

    With v = ∇f(x) + Jᵀy, free unknowns F (inside their bounds) and active constraints E (all
    equalities, inequalities with y_i > 0), a solution has v_F = 0, r_E = 0, the right signs of v
    at the bounds and of y, and B ≤ 0. Linearised at the point,

        ( H_FF   J_EFᵀ ) ( dx )       ( v_F )
        ( J_EF   −δ I  ) ( dy )  =  − ( r_E )         H = ∇²f + Σ y_i ∇²r_i

    leads there as long as F and E stay. So the step ends where the first bound is hit (the unknown
    leaves F), v_i changes its sign at a bound (it enters F), y_i of an inequality vanishes or an
    inactive one is met with equality, and goes on with the new F and E. δ only matters where F is
    too small for r_E = 0: dy is then so large that the next v_i to vanish ends the step.

    H and J are known by columns, one evaluation for each unknown that is or becomes free. What is
    found is corrected with the true residuals. It counts if it holds both tolerances, and if the
    matrix has as many negative eigenvalues as E has entries: no saddle point or maximum.

    Reference: Best 1996; Ferreau, Bock, Diehl 2008 (parametric active sets).

    Args:
        problem: the problem.
        point: x in dom g and y ≥ 0 for inequalities.
        eps_phi: tolerance of the dual residual.
        eps_A: tolerance of the primal residual.
        max_columns: bound on the columns.
        stop: whether the budget of the run is used up.
    """
    if not isinstance(problem.g, Bounded):
        return None
    inside = (point.x > problem.g.bounds[0]) & (point.x < problem.g.bounds[1])
    if not int(inside.sum()) <= min(max_columns, _LARGEST):
        return None
    model = _Model(problem, point, problem.g, max_columns, stop)
    matrix = model.follow()
    if matrix is None:
        return None
    for _ in range(_CORRECTIONS):
        x = problem.g.prox(model.x.view(point.x.shape), 1.0)
        at = problem.oracle.at(x)
        model.r = at.r
        residuals = problem.measure(at, model.y)
        if residuals.primal <= eps_A and residuals.dual <= eps_phi:
            negative = int((torch.linalg.eigvalsh(matrix) < 0).sum())
            if negative != int(model.active.sum()):
                return None
            return Certified(x, model.y, residuals, at.f + problem.g.value(x), "active set")
        model.x, model.v = x.reshape(-1), at.gradient(model.y).reshape(-1)
        step = model.solve(matrix)
        if step is None:
            return None
        model.x, model.y = model.x + step[0], model.y + step[1]
    return None


class _Model:
    """The linearisation at a point, and x, y, v, r on the way to its solution; x is flat."""

    def __init__(
        self,
        problem: Problem,
        point: Certified,
        g: Bounded,
        max_columns: int,
        stop: Callable[[], bool],
    ) -> None:
        self.oracle, self.max_columns, self.stop = problem.oracle, max_columns, stop
        self.origin, self.y_0 = point.x, point.y
        at: Point = self.oracle.at(point.x)
        self.lower, self.upper = (
            torch.as_tensor(b).to(point.x).expand_as(point.x).reshape(-1) for b in g.bounds
        )
        self.x, self.y = point.x.reshape(-1), point.y
        self.r, self.v = at.r, at.gradient(point.y).reshape(-1)
        self.v_0, self.r_0 = self.v, self.r
        self.length = float(torch.linalg.vector_norm(point.x)) or 1.0
        self.columns: dict[int, Tensor] = {}  # of (H, J), by unknowns
        inequality = problem.inequality(at)
        self.inequality = torch.zeros_like(self.y, dtype=torch.bool)
        if inequality is not None:
            self.inequality = inequality
        self.active = ~self.inequality | (self.y > 0)
        # At a bound with a v that leads away from it counts as free.
        self.bounded = self.lower < self.upper  # what is not is fixed
        self.free = (self.x > self.lower) | (self.v < 0)
        self.free &= (self.x < self.upper) | (self.v > 0)
        self.free &= self.bounded
        self.F, self.E = self._sets()
        self.columns_F = self.x.new_zeros(0)  # those of F, side by side
        self.delta = 0.0

    def follow(self) -> Tensor | None:
        """Go to the solution of the linearisation; return the matrix there, None if not reached."""
        last = -1
        for _ in range(_CHANGES):
            matrix = self.matrix()
            step = None if matrix is None else self.solve(matrix)
            if matrix is None or step is None:
                return None
            length, change = self._advance(*step, longest=1.0)
            if length == 1:
                return matrix
            if length == 0 and change == last:
                # What has just become free is pushed back: the way ends here, since H is not
                # positive definite on it. It goes on at the next bound in this direction.
                leap = self._leap(matrix, change)
                if leap is None:
                    return None
                length, change = self._advance(*leap, longest=math.inf)
                if not 0 < length < math.inf:
                    return None
            self._flip(change)
            last = change
        return None

    def matrix(self) -> Tensor | None:
        """The matrix for F and E; None where it would be too large or cost too much."""
        F, E = self.F, self.E
        n, size = len(F), len(F) + len(E)
        if n == 0 or size > _LARGEST or not self._complete(F.tolist()):
            return None
        self.columns_F = torch.stack([self.columns[i] for i in F.tolist()], 1)
        H, J = self.columns_F[F], self.columns_F[len(self.x) + E]
        if self.delta == 0:
            H_max, J_max = (float(part.abs().max()) if len(part) else 0.0 for part in (H, J))
            self.delta = _REGULAR * (J_max**2 / (H_max or 1.0) or 1.0)
        matrix = H.new_zeros(size, size)
        matrix[:n, :n] = (H + H.T) / 2
        matrix[n:, :n], matrix[:n, n:] = J, J.T
        matrix.diagonal()[n:] = -self.delta
        return matrix

    def solve(self, matrix: Tensor) -> tuple[Tensor, Tensor] | None:
        """The steps of x and y, 0 beside F and E; None if there is none."""
        return self._solve(matrix, -torch.cat((self.v[self.F], self.r[self.E])))

    def _leap(self, matrix: Tensor, i: int) -> tuple[Tensor, Tensor] | None:
        """The direction in which x_i leaves its bound while all other conditions hold."""
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

    def _solve(self, matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
        step, info = torch.linalg.solve_ex(matrix, right)
        if info.item() != 0 or not step.isfinite().all():
            return None
        dx, dy = torch.zeros_like(self.x), torch.zeros_like(self.y)
        dx[self.F], dy[self.E] = step[: len(self.F)], step[len(self.F) :]
        return dx, dy

    def _advance(self, dx: Tensor, dy: Tensor, longest: float) -> tuple[float, int]:
        """Go along a step, to the first change at most; return how far, and which change it is.

        Changes are numbered by unknowns, and after them by constraints.
        """
        n = len(self.x)
        change = torch.mv(self.columns_F, dx[self.F])
        at_origin = self.oracle.at(self.origin, objective=False)
        dv, dr = change[:n] + at_origin.gradient(dy).reshape(-1), change[n:]
        bound = torch.where(dx > 0, self.upper, self.lower)
        turns = torch.where(self.x <= self.lower, dv < 0, dv > 0) & self.bounded
        # The times at which something happens; nothing does where there is no movement.
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
            self.x[first] = bound[first]  # without rounding
        return length, first

    def _flip(self, change: int) -> None:
        """Let an unknown or a constraint change sides."""
        n = len(self.x)
        if change < n:
            self.free[change] = ~self.free[change]
        else:
            self.active[change - n] = ~self.active[change - n]
            self.y = torch.where(self.active, self.y, 0.0)
        self.F, self.E = self._sets()

    def _sets(self) -> tuple[Tensor, Tensor]:
        return self.free.nonzero().reshape(-1), self.active.nonzero().reshape(-1)

    def _complete(self, F: list[int]) -> bool:
        """Add the columns of F, by differences; whether that was within bounds."""
        missing = [i for i in F if i not in self.columns]
        if len(self.columns) + len(missing) > self.max_columns:
            return False
        h = torch.finfo(self.x.dtype).eps ** 0.4 * self.length
        for i in missing:
            if self.stop():
                return False
            x = self.origin.reshape(-1).clone()
            x[i] += h if x[i] + h <= self.upper[i] else -h
            at = self.oracle.at(x.view(self.origin.shape))
            dr, dv = at.r - self.r_0, at.gradient(self.y_0).reshape(-1) - self.v_0
            self.columns[i] = torch.cat((dv, dr)) / (x[i] - self.origin.reshape(-1)[i])
        return True
