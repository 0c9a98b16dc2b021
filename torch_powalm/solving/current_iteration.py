"""What is known of the current outer iteration, so that it can be cut short anywhere."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from torch_powalm.dual import DualState
from torch_powalm.result import DualRecord, InnerResult
from torch_powalm.solvers.base import InnerRun
from torch_powalm.solving.kkt_certificate import Certified
from torch_powalm.solving.oracle import Point
from torch_powalm.solving.subproblem import Subproblem


class Solved(NamedTuple):
    """How a subproblem ended, and the point where it ended, evaluated."""

    inner: InnerResult
    at: Point


@dataclass
class CurrentIteration:
    """Results of the steps of the current outer iteration, as far as they are known.

    If Ctrl-C cuts an iteration short, its steps are called again. Each returns what is known, so
    the iteration ends at the last point that the interrupted step had reached.
    """

    psi: Subproblem | None = None
    run: InnerRun | None = None
    solved: Solved | None = None
    point: Certified | None = None


def move(dual: DualState, r: Tensor, hold: float | None) -> DualRecord:
    """Update y and β; y stays if it would not be finite, and then β stays, too.

    Args:
        dual: y and β.
        r: (A(x), B(x)), finite unless a function is not.
        hold: factor of β at an update that keeps y; None for an update of both.
    """
    before = copy(dual)
    record = dual.update(r, hold=hold)
    if bool(dual.y.isfinite().all()):
        return record
    dual.take_over(before)
    return dual.update(r, hold=1.0)
