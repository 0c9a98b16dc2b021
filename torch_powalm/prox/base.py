"""What a convex term g has to offer."""

from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor


@runtime_checkable
class Proximable(Protocol):
    """A convex term with a cheap proximal operator.

    is_indicator says that g is the indicator of a set: 0 wherever its prox lands.
    """

    @property
    def is_indicator(self) -> bool:
        """Whether g only takes the values 0 and inf."""

    def value(self, x: Tensor) -> float:
        """Value g(x)."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Minimiser of g(u) + ‖u − v‖² / (2 step) for step > 0, in memory of its own."""

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Distance from −v to ∂g(x)."""


Bounds: TypeAlias = tuple[float | Tensor, float | Tensor]


@runtime_checkable
class Bounded(Proximable, Protocol):
    """The indicator of a box."""

    @property
    def bounds(self) -> Bounds:
        """The lower and the upper bounds, −inf and inf where there are none."""
