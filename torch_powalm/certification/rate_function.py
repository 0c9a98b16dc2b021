"""A block's function of its statistics, seen as functions of rates, and the signs of its slopes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_powalm.certification.binomial_bounds import Counts
from torch_powalm.certification.optional_scipy import load
from torch_powalm.certification.samples import Pairs, default_pairs
from torch_powalm.training.block import Block

_POINTS, _LINES = 21, 5  # values of one rate, and settings of the others, to test monotonicity
_ROUNDING = 1e-5  # statistics may be in single precision


class RateFunctions:
    """The entries of a block as functions of rates; each must be monotone in every rate.

    Args:
        block: the constraint.
        groups: counts of the held-out data.
        pairs: positions of (successes, trials) in the statistics; None for the default.
        bound: the constant that is added to the block's values; None for minus the value at 0.
    """

    def __init__(
        self, block: Block, groups: Sequence[Counts], pairs: Pairs | None, bound: float | None
    ) -> None:
        self.block, self.count = block, len(groups)
        self.pairs: Pairs = [(0, 1)]
        if block.from_statistics is not None:
            self.pairs = default_pairs(block, 2 * len(groups)) if pairs is None else pairs
            self._check_rates_alone(groups)
        np = load("numpy")
        if block.from_statistics is None:
            self.shift = np.full(block.size, 0.0 if bound is None else bound)
            self.signs = [[1]] * (block.size or 0)
        else:
            at_zero = -self.values(np.zeros((1, self.count)))[0]
            finite = np.where(np.isfinite(at_zero), at_zero, 0.0)
            self.shift = finite if bound is None else np.full(block.size, bound)
            self.signs = self._slopes()

    def values(self, rates: Any) -> Any:
        """Return the values of the block for rows of rates."""
        np, fn = load("numpy"), self.block.from_statistics
        if fn is None:
            return rates - self.shift
        rates = torch.from_numpy(np.atleast_2d(rates))
        sums = torch.ones(len(rates), 1 + max(max(pair) for pair in self.pairs)).double()
        for j, (k, _) in enumerate(self.pairs):
            sums[:, k] = rates[:, j]
        try:
            rows = torch.vmap(lambda s: fn(s).reshape(-1))(sums)
        except (RuntimeError, ValueError):  # a function with branches or numbers of its own
            rows = torch.stack([fn(s).reshape(-1) for s in sums])
        return rows.detach().double().numpy()

    def side(self, entry: int, side: int) -> tuple[Callable[[Any], Any], list[int]]:
        """Return an entry or its negative as a function of rates, and the signs of its slopes."""
        single = self.block.from_statistics is None

        def fn(rates: Any) -> Any:
            if single:
                return side * rates[..., 0]
            found = side * (self.values(rates)[:, entry] + self.shift[entry])
            return found if rates.ndim > 1 else found[0]

        return fn, [side * sign for sign in self.signs[entry]]

    def asked(self, entry: int, side: int) -> float:
        """Return the bound that was asked for, without tolerance."""
        return float(side * self.shift[entry])

    def _check_rates_alone(self, groups: Sequence[Counts]) -> None:
        """Raise if the function also depends on the sizes of the groups."""
        np, fn = load("numpy"), self.block.from_statistics or torch.clone
        sums = torch.zeros(1 + max(max(pair) for pair in self.pairs), dtype=torch.float64)
        for (k, n), counts in zip(self.pairs, groups, strict=True):
            sums[k], sums[n] = counts.successes, counts.trials
        direct = fn(sums).detach().double().reshape(-1).numpy()
        rates = np.array([[counts.successes / counts.trials for counts in groups]])
        found = self.values(rates)[0]
        rounding = {"rtol": _ROUNDING, "atol": _ROUNDING * self._span(), "equal_nan": True}
        if not np.allclose(direct, found, **rounding):
            raise ValueError(
                f"from_statistics of {self.block.name!r} must depend on the rates of pairs alone, "
                f"got {direct.tolist()} from counts and {found.tolist()} from rates"
            )

    def _span(self) -> float:
        """Return how far the values of the block reach: the unit of what counts as a change."""
        np = load("numpy")
        corners = np.stack([np.full(self.count, share) for share in (0.0, 0.5, 1.0)])
        values = self.values(np.concatenate([corners, self._others()]))
        values = values[np.isfinite(values)]
        return float(values.max() - values.min()) if len(values) else 0.0

    def _others(self) -> Any:
        return load("numpy").random.default_rng(0).random((_LINES, self.count))

    def _slopes(self) -> list[list[int]]:
        """Return the sign of each entry's slope in each rate."""
        np, tiny = load("numpy"), 1e-9 * self._span()
        signs = [[0] * self.count for _ in range(self.block.size or 0)]
        for j in range(self.count):
            for line in self._others():
                rates = np.repeat(line[None], _POINTS, 0)
                rates[:, j] = np.linspace(0.0, 1.0, _POINTS)
                change = np.diff(self.values(rates), axis=0)
                for entry, steps in enumerate(change.T):
                    self._follow(signs, entry, j, steps[np.isfinite(steps)], tiny)
        return signs

    def _follow(self, signs: list[list[int]], entry: int, j: int, steps: Any, tiny: float) -> None:
        rises, falls = bool((steps > tiny).any()), bool((steps < -tiny).any())
        before = signs[entry][j]
        if (rises and falls) or (before and before * (rises - falls) < 0):
            raise ValueError(
                f"entry {entry} of {self.block.name!r} must rise or fall with each rate (for an "
                f"absolute value, register one entry for each sign), got both in rate {j}"
            )
        signs[entry][j] = before or int(rises) - int(falls)
