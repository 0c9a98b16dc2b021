"""IntegralGain: how much of its move y makes at an update whose units are measured.

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
- y moves half as far again as before, once in twice the memory of the base, where a violation
  neither falls fast nor would be gone in time, as long as it pulls less than STRONG times as hard
  as the loss. A rate whose proxy is flat, or a loss that pushes back as hard as it is pushed, does
  not answer to what the units say. A block that falls as fast as the base moves is not hurried.
"""

import torch
from torch import Tensor

FAST = 0.3  # r falls fast if an update finds it smaller by this part, where it is one move away
HURRY = 1.5  # growth of the move of y in twice the memory of the base
STRONG = 3.0  # pull of a block relative to that of the loss, which cannot resist a stronger one


class IntegralGain:
    """The part of its move that y makes, by entry, and what the next one depends on."""

    def __init__(self) -> None:
        self.before: Tensor | None = None  # r at the last update
        self.pace: Tensor | None = None  # part at the last update relative to the usual one

    def part(
        self,
        r: Tensor,
        violated: Tensor,
        distance: Tensor,
        pull: Tensor,
        kappa: float,
        steps: int,
        momentum: float,
        left: float,
    ) -> Tensor:
        """Return the part of the move of y at an update, by entry.

        Args:
            r: residual at this update.
            violated: which entries are violated.
            distance: moves of the parameters that remove the violation of the block of each entry.
            pull: of y relative to that of the loss.
            kappa: pull of the penalty relative to that of the loss.
            steps: number of steps since the last update.
            momentum: of the base, in [0, 1).
            left: number of updates left in the run.
        """
        before, pace = self.before, self.pace
        self.before, self.pace = r.clone(), torch.ones_like(r)
        answered = steps * (1 - momentum) / 2  # part of the answer of the base that has come
        usual = min(1.0, answered / max(1.0, kappa))
        if before is None or pace is None:
            return usual * self.pace
        size, past, same = r.abs(), before.abs(), r * before > 0
        fast = size < (1 - FAST / distance.clamp(min=1.0)) * past
        in_time = size < (past - size) * left / 2
        late = same & violated & ~fast & ~in_time & (pull < STRONG)
        self.pace = torch.where(late, HURRY ** min(1.0, answered) * pace, 1.0)
        waits = same & fast & (in_time | (distance <= 1.0))
        return (usual * self.pace).masked_fill(waits, 0.0)

    def state_dict(self) -> dict[str, Tensor | None]:
        """Return what the next update depends on."""
        return {"before": self.before, "pace": self.pace}

    @classmethod
    def restored(cls, before: Tensor | None, pace: Tensor | None) -> "IntegralGain":
        """Return a saved gain."""
        gain = cls()
        gain.before, gain.pace = before, pace
        return gain
