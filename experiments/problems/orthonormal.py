"""Classification with orthonormal rows in the last layer."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.network import TwoLayer
from torch_powalm import ConstraintRegistry


@dataclass(frozen=True)
class Orthonormal:
    """The network of the clustering experiment with orthonormal rows W in its last layer.

        minimize    mean cross-entropy
        subject to  W Wᵀ = I, 55 equalities for 10 rows

    Args:
        tolerance: largest entry of |W Wᵀ − I| of a feasible network, ≥ 0.
    """

    tolerance: float

    inequality = False
    size = 55

    def __post_init__(self) -> None:
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must be nonnegative, got {self.tolerance!r}")

    def tightened(self, margin: float) -> "Orthonormal":
        """The task itself: an equality has no margin."""
        if margin != 0:
            raise ValueError(f"margin must be 0 for equalities, got {margin!r}")
        return self

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy."""
        return cross_entropy(outputs, labels)

    usual_loss = loss

    def register(self, constraints: ConstraintRegistry, network: TwoLayer) -> None:
        """Register the equalities, which depend on parameters only."""
        constraints.equality("orthonormal", lambda: _gram(network))

    def batch_values(
        self, outputs: Tensor, labels: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Nothing: the constraint does not depend on the batch."""
        return {}, {}

    def proxy(self, network: TwoLayer, outputs: Tensor, labels: Tensor) -> Tensor:
        """The equalities, which are smooth already."""
        return _gram(network)

    strict = proxy


def _gram(network: TwoLayer) -> Tensor:
    """W Wᵀ − I on and above the diagonal."""
    W = network.layers[2].weight
    row, column = torch.triu_indices(len(W), len(W))
    return (W @ W.T - torch.eye(len(W)).to(W))[row, column]
