"""Constrained training and constrained optimisation by the power augmented Lagrangian method."""

from torch_powalm import prox, solvers
from torch_powalm.alm import power_alm
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.dual import DualState
from torch_powalm.optimizer import PowerALMOptimizer
from torch_powalm.problem import Problem
from torch_powalm.result import (
    DualRecord,
    OuterRecord,
    Residuals,
    Solution,
    Status,
    TrainingResiduals,
    Violation,
)
from torch_powalm.sharding import full

__all__ = [
    "ConstraintRegistry",
    "DualRecord",
    "DualState",
    "OuterRecord",
    "PowerALMOptimizer",
    "Problem",
    "Residuals",
    "Solution",
    "Status",
    "TrainingResiduals",
    "Violation",
    "full",
    "power_alm",
    "prox",
    "solvers",
]
