"""What is known of the current outer iteration, so that it can be cut short anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch_powalm.result import InnerResult
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
