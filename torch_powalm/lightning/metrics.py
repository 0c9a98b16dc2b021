"""Names and logging of the metrics: records of multiplier updates, and violations."""

from collections.abc import Mapping
from typing import Any

import torch

from torch_powalm.result import DualRecord, Violation
from torch_powalm.training.feasibility import largest
from torch_powalm.training.optimizer import PowerALMOptimizer

PREFIX = "powalm/"
MAX_VIOLATION = "/val/max_violation"  # suffix of the metrics that say whether a model is feasible
_SHOWN = ("/primal_residual", "/beta", MAX_VIOLATION)  # in the progress bar


def log(pl_module: Any, metrics: Mapping[str, float], **settings: Any) -> None:
    """Log through the module, and show the main metrics in the progress bar."""
    for name, value in metrics.items():
        pl_module.log(name, value, prog_bar=name.endswith(_SHOWN), **settings)


def write(trainer: Any, metrics: Mapping[str, float]) -> None:
    """Log immediately, regardless of log_every_n_steps."""
    if metrics:
        for logger in trainer.loggers:
            row = {**metrics, "epoch": trainer.current_epoch}
            logger.log_metrics(row, step=trainer.global_step)


def update_columns(record: DualRecord, optimizer: PowerALMOptimizer) -> dict[str, float]:
    """Return the record of an update as columns of a log."""
    multipliers = optimizer.powalm_state_dict()["y"] or {}
    return {
        "k": float(record.k),
        "primal_residual": record.primal_residual,
        **violation_columns(record.violations),
        "beta": record.beta,
        "sigma": record.sigma,
        "y_norm": record.y_norm,
        "skipped": float(optimizer.epoch.skipped),
        **{f"y/{name}": float(torch.linalg.vector_norm(y)) for name, y in multipliers.items()},
    }


def violation_columns(violations: Mapping[str, Violation]) -> dict[str, float]:
    """Return the violations by block, and the largest of them."""
    columns = {f"violation/{name}": v.max for name, v in violations.items()}
    return {"max_violation": largest(columns.values()), **columns} if columns else {}
