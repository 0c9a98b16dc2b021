"""FeasibleCheckpoint: the best model among those that meet their constraints."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torch_powalm.checks.state_checks import check_count, check_list, check_number
from torch_powalm.lightning.callback import PowerALMCallback
from torch_powalm.lightning.compat import CALLBACKS
from torch_powalm.lightning.metrics import MAX_VIOLATION, PREFIX
from torch_powalm.training.feasibility import feasible_loss, largest

_SCORE = f"{PREFIX}feasible_loss"
_CERTIFICATE = ".certificate.json"


class FeasibleCheckpoint(*(module.ModelCheckpoint for module in CALLBACKS)):  # type: ignore[misc]
    """Keeps the best model among those whose violation is within tolerance.

    As long as there is none, it keeps the least infeasible model. The violation is the largest
    entry over all blocks, in validation if there is one; then only validated models are
    candidates. Needs PowerALMCallback in the same trainer.

    With `certified`, a model is feasible if its certificate holds, and the violation is how far
    its bounds are above what is asked for. The error of the confidence is divided by the number of
    models that the trainer will validate, so that the certificate of the chosen one is right. It
    is in `certificate`, and next to the checkpoint in a file that ends in .certificate.json.

    Args:
        tolerance: largest violation of a feasible model, ≥ 0; not used with `certified`.
        monitor: the logged loss to minimize.
        certified: held-out data (`HeldOut`), other than those of margin="auto".
        **settings: passed on to ModelCheckpoint.
    """

    def __init__(
        self,
        tolerance: float = 0.0,
        monitor: str = "val_loss",
        certified: Any = None,
        **settings: Any,
    ) -> None:
        if certified is not None and not hasattr(certified, "certificate"):
            raise TypeError(f"certified must be a HeldOut, got {type(certified).__name__}")
        if not 0 <= tolerance < math.inf:
            raise ValueError(f"tolerance must be nonnegative and finite, got {tolerance!r}")
        if settings.get("mode", "min") != "min":
            raise ValueError(f"mode must be 'min', got {settings['mode']!r}")
        for name in ("every_n_train_steps", "train_time_interval"):
            if settings.get(name) is not None:
                raise ValueError(
                    f"{name} must be None (models are scored when they are validated or at an "
                    f"epoch's end), got {settings[name]!r}"
                )
        super().__init__(monitor=_SCORE, **settings)
        self.tolerance, self.loss = tolerance, monitor
        self._scored: tuple[int, float] | None = None  # the latest model: its step and its score
        self.certified, self.certificate = certified, None
        self._latest: Any = None  # certificate of the latest model
        self._judged = 0  # models that have been certified

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise if no callback measures the violation."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            _callback(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Score the model by the metrics of this validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            metrics = trainer.callback_metrics
            seen = [float(v) for name, v in metrics.items() if name.endswith(MAX_VIOLATION)]
            self._score(trainer, largest(seen))
        super().on_validation_end(trainer, pl_module)
        self._keep_certificate(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Score the model at the end of the epoch if there is no validation."""
        if not trainer.enable_validation:
            self._score(trainer, _callback(trainer).max_violation())
        if self._scored is None or self._scored[0] != trainer.global_step:
            return  # this model has not been validated
        trainer.callback_metrics[_SCORE] = torch.tensor(self._scored[1])
        super().on_train_epoch_end(trainer, pl_module)
        self._keep_certificate(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Include the latest score, which a resumed training needs at the end of its epoch."""
        return {**super().state_dict(), "scored": self._scored, "judged": self._judged}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the latest score."""
        where = "state of FeasibleCheckpoint['scored']"
        scored = state_dict.get("scored")
        if scored is not None:
            step, score = check_list(scored, where, lambda item, _: item, 2)
            step = check_count(step, f"{where}[0]")
            scored = step, check_number(score, f"{where}[1]", infinite=True)
        super().load_state_dict(state_dict)
        self._scored = scored
        where = "state of FeasibleCheckpoint['judged']"
        self._judged = check_count(state_dict.get("judged", 0), where)

    def _score(self, trainer: Any, violation: float) -> None:
        metrics = trainer.callback_metrics
        if self.loss not in metrics:
            raise ValueError(
                "monitor must be logged for FeasibleCheckpoint; "
                f"{self.loss!r} is not among {', '.join(sorted(metrics))}"
            )
        tolerance = self.tolerance
        if self.certified is not None:
            tolerance, violation = 0.0, self._excess(trainer)
        score = feasible_loss(float(metrics[self.loss]), violation, tolerance)
        self._scored = (trainer.global_step, score)
        metrics[_SCORE] = torch.tensor(score)

    def _excess(self, trainer: Any) -> float:
        """Certify the current model; 0 if it holds, else how far a bound is above what is asked."""
        registries = _callback(trainer).registries()
        if len(registries) != 1:
            raise ValueError(f"certified needs one registry of constraints, got {len(registries)}")
        candidates = _candidates(trainer)
        self._judged += 1
        if self._judged > candidates:
            return math.inf  # the confidence is used up
        self._latest = self.certified.certificate(registries[0], candidates=candidates)
        return 0.0 if self._latest.holds else max(float(self._latest.excess), 0.0)

    def _keep_certificate(self, trainer: Any) -> None:
        """Keep the certificate if the model that it is about has just become the best."""
        if self._latest is None or self._scored is None or self.best_model_score is None:
            return
        if float(self.best_model_score) == float(torch.tensor(self._scored[1])):
            self.certificate = self._latest
            if trainer.is_global_zero and self.best_model_path:
                path = Path(self.best_model_path).with_suffix(_CERTIFICATE)
                self._latest.save(path)
                for old in path.parent.glob(f"*{_CERTIFICATE}"):
                    if not old.with_name(old.name.replace(_CERTIFICATE, ".ckpt")).exists():
                        old.unlink()  # its checkpoint is gone


def _candidates(trainer: Any) -> int:
    """Return how many models the trainer will score."""
    if trainer.max_epochs is None or trainer.max_epochs < 1:
        got = trainer.max_epochs
        raise ValueError(f"max_epochs must be given with certified, got {got!r}")
    each = 1
    if trainer.enable_validation and trainer.val_check_batch < math.inf:
        each = max(1, math.ceil(trainer.num_training_batches / trainer.val_check_batch))
    return int(trainer.max_epochs * each)


def _callback(trainer: Any) -> PowerALMCallback:
    found = next((c for c in trainer.callbacks if isinstance(c, PowerALMCallback)), None)
    if found is None:
        names = ", ".join(type(c).__name__ for c in trainer.callbacks)
        raise ValueError(
            f"callbacks must have a PowerALMCallback for FeasibleCheckpoint, got {names}"
        )
    return found
