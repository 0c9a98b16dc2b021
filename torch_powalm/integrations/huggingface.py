"""Constraints under the Hugging Face Trainer: a callback, and a helper for `compute_loss`.

class ConstrainedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = augment_loss(self, loss, near=near(outputs.logits, **inputs))
        return (loss, outputs) if return_outputs else loss

trainer = ConstrainedTrainer(…, optimizers=(PowerALMOptimizer(base, constraints), None))
trainer.add_callback(PowerALMCallback(trainer))
"""

import math
from typing import Any

from torch import Tensor

from torch_powalm.integrations.wrapped_optimizer import constrained, import_engine
from torch_powalm.training.feasibility import largest
from torch_powalm.training.optimizer import PowerALMOptimizer

_TRAINER: Any = import_engine("transformers", "transformers")


def augment_loss(trainer: Any, loss: Tensor, /, **values: Any) -> Tensor:
    """Return the loss of a batch with the gradient of its constraints added.

    In an evaluation the values are recorded for `PowerALMCallback`, and the loss is unchanged.

    Args:
        trainer: the Trainer whose `compute_loss` calls this.
        loss: the scalar loss of the batch.
        **values: what `PowerALMOptimizer.augment` takes.
    """
    if trainer.model.training:
        return constrained(trainer.optimizer).augment(loss, **values)
    if trainer.optimizer is not None:
        constrained(trainer.optimizer).constraints.observe(**values)
    return loss


class PowerALMCallback(_TRAINER.TrainerCallback):  # type: ignore[misc]
    """Tells the optimizer how long the run is, updates at the end of epochs, and logs.

    Every multiplier update is logged through the Trainer, and so to everything that it reports to
    (`report_to="tensorboard"`, …) and to `trainer.state.log_history`: `powalm/beta`,
    `powalm/violation/NAME`, `powalm/y/NAME` and so on; after an evaluation
    `powalm/val/violation/NAME`. With `logging_strategy="no"`, updates are not logged, and
    `optimizer.history` has them. The Trainer saves and restores the multipliers with the optimizer.

    Args:
        trainer: the Trainer that it is added to.
        eps_A: stop if the largest violation is at most this at an update.
    """

    def __init__(self, trainer: Any, *, eps_A: float | None = None) -> None:
        if not isinstance(trainer, _TRAINER.Trainer):
            got = type(trainer).__name__
            raise TypeError(f"trainer must be a transformers.Trainer, got {got}")
        if eps_A is not None and not eps_A > 0:
            raise ValueError(f"eps_A must be positive, got {eps_A!r}")
        self.trainer, self.eps_A = trainer, eps_A
        self._logged = 0  # rows of the history

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the optimizer; tell it the length of the run."""
        optimizer = self._optimizer()
        known = optimizer.schedule.total_steps
        if known is None and state.max_steps >= 1:
            known = int(state.max_steps)
        optimizer.set_length(known)
        self._logged = len(optimizer.history)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the updates that the step has made."""
        self._log_new(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Update at the end of an epoch, as a plain loop does."""
        optimizer = self._optimizer()
        if optimizer.epoch.steps > 0:
            optimizer.update_multipliers()
        self._log_new(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the violations on the data of the evaluation."""
        if self.trainer.optimizer is None:
            return
        optimizer = self._optimizer()
        registry = optimizer.constraints
        found = {**registry.violations(), **registry.take_observed(optimizer.ranks.group)}
        metrics = {f"powalm/val/violation/{name}": v.max for name, v in found.items()}
        if metrics:
            self.trainer.log({"powalm/val/max_violation": largest(metrics.values()), **metrics})

    def _optimizer(self) -> PowerALMOptimizer:
        return constrained(self.trainer.optimizer)

    def _log_new(self, control: Any) -> None:
        history = self._optimizer().history
        for row in history.rows[self._logged :]:
            columns = row.to_dict()
            numbers = {k: v for k, v in columns.items() if isinstance(v, int | float)}
            finite = {k: float(v) for k, v in numbers.items() if math.isfinite(v) and k != "step"}
            if self.trainer.args.logging_strategy != "no":
                self.trainer.log({f"powalm/{name}": value for name, value in finite.items()})
            if self.eps_A is not None and columns["max_violation"] <= self.eps_A:
                control.should_training_stop = True
        self._logged = len(history)
