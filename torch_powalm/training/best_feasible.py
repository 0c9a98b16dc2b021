"""BestFeasible: keeps the best feasible state of a plain training loop."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_powalm.checks.state_checks import (
    check_count,
    check_keys,
    check_list,
    check_number,
    check_storage,
    refuse,
)
from torch_powalm.result import Violation
from torch_powalm.training.feasibility import Tolerance, check_tolerance, largest, rank
from torch_powalm.training.optimizer import PowerALMOptimizer
from torch_powalm.training.registry import ConstraintRegistry

_KEYS = ("model", "merit", "violation", "key", "worst")


class BestFeasible:
    """Keeps a copy of the best model state among those whose violation is within tolerance.

    While there is none, it keeps the least violated state. A state whose merit or violation is nan
    or infinite is never kept, and the earlier of two equal states stays.

        best = BestFeasible(model, optimizer, tolerance=1e-2)
        for epoch in range(epochs):
            ...
            best.update(val_loss)
        best.restore()

    Args:
        model: the model whose parameters and buffers are kept.
        constraints: the registry, or an optimizer that uses it.
        tolerance: largest violation of a feasible model, ≥ 0, in the units of the constraints; or
            a mapping with one for every block, each > 0: then violations count relative to them.
    """

    def __init__(
        self,
        model: nn.Module,
        constraints: ConstraintRegistry | PowerALMOptimizer,
        tolerance: Tolerance,
    ) -> None:
        group = None
        if isinstance(constraints, PowerALMOptimizer):
            group, constraints = constraints.ranks.group, constraints.constraints
        if not isinstance(constraints, ConstraintRegistry):
            got = type(constraints).__name__
            raise TypeError(f"constraints must be a registry or a PowerALMOptimizer, got {got}")
        check_tolerance(tolerance, constraints.blocks)
        if isinstance(tolerance, Mapping):
            for name in constraints.blocks:
                if not tolerance.get(name, 0.0) > 0:
                    got = tolerance.get(name)
                    raise ValueError(f"tolerance of {name!r} must be positive, got {got!r}")
        self.model, self.tolerance = model, tolerance
        self._constraints, self._group = constraints, group
        self._model_state: dict[str, Any] | None = None
        self._key = (2, math.inf)
        self.merit, self.violation, self.worst = math.nan, math.nan, ""

    @property
    def feasible(self) -> bool:
        """Whether the kept state is feasible."""
        return self._model_state is not None and self._key[0] == 0

    @torch.no_grad()
    def update(
        self, merit: float | Tensor, violations: Mapping[str, Violation] | None = None
    ) -> bool:
        """Compare the current model with the kept one, and keep the better; return whether it is.

        Args:
            merit: what to minimize among feasible models, e.g. the validation loss; on all ranks
                the same.
            violations: violations by block; None for those that `constraints.observe` recorded
                since the last call, and `constraints.violations()` for the other blocks.
        """
        if violations is None:
            observed = self._constraints.take_observed(self._group)
            violations = {**self._constraints.violations(), **observed}
        found = {name: self._relative(name, violations) for name in self._constraints.blocks}
        worst = largest(found.values())
        limit = 1.0 if isinstance(self.tolerance, Mapping) else self.tolerance
        value = float(merit.detach() if isinstance(merit, Tensor) else merit)
        key = rank(value, worst, limit)
        if key[0] == 2 or key >= self._key:
            return False
        self._key, self.merit = key, value
        self.worst = max(found, key=lambda name: found[name])
        self.violation = violations[self.worst].max
        self._model_state = copy.deepcopy(self.model.state_dict())
        return True

    def restore(self) -> "BestFeasible":
        """Load the kept state into the model, and return self; `print` says whether it is feasible.

        The states of optimizers do not change.
        """
        if self._model_state is None:
            raise RuntimeError("cannot restore: no state has been kept; call update() first")
        self.model.load_state_dict(self._model_state)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the kept state, for a checkpoint."""
        values = (self._model_state, self.merit, self.violation, self._key, self.worst)
        return dict(zip(_KEYS, values, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        state = check_keys(state_dict, "state_dict", _KEYS)
        merit, violation = (_checked_measure(state[key], key) for key in ("merit", "violation"))
        tier, value = check_list(state["key"], "state_dict['key']", lambda item, _: item, 2)
        tier = check_count(tier, "state_dict['key'][0]")
        value = check_number(value, "state_dict['key'][1]", infinite=True)
        kept, worst = state["model"], state["worst"]
        if kept is not None:
            check_model(self.model, kept, "state_dict['model']")
        if tier > 2 or (tier == 2) != (kept is None) or (tier == 2) != (value == math.inf):
            refuse("state_dict['key']", "be that of the kept state", state["key"])
        if worst not in ((*self._constraints.blocks,) if kept is not None else ("",)):
            refuse("state_dict['worst']", "be the name of a constraint", worst)
        if kept is not None and not (math.isfinite(merit) and violation >= 0):
            refuse("state_dict['merit'] and ['violation']", "be finite", (merit, violation))
        try:
            copied = copy.deepcopy(kept)
        except RuntimeError:
            refuse("state_dict['model']", "have tensors that can be copied", kept)
        self._model_state, self.merit, self.violation = copied, merit, violation
        self._key, self.worst = (tier, value), worst

    def _relative(self, name: str, violations: Mapping[str, Violation]) -> float:
        """Return the violation of a block, relative to its tolerance if each block has one."""
        found = violations.get(name)
        if found is None or (math.isnan(found.max) and found.never_seen):
            raise RuntimeError(
                f"cannot judge {name!r}: no value of it has been seen; "
                "call augment() or constraints.observe() first"
            )
        return found.max / (self.tolerance[name] if isinstance(self.tolerance, Mapping) else 1.0)

    def __str__(self) -> str:
        if self._model_state is None:
            return "BestFeasible: no state kept yet"
        kind = "feasible" if self.feasible else "no feasible state so far; least violated"
        largest_violation = f"largest violation {self.violation:.3g} ({self.worst})"
        return f"BestFeasible: {kind}: merit {self.merit:.6g}, {largest_violation}"


def _checked_measure(value: Any, key: str) -> float:
    """Return a merit or a violation, nan if there is none yet."""
    if isinstance(value, float) and math.isnan(value):
        return value
    return check_number(value, f"state_dict[{key!r}]")


def check_model(model: nn.Module, state: Any, where: str) -> None:
    """Raise unless a saved state has the names, shapes and kinds of a model's own."""
    own = model.state_dict()
    check_keys(state, where, own)
    for name, here in own.items():
        found, place = state[name], f"{where}[{name!r}]"
        if isinstance(here, Tensor):
            if isinstance(found, Tensor):
                check_storage(found, place, sparse=here.is_sparse)
            fits = isinstance(found, Tensor) and found.shape == here.shape
            if not fits or found.is_floating_point() != here.is_floating_point():
                refuse(place, f"be a tensor of shape {tuple(here.shape)} and {here.dtype}", found)
