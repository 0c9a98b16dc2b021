"""Constrained training and constrained optimization by the power augmented Lagrangian method."""

from torch_powalm import prox, solvers, solving, training, zoo
from torch_powalm.certification.certificate import Certificate, CertifiedEntry
from torch_powalm.certification.certify import certify
from torch_powalm.certification.held_out import HeldOut
from torch_powalm.certification.kinds import Mean, Rates
from torch_powalm.certification.stationarity import stationarity
from torch_powalm.certification.trade_off import TradeOff, Trained, trade_off
from torch_powalm.dual import DualState
from torch_powalm.result import (
    ConstraintWarning,
    DualRecord,
    OuterRecord,
    Residuals,
    Solution,
    Status,
    TrainingResiduals,
    Violation,
)
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem
from torch_powalm.training.best_feasible import BestFeasible
from torch_powalm.training.checkpoint_checks import CheckpointError, check_checkpoint
from torch_powalm.training.checkpoint_io import last_checkpoint, load_checkpoint, save_checkpoint
from torch_powalm.training.distributed.dcp import MultiplierState
from torch_powalm.training.distributed.sharded_tensors import full
from torch_powalm.training.history import History
from torch_powalm.training.optimizer import PowerALMOptimizer
from torch_powalm.training.proxy_value import ProxyValue
from torch_powalm.training.registry import ConstraintRegistry
from torch_powalm.training.report import ConstraintReport

__version__ = "0.1.0"

__all__ = [
    "BestFeasible",
    "Certificate",
    "CertifiedEntry",
    "CheckpointError",
    "ConstraintRegistry",
    "ConstraintReport",
    "ConstraintWarning",
    "DualRecord",
    "DualState",
    "HeldOut",
    "History",
    "Mean",
    "MultiplierState",
    "OuterRecord",
    "PowerALMOptimizer",
    "Problem",
    "ProxyValue",
    "Rates",
    "Residuals",
    "Solution",
    "Status",
    "TradeOff",
    "Trained",
    "TrainingResiduals",
    "Violation",
    "certify",
    "check_checkpoint",
    "full",
    "last_checkpoint",
    "load_checkpoint",
    "power_alm",
    "prox",
    "save_checkpoint",
    "solvers",
    "solving",
    "stationarity",
    "trade_off",
    "training",
    "zoo",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
