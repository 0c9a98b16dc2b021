"""Sufficient-decrease tests with a rounding margin."""

from __future__ import annotations

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps


def rounding(x: Tensor, value: float) -> float:
    """Return the margin 10 ε (1 + |value|) for tests on values of this size, ε of the dtype of x.

    Without it the last steps before a solution would be rejected, because their decrease is
    smaller than the rounding error of the two values compared.
    """
    eps = _EPS if x.dtype is torch.float64 else torch.finfo(x.dtype).eps
    return 10 * eps * (1 + abs(value))


def under_model(
    psi_z: float, psi_x: float, slope: float, distance_sq: float, step: float, margin: float
) -> bool:
    """Test ψ(z) ≤ ψ(x) + ⟨∇ψ(x), z − x⟩ + ‖z − x‖²/(2 step) + margin; False if a value is nan.

    Args:
        psi_z: ψ(z).
        psi_x: ψ(x).
        slope: ⟨∇ψ(x), z − x⟩.
        distance_sq: ‖z − x‖².
        step: the step, > 0.
        margin: rounding margin, ≥ 0.
    """
    return psi_z <= psi_x + slope + distance_sq / (2 * step) + margin
