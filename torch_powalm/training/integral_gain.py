"""How much of its move y makes at an update whose units are measured.

The penalty and the multipliers are the two gains of a proportional-integral controller, and the
base answers to them with a delay. An integral that is faster than this delay makes a training
oscillate around its bounds. So

- in twice the memory of the base, 2/(1 − momentum) steps, y moves as far as the penalty pulls, and
  no faster where the penalty is stiffer than the loss (κ > 1);
- y waits where r is approaching 0 fast, from either side: there the penalty, or the loss, is
  already moving it, and a multiplier that moved all the same would overshoot. Waiting on one side
  only would let noise push y to the other.
"""

import torch
from torch import Tensor

FAST = 0.7  # r falls fast if an update finds less than this part of the one before


def integral_part(
    r: Tensor,
    before: Tensor | None,
    kappa: float,
    steps: int,
    momentum: float,
) -> Tensor:
    """Return the part of the move of y, by entry.

    Args:
        r: residual at this update.
        before: residual at the last update, if there was one.
        kappa: pull of the penalty relative to that of the loss.
        steps: number of steps since the last update.
        momentum: of the base, in [0, 1).
    """
    part = torch.full_like(r, min(1.0, steps * (1 - momentum) / 2 / max(1.0, kappa)))
    if before is None:
        return part
    falling = (r * before > 0) & (r.abs() < FAST * before.abs())
    return part.masked_fill(falling, 0.0)
