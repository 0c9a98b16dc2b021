"""How much of its move y makes at an update whose units are measured.

The penalty and the multipliers are the two gains of a proportional-integral controller, and the
base answers to them with a delay. An integral that is faster than this delay makes a training
oscillate around its bounds. So

- in twice the memory of the base, 2/(1 − momentum) steps, y moves as far as the penalty pulls, and
  no faster where the penalty is stiffer than the loss (κ > 1);
- y waits where r is approaching 0 fast, from either side: there the penalty, or the loss, is
  already moving it, and a multiplier that moved all the same would overshoot. Waiting on one side
  only would let noise push y to the other. The pull of the penalty is constant beyond one move of
  the parameters, so that a block that is u moves away falls by about 1/u, and this is fast, if at
  this pace it is there before half of the run that is left is over: learning rates end near 0.
"""

import torch
from torch import Tensor

FAST = 0.3  # r falls fast if an update finds it smaller by this part, where it is one move away


def integral_part(
    r: Tensor,
    before: Tensor | None,
    distance: Tensor,
    kappa: float,
    steps: int,
    momentum: float,
    left: float,
) -> Tensor:
    """Return the part of the move of y, by entry.

    Args:
        r: residual at this update.
        before: residual at the last update, if there was one.
        distance: moves of the parameters that remove the violation of the block of each entry.
        kappa: pull of the penalty relative to that of the loss.
        steps: number of steps since the last update.
        momentum: of the base, in [0, 1).
        left: number of updates left in the run.
    """
    part = torch.full_like(r, min(1.0, steps * (1 - momentum) / 2 / max(1.0, kappa)))
    if before is None:
        return part
    slow = 1 - FAST / distance.clamp(min=1.0)
    falling = (r * before > 0) & (r.abs() < slow * before.abs())
    falling &= (distance <= 1.0) | (r.abs() < (before.abs() - r.abs()) * left / 2)
    return part.masked_fill(falling, 0.0)
