"""Constrained training and constrained optimisation by the power augmented Lagrangian method."""

from torch_powalm import prox
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.dual import DualState
from torch_powalm.optimizer import PowerALMOptimizer
from torch_powalm.result import DualRecord, TrainingResiduals, Violation

__all__ = [
    "ConstraintRegistry",
    "DualRecord",
    "DualState",
    "PowerALMOptimizer",
    "TrainingResiduals",
    "Violation",
    "prox",
]
