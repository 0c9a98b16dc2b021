"""IntegralGain: how much of its move y makes at an update whose units are measured.

The penalty and the multipliers are the two gains of a proportional-integral controller, and the
base answers to them with a delay. An integral that is faster than this delay makes a training
oscillate around its bounds; one that is slower leaves a violation at the end. So

- in twice the memory of the base, 2/(1 − momentum) steps, y moves as far as the penalty pulls, and
  no faster where the penalty is stiffer than the loss (κ > 1);
- y waits where r is approaching 0 fast, from either side: there the penalty, or the loss, is
  already moving it, and a multiplier that moved all the same would overshoot. Waiting on one side
  only would let noise push y to the other. The pull of the penalty is constant beyond one move of
  the parameters, so that a block that is u moves away cannot fall faster than by 1/u, and is not
  expected to;
- every entry has a gain. It grows where r stays, with one sign at three updates, and is cut where r
  has changed its sign: there y has overshot, or r is noise, which a slower y averages.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_powalm.functional import norm, violation

if TYPE_CHECKING:
    from torch_powalm.training.block_vector import BlockVector

FAST = 0.3  # r falls fast if an update finds it smaller by this part, where it is one move away
SLOW = 0.1  # r stays if it is smaller by less than this part
GROWTH, CUT = 1.2, 0.7  # of the gain at an update
RECOVERY = 1.5  # growth of a gain that was cut
LEAST, MOST = 0.3, 10.0  # gains
GAINS = ("before", "gain", "streak")  # what is saved, with one number for each entry


class IntegralGain:
    """The gains of all entries.

    Args:
        before: r at the last update, if there was one.
        gain: gains since then.
        streak: number of updates at which r has kept its sign.
    """

    def __init__(
        self,
        before: Tensor | None = None,
        gain: Tensor | None = None,
        streak: Tensor | None = None,
    ) -> None:
        self.before, self.gain, self.streak = before, gain, streak

    def part(
        self,
        r: Tensor,
        scale: Tensor,
        blocks: "BlockVector",
        kappa: float,
        steps: int,
    ) -> Tensor:
        """Return how much of its move y makes, by entry.

        Args:
            r: residual at this update.
            scale: factors of r; the norm of a scaled block is its distance from 0 in moves.
            blocks: the blocks of r, and the momentum of the base.
            kappa: pull of the penalty relative to that of the loss.
            steps: number of steps since the last update.
        """
        usual = min(1.0, steps * (1 - blocks.momentum) / 2 / max(1.0, kappa))
        before, gain, streak = self.before, self.gain, self.streak
        self.before, self.gain, self.streak = r.clone(), torch.ones_like(r), torch.zeros_like(r)
        if before is None or gain is None or streak is None:
            return usual * self.gain
        side, fallen = r * before, before.abs() - r.abs()
        u = blocks.split(scale * violation(r, blocks.inequality))
        distance = torch.cat([torch.full_like(u_b, max(1.0, norm(u_b))) for u_b in u.values()])
        falling = (side > 0) & (fallen > FAST / distance * before.abs())
        self.streak = torch.where(side > 0, streak + 1, 0.0)
        stays = (self.streak >= 2) & (fallen < SLOW / distance * before.abs())
        grown = torch.where(gain < 1, RECOVERY * gain, GROWTH * gain)
        gain = torch.where(side < 0, CUT * gain, torch.where(stays, grown, gain))
        gain = gain.clamp(LEAST, MOST)
        part = (usual * gain).masked_fill(falling, 0.0)
        if blocks.inequality is not None:
            idle = blocks.inequality & (r <= 0)
            part = torch.where(idle, part.clamp(max=1.0), part)  # y stays at least 0
            gain = torch.where(idle, gain.clamp(max=1.0), gain)
        self.gain = gain
        return part
