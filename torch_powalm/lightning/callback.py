"""PowerALMCallback: decides when to update the multipliers, and logs, saves and restores them."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch_powalm.checks.state_checks import check_count, check_keys, check_list
from torch_powalm.lightning.checkpoint_guard import check_before_loading, check_ranks
from torch_powalm.lightning.compat import CALLBACKS
from torch_powalm.lightning.metrics import (
    PREFIX,
    log,
    update_columns,
    violation_columns,
    write,
)
from torch_powalm.training.feasibility import largest
from torch_powalm.training.optimizer import PowerALMOptimizer
from torch_powalm.training.registry import ConstraintRegistry


class PowerALMCallback(*(module.Callback for module in CALLBACKS)):  # type: ignore[misc]
    """Updates, logs, saves and restores the multipliers of every PowerALMOptimizer of a Trainer.

    Records are logged as `powalm/primal_residual`, `powalm/beta`, `powalm/violation/NAME` and so
    on (`powalm/0/…`, `powalm/1/…` for several wrapped optimizers); violations that the module
    observes in validation as `powalm/val/violation/NAME`.

    Args:
        epochs: number of epochs between updates. If no rule is given, the optimizer's own rule
            decides, which knows the length of the run from the trainer.
        steps: number of optimizer steps between updates.
        lam: update when the running norm of the augmented gradient is at most lam/β, in measured
            units unless beta_1 was given (`PowerALMOptimizer.should_update`).
        eps_A: stop if ‖(A, max(B, 0))‖ is at most this at an update (and eps_phi holds, if given).
        eps_phi: stop if the running gradient norm is at most this at an update (and eps_A holds).
        clip_total: let the trainer clip the total gradient, not only that of the augmented loss.

    Example:
        trainer = L.Trainer(callbacks=[PowerALMCallback(steps=500, eps_A=1e-3)])
    """

    def __init__(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        lam: float | None = None,
        eps_A: float | None = None,
        eps_phi: float | None = None,
        clip_total: bool = True,
    ) -> None:
        super().__init__()
        if [epochs, steps, lam].count(None) < 2:
            raise ValueError(
                "PowerALMCallback takes at most one of epochs, steps and lam, "
                f"got {epochs!r}, {steps!r} and {lam!r}"
            )
        for name, every in (("epochs", epochs), ("steps", steps)):
            if every is not None and not (isinstance(every, int) and every >= 1):
                raise ValueError(f"{name} must be a positive integer, got {every!r}")
        for name, bound in (("lam", lam), ("eps_A", eps_A), ("eps_phi", eps_phi)):
            if bound is not None and not bound > 0:
                raise ValueError(f"{name} must be positive, got {bound!r}")
        self._manual = [epochs, steps, lam].count(None) < 3
        self.epochs = epochs if self._manual else 1
        self.steps, self.lam = steps, lam
        self.eps_A, self.eps_phi = eps_A, eps_phi
        self.clip_total = clip_total
        self._optimizers: list[PowerALMOptimizer] = []
        self._loaded: list[dict[str, Any]] | None = None
        self._saved_epoch = math.inf  # of the checkpoint that the trainer resumes from

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make the strategy check every checkpoint before it reads it."""
        check_before_loading(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the wrapped optimizers."""
        self._optimizers = [o for o in trainer.optimizers if isinstance(o, PowerALMOptimizer)]
        if not self._optimizers:
            names = ", ".join(type(o).__name__ for o in trainer.optimizers) or "none"
            raise ValueError(
                "configure_optimizers must return a PowerALMOptimizer for PowerALMCallback, "
                f"got {names}"
            )
        for optimizer in self._optimizers:
            check_ranks(trainer.strategy, optimizer)
            optimizer.mark_managed()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the multipliers of a checkpoint: some strategies restore callbacks only now."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            if len(loaded) != len(self._optimizers):
                raise ValueError(
                    f"checkpoint must have multipliers of {len(self._optimizers)} optimizers, "
                    f"got {len(loaded)}"
                )
            pairs = zip(self._optimizers, loaded, strict=True)
            loads = [optimizer.prepare_powalm(state) for optimizer, state in pairs]
            for load in loads:  # all of them have been checked
                load()
        elif trainer.ckpt_path is not None and not any(o.dual.started for o in self._optimizers):
            warnings.warn("checkpoint has no multipliers; they start from 0", stacklevel=2)
        total = trainer.estimated_stepping_batches
        for optimizer in self._optimizers:
            known = optimizer.schedule.total_steps
            if known is None and 1 <= total < math.inf:
                known = int(total)
            optimizer.set_length(known, manual=self._manual)
        # If a checkpoint was saved between the last batch and the end of an epoch, Lightning
        # resumes with the next epoch and skips the hooks of the end: run the update that it skips.
        if self._saved_epoch < trainer.current_epoch:
            write(trainer, self._update_by_epochs(trainer, int(self._saved_epoch)))
        self._saved_epoch = math.inf

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Add the parameter-only blocks before the trainer clips the gradient, if there is one."""
        if (
            self.clip_total
            and isinstance(optimizer, PowerALMOptimizer)
            and any(p.grad is not None for p in optimizer.params)
        ):
            optimizer.backward_constraints()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Update if the rule `steps` or `lam` says so."""
        if self.epochs is not None:
            return
        due = [o for o in self._optimizers if o.should_update(steps=self.steps, lam=self.lam)]
        if due:
            metrics = self._update(trainer, due)
            log(pl_module, metrics, on_step=True, on_epoch=False, logger=False)
            write(trainer, metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Update if the rule `epochs` says so."""
        metrics = self._update_by_epochs(trainer, trainer.current_epoch)
        log(pl_module, metrics, sync_dist=trainer.world_size > 1)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log current violations, with the values of batch blocks that the module observed."""
        self._log_observed(trainer, pl_module, "val/")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log violations as in validation."""
        self._log_observed(trainer, pl_module, "test/")

    def registries(self) -> list[ConstraintRegistry]:
        """Return the registries of the wrapped optimizers, each once."""
        return list(dict.fromkeys(o.constraints for o in self._optimizers))

    def max_violation(self) -> float:
        """Return the largest current violation over all blocks; inf before the first batch."""
        found = [o.constraints.violations() for o in self._optimizers]
        return largest(v.max for violations in found for v in violations.values())

    def state_dict(self) -> dict[str, Any]:
        """Save the multipliers again: sharded strategies drop them from the optimizer's state."""
        return {"optimizers": [o.powalm_state_dict() for o in self._optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state until training starts; a checkpoint from before (lr_find) has none."""
        state = check_keys(state_dict, "state of PowerALMCallback", ["optimizers"])["optimizers"]
        where = "state of PowerALMCallback['optimizers']"
        self._loaded = check_list(state, where, lambda item, _: item) or None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Remember the epoch, to detect that its end was skipped."""
        self._saved_epoch = check_count(checkpoint.get("epoch"), "checkpoint['epoch']")

    def _update_by_epochs(self, trainer: Any, epoch: int) -> dict[str, float]:
        """Update the optimizers that have stepped since their last update."""
        if self.epochs is None or (epoch + 1) % self.epochs:
            return {}
        due = [
            o
            for o in self._optimizers
            if o.epoch.steps > 0 or (o.schedule.updates == "auto" and o.epoch.total_steps > 0)
        ]
        return self._update(trainer, due)

    def _update(self, trainer: Any, due: list[PowerALMOptimizer]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        converged = []
        for optimizer in due:
            dual_residual = float(optimizer.epoch.gradient_norm)
            record = optimizer.update_multipliers()
            converged.append(
                record.primal_residual <= (math.inf if self.eps_A is None else self.eps_A)
                and dual_residual <= (math.inf if self.eps_phi is None else self.eps_phi)
            )
            values = {**update_columns(record, optimizer), "dual_residual": dual_residual}
            metrics.update({self._prefix(optimizer) + name: v for name, v in values.items()})
        asked = self.eps_A is not None or self.eps_phi is not None
        if asked and len(due) == len(self._optimizers) and all(converged):
            trainer.should_stop = True
        return metrics

    def _log_observed(self, trainer: Any, pl_module: Any, stage: str) -> None:
        groups = {o.constraints: (self._prefix(o), o.ranks.group) for o in self._optimizers}
        if not groups:  # no training yet: use the module's registries
            own = [v for v in vars(pl_module).values() if isinstance(v, ConstraintRegistry)]
            groups = {registry: (PREFIX, None) for registry in own}
        metrics: dict[str, float] = {}
        for registry, (prefix, group) in groups.items():
            found = {**registry.violations(), **registry.take_observed(group)}
            columns = violation_columns(found)
            metrics |= {f"{prefix}{stage}{name}": value for name, value in columns.items()}
        if not trainer.sanity_checking:
            log(pl_module, metrics, sync_dist=trainer.world_size > 1)

    def _prefix(self, optimizer: PowerALMOptimizer) -> str:
        if len(self._optimizers) == 1:
            return PREFIX
        index = next(i for i, o in enumerate(self._optimizers) if o is optimizer)
        return f"{PREFIX}{index}/"
