"""Lightning: when multipliers are updated, what is logged, which checkpoint is the best.

    trainer = L.Trainer(callbacks=[PowerALMCallback(), FeasibleCheckpoint(tolerance=1e-3)])

The module calls `self.optimizers().augment(loss, …)` in training_step, where it has batch blocks,
and `self.constraints.observe(…)` in validation_step, where it wants to see them there.
"""

import functools
import importlib
import math
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.files import check_checkpoint
from torch_powalm.optimizer import PowerALMOptimizer
from torch_powalm.ranks import Ranks
from torch_powalm.result import DualRecord


def _flavours() -> list[Any]:
    """The callbacks of `lightning` and of `pytorch_lightning`: two names, two sets of classes."""
    found = []
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    if not found:
        raise ImportError(
            "torch_powalm.lightning needs Lightning; install it with "
            "pip install 'torch-powalm[lightning]'"
        )
    return found


_CALLBACKS = _flavours()
_PREFIX = "powalm/"
_SHOWN = ("/primal_residual", "/beta", "/val/max_violation")  # in the progress bar
_SCORE = "powalm/feasible_loss"
_INFEASIBLE = 1e20  # times the violation: above every loss, and as exact as the violation
_LEAST = 1e-10  # a violation counts as at least this


class PowerALMCallback(*(module.Callback for module in _CALLBACKS)):  # type: ignore[misc]
    """Updates, logs, saves and restores the multipliers of every PowerALMOptimizer of a Trainer.

    Records are logged as `powalm/primal_residual`, `powalm/beta`, `powalm/violation/NAME` and so
    on (`powalm/0/…`, `powalm/1/…` for several wrapped optimizers); what the module observes in
    validation as `powalm/val/violation/NAME`.

    Args:
        epochs: update at the end of every so many epochs; 1 when no other rule is given.
        steps: update after every so many steps of the optimizer.
        lam: update when the running norm of the augmented gradient is at most lam/β.
        eps_A: stop when an update sees ‖(A, max(B, 0))‖ at most this (and eps_phi, if given).
        eps_phi: stop when an update sees a running norm of the gradient at most this (and eps_A).
        clip_total: let the trainer clip the gradient of loss and constraints, not of the loss only.

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
        self.epochs = 1 if steps is None and lam is None and epochs is None else epochs
        self.steps, self.lam = steps, lam
        self.eps_A, self.eps_phi = eps_A, eps_phi
        self.clip_total = clip_total
        self._optimizers: list[PowerALMOptimizer] = []
        self._loaded: list[dict[str, Any]] | None = None
        self._saved_epoch = math.inf  # in which the checkpoint was written that is resumed from

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Have checkpoints checked before Lightning reads them."""
        strategy = trainer.strategy
        if not isinstance(strategy.load_checkpoint, functools.partial):
            load = functools.partial(_load_checked, trainer, strategy.load_checkpoint)
            strategy.load_checkpoint = load

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
            _check_ranks(trainer.strategy, optimizer)
            optimizer.watch()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Apply what a checkpoint has brought: some strategies load it only now."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            if len(loaded) != len(self._optimizers):
                raise ValueError(
                    f"checkpoint must have multipliers of {len(self._optimizers)} optimizers, "
                    f"got {len(loaded)}"
                )
            for optimizer, state in zip(self._optimizers, loaded, strict=True):
                optimizer.load_powalm_state_dict(state)
        elif trainer.ckpt_path is not None and not any(o.dual.started for o in self._optimizers):
            warnings.warn("checkpoint has no multipliers, they start anew", stacklevel=2)
        # A checkpoint written after the last batch of an epoch and before its end: Lightning goes
        # on with the next epoch and leaves the end's hooks out.
        if self._saved_epoch < trainer.current_epoch:
            self._write(trainer, self._update_by_epochs(trainer, int(self._saved_epoch)))
        self._saved_epoch = math.inf

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Complete the gradient before the trainer clips it; a batch without a loss has none."""
        if (
            self.clip_total
            and isinstance(optimizer, PowerALMOptimizer)
            and any(p.grad is not None for p in optimizer.params)
        ):
            optimizer.backward_constraints()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Update by steps or by inexactness."""
        if self.epochs is not None:
            return
        due = [o for o in self._optimizers if o.should_update(steps=self.steps, lam=self.lam)]
        if due:
            metrics = self._update(trainer, due)
            _log(pl_module, metrics, on_step=True, on_epoch=False, logger=False)
            self._write(trainer, metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Update by epochs."""
        metrics = self._update_by_epochs(trainer, trainer.current_epoch)
        _log(pl_module, metrics, sync_dist=trainer.world_size > 1)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log violations at the parameters of now, of batch blocks as the module observed them."""
        self._log_observed(trainer, pl_module, "val/")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log violations as in validation."""
        self._log_observed(trainer, pl_module, "test/")

    def state_dict(self) -> dict[str, Any]:
        """The multipliers once more: sharded strategies drop them from the optimizer's state."""
        return {"optimizers": [o.powalm_state_dict() for o in self._optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep them until the training starts; a checkpoint made before one (lr_find) has none."""
        self._loaded = list(state_dict["optimizers"]) or None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Remember the epoch, to see whether its end has been left out."""
        self._saved_epoch = checkpoint["epoch"]

    def _update_by_epochs(self, trainer: Any, epoch: int) -> dict[str, float]:
        """Update where a step has been made since the last update."""
        if self.epochs is None or (epoch + 1) % self.epochs:
            return {}
        return self._update(trainer, [o for o in self._optimizers if o.steps > 0])

    def _write(self, trainer: Any, metrics: dict[str, float]) -> None:
        """Log at once, whatever log_every_n_steps is."""
        if metrics:
            for logger in trainer.loggers:
                row = {**metrics, "epoch": trainer.current_epoch}
                logger.log_metrics(row, step=trainer.global_step)

    def _update(self, trainer: Any, due: list[PowerALMOptimizer]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        converged = []
        for optimizer in due:
            dual_residual = optimizer.gradient_norm
            record = optimizer.update_multipliers()
            converged.append(
                record.primal_residual <= (math.inf if self.eps_A is None else self.eps_A)
                and dual_residual <= (math.inf if self.eps_phi is None else self.eps_phi)
            )
            values = {**_columns(record, optimizer), "dual_residual": dual_residual}
            metrics.update({self._prefix(optimizer) + name: v for name, v in values.items()})
        asked = self.eps_A is not None or self.eps_phi is not None
        if asked and len(due) == len(self._optimizers) and all(converged):
            trainer.should_stop = True
        return metrics

    def _log_observed(self, trainer: Any, pl_module: Any, stage: str) -> None:
        groups = {o.constraints: (self._prefix(o), o.process_group) for o in self._optimizers}
        if not groups:  # no training before: the module's own registries
            own = [v for v in vars(pl_module).values() if isinstance(v, ConstraintRegistry)]
            groups = {registry: (_PREFIX, None) for registry in own}
        metrics: dict[str, float] = {}
        for registry, (prefix, group) in groups.items():
            found = {**registry.violations(), **registry.take_observed(group)}
            if found:
                metrics[f"{prefix}{stage}max_violation"] = max(v.max for v in found.values())
            metrics |= {f"{prefix}{stage}violation/{name}": v.max for name, v in found.items()}
        if not trainer.sanity_checking:
            _log(pl_module, metrics, sync_dist=trainer.world_size > 1)

    def _prefix(self, optimizer: PowerALMOptimizer) -> str:
        if len(self._optimizers) == 1:
            return _PREFIX
        index = next(i for i, o in enumerate(self._optimizers) if o is optimizer)
        return f"{_PREFIX}{index}/"


def _check_ranks(strategy: Any, optimizer: PowerALMOptimizer) -> None:
    """Raise when ranks that share a batch (tensor parallel) would count as ranks of their own."""
    mesh = getattr(strategy, "device_mesh", None)
    ranks = Ranks(optimizer.process_group).size
    if mesh is not None and mesh["data_parallel"].size() != ranks:
        raise ValueError(
            "process_group must have the ranks whose gradients are averaged "
            '(self.device_mesh["data_parallel"].get_group()), '
            f"got {ranks} instead of {mesh['data_parallel'].size()} ranks"
        )


def _load_checked(trainer: Any, load: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint that is whole: of a folder every rank checks a part; all raise or none."""
    found = None
    try:
        if os.path.exists(path):
            check_checkpoint(path, trainer.global_rank, trainer.world_size)
    except ValueError as error:
        found = error
    if not trainer.strategy.reduce_boolean_decision(found is None):
        raise found or ValueError(
            f"checkpoint must be whole, got {path} (another rank has found damage)"
        )
    return load(path, *args, **kwargs)


def _log(pl_module: Any, metrics: Mapping[str, float], **settings: Any) -> None:
    for name, value in metrics.items():
        pl_module.log(name, value, prog_bar=name.endswith(_SHOWN), **settings)


def _columns(record: DualRecord, optimizer: PowerALMOptimizer) -> dict[str, float]:
    """A record as columns of a log."""
    multipliers = optimizer.powalm_state_dict()["y"] or {}
    return {
        "k": float(record.k),
        "primal_residual": record.primal_residual,
        "max_violation": max(v.max for v in record.violations.values()),
        "beta": record.beta,
        "sigma": record.sigma,
        "y_norm": record.y_norm,
        "skipped": float(optimizer.skipped),
        **{f"violation/{name}": v.max for name, v in record.violations.items()},
        **{f"y/{name}": float(torch.linalg.vector_norm(y)) for name, y in multipliers.items()},
    }


class FeasibleCheckpoint(*(module.ModelCheckpoint for module in _CALLBACKS)):  # type: ignore[misc]
    """Keeps the best model among those whose violation is within tolerance.

    While none is, it keeps the least infeasible one. The violation is the largest entry over all
    blocks, in validation where there is one. Needs PowerALMCallback in the same trainer.

    Args:
        tolerance: largest violation of a feasible model, ≥ 0.
        monitor: the logged loss that is to be small.
        **settings: of ModelCheckpoint.
    """

    def __init__(self, tolerance: float, monitor: str = "val_loss", **settings: Any) -> None:
        if not 0 <= tolerance < math.inf:
            raise ValueError(f"tolerance must be nonnegative and finite, got {tolerance!r}")
        if settings.get("mode", "min") != "min":
            raise ValueError(f"mode must be 'min', got {settings['mode']!r}")
        super().__init__(monitor=_SCORE, **settings)
        self.tolerance, self.loss = tolerance, monitor

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Score the model by the metrics of this validation."""
        if not trainer.sanity_checking:
            self._score(trainer, f"{_PREFIX}val/max_violation")
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Score the model by the epoch, where there is no validation."""
        if f"{_PREFIX}val/max_violation" not in trainer.callback_metrics:
            self._score(trainer, f"{_PREFIX}max_violation")
        super().on_train_epoch_end(trainer, pl_module)

    def _score(self, trainer: Any, violation: str) -> None:
        metrics = trainer.callback_metrics
        for needed in (self.loss, violation):
            if needed not in metrics:
                raise ValueError(
                    "monitor must be logged for FeasibleCheckpoint, and PowerALMCallback be in "
                    f"the trainer; {needed!r} is not among {', '.join(sorted(metrics))}"
                )
        metrics[_SCORE] = torch.tensor(
            feasible_loss(float(metrics[self.loss]), float(metrics[violation]), self.tolerance)
        )


def feasible_loss(loss: float, violation: float, tolerance: float) -> float:
    """A number that orders models: feasible ones by their loss, before infeasible ones by theirs.

    loss                  where violation ≤ tolerance
    10²⁰ · violation      elsewhere
    """
    if violation <= tolerance:
        return loss
    return _INFEASIBLE * max(violation, _LEAST)
