"""stand-in."""

from typing import Protocol
from torch import Tensor


class Proximable(Protocol):
    def value(self, x: Tensor) -> float: ...
    def prox(self, v: Tensor, step: float) -> Tensor: ...
    def distance(self, x: Tensor, v: Tensor) -> float: ...
