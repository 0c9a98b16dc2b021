"""Whether checks wait for the next update, and numbers that may be on the device until then."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def check_mode(check_finite: str) -> str:
    """Return the mode, or raise if it is not known."""
    if check_finite not in ("auto", "every_step", "at_update"):
        raise ValueError(
            f"check_finite must be 'auto', 'every_step' or 'at_update', got {check_finite!r}"
        )
    return check_finite


def is_deferred(check_finite: str, device: torch.device, base: Optimizer) -> bool:
    """Whether steps read nothing; a base that searches (LBFGS) reads in every step anyway."""
    waits = check_finite == "at_update" or (check_finite == "auto" and device.type != "cpu")
    return waits and not isinstance(base, torch.optim.LBFGS)


def largest_rate(base: Optimizer, deferred: bool, device: torch.device) -> Any:
    """Return the largest learning rate; 1 if there is none. If deferred, maybe a tensor."""
    rates = [group.get("lr", 1.0) for group in base.param_groups] or [1.0]
    if deferred and any(isinstance(rate, Tensor) for rate in rates):
        return torch.stack([torch.as_tensor(rate).to(device) for rate in rates]).max()
    return max(map(float, rates))
