"""The last steps of a run: the linearised conditions, solved by a parametric active-set method."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_powalm.certificate import Certified
from torch_powalm.linearisation import Linearisation, on_host
from torch_powalm.problem import Problem
from torch_powalm.prox import Bounded
from torch_powalm.prox.faces import like

_CHANGES = 30  # of the active set
_LARGEST = 300  # free unknowns and active constraints: the size of a dense linear system
_ENTRIES = 10**7  # of all columns
_CORRECTIONS = 2  # Newton steps with the matrix of the linearisation
_REGULAR = 1e-10  # δ, relative to ‖H‖ where J is scaled to be as large
_SAME = 1e-3  # change of H, relative to H, that is none

Pair = tuple[Tensor, Tensor]


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
    matrix there has as many negative eigenvalues as E has entries: no saddle point or maximum on F.

    Reference: Best 1996; Ferreau, Bock, Diehl 2008 (parametric active sets).

    Args:
        problem: the problem.
        point: x in dom g and y ≥ 0 for inequalities.
        eps_phi: tolerance of the dual residual.
        eps_A: tolerance of the primal residual.
        max_columns: bound on the columns.
        stop: whether the budget of the run is used up.
    """
    g, x, y = problem.g, point.x, point.y
    if not (isinstance(g, Bounded) and g.is_indicator and isinstance(g.bounds, tuple)):
        return None
    lower, upper = (like(bound, x) for bound in g.bounds)
    inside = int(((x > lower) & (x < upper)).sum())
    if inside > min(max_columns, _LARGEST) or inside * (x.numel() + len(y)) > _ENTRIES:
        return None
    bounds = (on_host(torch.zeros_like(x) + bound) for bound in (lower, upper))
    way = _Way(Linearisation(problem, x, y, max_columns, stop), *bounds)
    matrix = way.follow()
    if matrix is None:
        return None
    for _ in range(_CORRECTIONS + 1):
        x, y = g.prox(way.x.to(x).view_as(x), 1.0), way.y.to(y)
        there = Linearisation(problem, x, y, len(way.F), stop)
        residuals = problem.measure(there.at, y)
        if residuals.primal <= eps_A and residuals.dual <= eps_phi:
            if not way.is_minimum(matrix, there):
                return None
            return Certified(x, y, residuals, there.at.f + g.value(x), "active set")
        if not way.correct(matrix, there):
            return None
    return None


class _Way:
    """From a point to the solution of its linearisation: x, y, v, r, and the sets F and E."""

    def __init__(self, model: Linearisation, lower: Tensor, upper: Tensor) -> None:
        self.model, self.lower, self.upper = model, lower, upper
        self.x, self.y = model.flat, on_host(model.y)
        self.v, self.r = model.v, model.r
        self.inequality = model.inequality
        self.active = ~self.inequality | (self.y > 0)
        # At a bound with a v that leads away from it counts as free.
        self.bounded = self.lower < self.upper  # what is not is fixed
        self.free = (self.x > self.lower) | (self.v < 0)
        self.free &= (self.x < self.upper) | (self.v > 0)
        self.free &= self.bounded
        self.F, self.E = self._sets()
        self.columns = self.x.new_zeros(0)  # those of F
        self.scale = self.delta = 0.0  # factor of J that makes it as large as H, and δ

    def follow(self) -> Tensor | None:
        """Go to the solution; return the matrix there, None if it is not reached."""
        last = -1
        for _ in range(_CHANGES):
            matrix = self._matrix(self.model)
            step = None if matrix is None else self._newton(matrix)
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

    def correct(self, matrix: Tensor, there: Linearisation) -> bool:
        """A Newton step with the true residuals; False if there is none."""
        self.x, self.v, self.r = there.flat, there.v, there.r
        step = self._newton(matrix)
        if step is not None:
            self.x, self.y = self.x + step[0], self.y + step[1]
        return step is not None

    def is_minimum(self, matrix: Tensor, there: Linearisation) -> bool:
        """Whether the matrix has the signs of a minimum; it is made anew if H has changed."""
        n, d = len(self.F), torch.zeros_like(self.x)
        noise = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        d[self.F] = noise / math.sqrt(n)
        H = matrix[:n, :n]
        # The length of ΔH d is that of the columns of ΔH, on average.
        change = there.product(d)[self.F] - H @ d[self.F]
        if not float(torch.linalg.vector_norm(change)) <= _SAME * float(H.abs().max()):
            again = self._matrix(there)
            if again is None:
                return False
            matrix = again
        if not matrix.isfinite().all():
            return False
        return int((torch.linalg.eigvalsh(matrix) < 0).sum()) == len(self.E)

    def _matrix(self, model: Linearisation) -> Tensor | None:
        """The matrix for F and E, J scaled; None where it would be too large or cost too much."""
        n, size = len(self.F), len(self.F) + len(self.E)
        fits = 0 < n and size <= _LARGEST
        columns = model.columns(self.F.tolist(), self.upper) if fits else None
        if columns is None:
            return None
        self.columns = columns
        H, J = columns[self.F], columns[len(self.x) + self.E]
        if self.delta == 0:
            H_max, J_max = (float(part.abs().max()) if len(part) else 0.0 for part in (H, J))
            self.scale = (H_max or 1.0) / (J_max or 1.0)
            self.delta = max(_REGULAR, model.eps**0.8) * (H_max or 1.0)
        matrix = H.new_zeros(size, size)
        matrix[:n, :n] = (H + H.T) / 2
        matrix[n:, :n], matrix[:n, n:] = self.scale * J, self.scale * J.T
        matrix.diagonal()[n:] = -self.delta
        return matrix

    def _newton(self, matrix: Tensor) -> Pair | None:
        return self._solve(matrix, -torch.cat((self.v[self.F], self.scale * self.r[self.E])))

    def _leap(self, matrix: Tensor, i: int) -> Pair | None:
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

    def _solve(self, matrix: Tensor, right: Tensor) -> Pair | None:
        """The steps of x and y, 0 beside F and E; None if there is none."""
        step, info = torch.linalg.solve_ex(matrix, right)
        if info.item() != 0 or not step.isfinite().all():
            return None
        dx, dy = torch.zeros_like(self.x), torch.zeros_like(self.y)
        dx[self.F], dy[self.E] = step[: len(self.F)], self.scale * step[len(self.F) :]
        return dx, dy

    def _advance(self, dx: Tensor, dy: Tensor, longest: float) -> tuple[float, int]:
        """Go along a step, to the first change at most; return how far, and which change it is.

        Changes are numbered by unknowns, and after them by constraints.
        """
        n = len(self.x)
        change = torch.mv(self.columns, dx[self.F])
        dv, dr = change[:n] + self.model.pull(dy), change[n:]
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

    def _sets(self) -> Pair:
        return self.free.nonzero().reshape(-1), self.active.nonzero().reshape(-1)
