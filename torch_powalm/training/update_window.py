"""UpdateWindow: values, violations and multipliers at the last updates, and what they show."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

UPDATES = 16  # remembered
STREAK = 12  # consecutive updates after which a state counts as lasting
ENTRIES = 1000  # remembered per block, evenly spaced

_FALL = 0.9  # a mean violation above this part of the mean before it has not fallen
_REST = 0.995  # the same where less is known about the loss
_SWING = 3.0  # smallest of an oscillation, in tolerances
_SIGN_CHANGES = 3  # fewest of an oscillation
_MISFIT = 0.25  # largest of an oscillation


class UpdateWindow:
    """The last multiplier updates, as three tables with a row per update.

    Args:
        sizes: number of entries of each block, by name.
        inequality: which entries are inequalities; None if none is.
    """

    def __init__(self, sizes: Mapping[str, int], inequality: Tensor | None) -> None:
        self.columns: dict[str, slice] = {}  # of the tables, by block
        kept, start, end = [], 0, 0
        for name, size in sizes.items():
            count = min(size, ENTRIES)
            kept.append(start + torch.arange(count) * size // count)
            self.columns[name] = slice(end, end + count)
            start, end = start + size, end + count
        self.kept = torch.cat(kept)  # indices of the columns in r
        self._inequality = None if inequality is None else self._cut(inequality).bool()
        self.values = torch.zeros(0, end, dtype=torch.float64)
        self.y = self.values
        self.violations = self.values  # |A| and max(B, 0)
        self.x: Tensor | None = None  # some parameters

    def add(self, r: Tensor, excess: Tensor, y: Tensor, x: Tensor) -> None:
        """Add an update: r, its violated part, the multipliers afterwards, some parameters."""
        self.x = x[None] if self.x is None else torch.cat([self.x[1 - UPDATES :], x[None]])
        self.values = torch.cat([self.values[1 - UPDATES :], self._cut(r)[None]])
        self.violations = torch.cat([self.violations[1 - UPDATES :], self._cut(excess).abs()[None]])
        self.y = torch.cat([self.y[1 - UPDATES :], self._cut(y)[None]])

    def move(self) -> float:
        """Return how far the parameters have moved in a streak, relative to their length."""
        if self.x is None or self.x.numel() == 0:
            return 0.0
        moved = torch.linalg.vector_norm(self.x[-1] - self.x[-STREAK:][0])
        return float(moved / torch.linalg.vector_norm(self.x[-1]))

    def is_lasting(self, name: str, tolerance: float) -> bool:
        """Whether a block has been violated at every update of a streak and has not improved."""
        found = self.violations[-STREAK:, self.columns[name]]
        if len(found) < STREAK or not bool((found.amax(1) > tolerance).all()):
            return False
        return bool(_falls_little(torch.linalg.vector_norm(found, dim=1)))

    def is_pushed(self, name: str, tolerance: float) -> Tensor:
        """Return the mask of the entries that are violated and whose multipliers grow."""
        columns = self.columns[name]
        found, y = self.violations[-STREAK:, columns], self.y[-STREAK - 1 :, columns].abs()
        if len(y) <= STREAK:
            return torch.zeros(found.shape[1], dtype=torch.bool)
        growth = y.diff(dim=0)  # 0 at an update that found the violation falling fast
        return (growth >= 0).all(0) & (growth.sum(0) > 0) & (found > tolerance).all(0)

    def has_not_fallen(self, name: str) -> Tensor:
        """Return the mask of the entries whose violation has not fallen during the streak."""
        return _falls_little(self.violations[-STREAK:, self.columns[name]])

    def is_at_rest(self, names: Iterable[str]) -> bool:
        """Whether the violations of some blocks are constant, on average, over the window."""
        if len(self.violations) < UPDATES:
            return False
        ratios = []
        for name in names:
            found = torch.linalg.vector_norm(self.violations[:, self.columns[name]], dim=1)
            ratios.append(found[UPDATES // 2 :].mean() / found[: UPDATES // 2].mean())
        return bool(torch.stack(ratios).mean() >= _REST)

    def oscillates(self, name: str, tolerance: float) -> bool:
        """Whether the worst entry of a block swings around 0 without damping.

        Inequalities count while they have a multiplier. A swing of constant period satisfies
        v_{k+1} + v_{k−1} = c v_k; noise does not.
        """
        columns = self.columns[name]
        values = self.values[:, columns]
        if len(values) < UPDATES:
            return False
        if self._inequality is not None:
            active = ~self._inequality[columns] | (self.y[:, columns] != 0).any(0)
            values = values[:, active]
        if values.shape[1] == 0:
            return False
        v = values[:, values.square().sum(0).argmax()]
        early, late = v[: UPDATES // 2].square().mean(), v[UPDATES // 2 :].square().mean()
        if late < early or late <= (_SWING * tolerance) ** 2:
            return False
        changes = int((v.sign().diff() != 0).sum())
        middle, sides = v[1:-1], v[2:] + v[:-2]
        c = (middle @ sides) / (middle @ middle)
        misfit = (sides - c * middle).square().sum() / (v[2:].square() + v[:-2].square()).sum()
        return changes >= _SIGN_CHANGES and bool(misfit <= _MISFIT)

    def _cut(self, vector: Tensor) -> Tensor:
        """Return the remembered entries of a vector like r, on the CPU."""
        return vector.detach()[self.kept.to(vector.device)].to("cpu", torch.float64)


def _falls_little(found: Tensor) -> Tensor:
    """Whether violations in the second half of a streak are about as large as in its first half."""
    half = len(found) // 2
    return found[half:].mean(0) > _FALL * found[:half].mean(0)
