"""HardConcrete: gates that a training can close (Louizos, Welling, Kingma 2018)."""

import math

import torch
from torch import Tensor, nn

_LOW, _HIGH = -0.1, 1.1  # the stretched interval; its ends are cut off at 0 and 1
_TEMPERATURE = 2 / 3


class HardConcrete(nn.Module):
    """Random gates in [0, 1] that are exactly 0 or 1 with positive probability.

    Multiply weights or activations by `gates()`. In evaluation mode the gates are deterministic.

    Args:
        shape: shape of the gates.
        open_share: probability that a gate is open at the start, in (0, 1).
        generator: source of the noise; None for torch's global one.
    """

    def __init__(
        self,
        *shape: int,
        open_share: float = 0.9,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 0 < open_share < 1:
            raise ValueError(f"open_share must be in (0, 1), got {open_share!r}")
        start = math.log(open_share / (1 - open_share)) + _TEMPERATURE * math.log(-_LOW / _HIGH)
        self.log_alpha = nn.Parameter(torch.full(shape, start))
        self.generator = generator

    def forward(self) -> Tensor:
        """Return the gates."""
        if self.training:
            noise = torch.rand(
                self.log_alpha.shape,
                generator=self.generator,
                device=self.log_alpha.device,
                dtype=self.log_alpha.dtype,
            ).clamp(1e-6, 1 - 1e-6)
            inner = torch.sigmoid((noise.logit() + self.log_alpha) / _TEMPERATURE)
        else:
            inner = torch.sigmoid(self.log_alpha)
        return (inner * (_HIGH - _LOW) + _LOW).clamp(0, 1)

    def expected(self) -> Tensor:
        """Return the expected number of open gates."""
        shift = _TEMPERATURE * math.log(-_LOW / _HIGH)
        return torch.sigmoid(self.log_alpha - shift).sum()

    @torch.no_grad()
    def count(self) -> int:
        """Return the number of gates that are open in evaluation mode."""
        return int((torch.sigmoid(self.log_alpha) * (_HIGH - _LOW) + _LOW > 0).sum())
