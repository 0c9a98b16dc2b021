"""The protocol of a convex term g."""

from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor


@runtime_checkable
class Proximable(Protocol):
    """A convex term with a cheap proximal operator.

    If is_indicator is true, g is the indicator of a set: it is 0 wherever its prox lands.
    """

    @property
    def is_indicator(self) -> bool:
        """Whether g only takes the values 0 and inf."""

    def value(self, x: Tensor) -> float:
        """Value g(x)."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Minimizer of g(u) + ‖u − v‖² / (2 step) for step > 0, as a new tensor."""

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Distance from −v to ∂g(x)."""


@runtime_checkable
class Elementwise(Proximable, Protocol):
    """A term that may be a sum over the entries of x; its prox then takes one step per entry."""

    @property
    def is_elementwise(self) -> bool:
        """Whether g is a sum over the entries, so that `step` may be a tensor like v."""

    def prox(self, v: Tensor, step: float | Tensor) -> Tensor:
        """Minimizer of g(u) + Σ (u_i − v_i)² / (2 step_i) for step > 0, as a new tensor."""


Bounds: TypeAlias = tuple[float | Tensor, float | Tensor]


@runtime_checkable
class Bounded(Proximable, Protocol):
    """The indicator of a box."""

    @property
    def bounds(self) -> Bounds:
        """The lower and upper bounds, −inf and inf for none."""
