"""Checks of the settings of the multipliers and the penalty, and of their saved values."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_powalm.checks.state_checks import check_count, check_number, check_tensor

SIGMAS = ("penalty", "paper", "sqrt", "pi")  # rules of the dual step
BETA_LIMIT = 1e200  # keeps a penalty that grows without end finite, and its inverse too


def check_numbers(**values: float) -> None:
    """Raise if an argument is not a number."""
    for name, value in values.items():
        if not hasattr(value, "__float__"):
            raise TypeError(f"{name} must be a number, got {value!r}")


def check_settings(
    nu: float,
    beta_1: float,
    omega: float,
    sigma: str,
    sigma_1: float,
    beta_max: float,
    y_max: float,
    sufficient_decrease: float | None,
) -> None:
    """Raise if a setting of `DualState` is out of range."""
    check_numbers(nu=nu, beta_1=beta_1, omega=omega, beta_max=beta_max, y_max=y_max)
    check_numbers(sigma_1=sigma_1)
    if sufficient_decrease is not None:
        check_numbers(sufficient_decrease=sufficient_decrease)
    enough = sufficient_decrease
    rules = [
        (0 < nu <= 1, "nu must be in (0, 1]", nu),
        (beta_max > 0, "beta_max must be positive", beta_max),
        (0 < beta_1 < math.inf, "beta_1 must be positive and finite", beta_1),
        (1 <= omega < math.inf, "omega must be at least 1 and finite", omega),
        (sigma in SIGMAS, "sigma must be 'penalty', 'paper', 'sqrt' or 'pi'", sigma),
        (0 <= sigma_1 < math.inf, "sigma_1 must be nonnegative and finite", sigma_1),
        (beta_max >= beta_1, f"beta_max must be at least beta_1 = {beta_1!r}", beta_max),
        (y_max > 0, "y_max must be positive", y_max),
        (enough is None or 0 < enough < 1, "sufficient_decrease must be None or in (0, 1)", enough),
    ]
    for holds, rule, value in rules:
        if not holds:
            raise ValueError(f"{rule}, got {value!r}")


def checked_numbers(
    state: Mapping[str, Any], where: str, beta_max: float, strict: bool
) -> dict[str, Any]:
    """Return β, k and the two norms of a saved state; raise if one is out of range.

    Args:
        state: the saved state.
        where: its place, for the message.
        beta_max: largest penalty.
        strict: raise for a larger penalty instead of lowering it.
    """
    limit = min(beta_max, BETA_LIMIT)
    high = limit if strict else math.inf
    where_beta = f"{where}['beta']"
    beta = check_number(state["beta"], where_beta, positive=True, low=1 / BETA_LIMIT, high=high)
    last_norm = check_number(state["last_norm"], f"{where}['last_norm']", low=0, infinite=True)
    return {
        "beta": min(beta, limit),
        "k": check_count(state["k"], f"{where}['k']", low=1),
        "start_norm": check_number(state["start_norm"], f"{where}['start_norm']", low=0),
        "last_norm": last_norm,
    }


def checked_multipliers(
    y: Any, where: str, size: int, inequality: Tensor | None, y_max: float, strict: bool
) -> Tensor:
    """Return saved multipliers; raise if one is negative for an inequality or above y_max.

    Args:
        y: the multipliers.
        where: their place, for the message.
        size: their number.
        inequality: which of them are inequalities; None if none is.
        y_max: largest absolute value.
        strict: raise for a value out of range instead of moving it to the nearest in range.
    """
    y = check_tensor(y, where, shapes=[(size,)])
    lowest, highest = torch.full_like(y, -y_max), torch.full_like(y, y_max)
    if inequality is not None:
        lowest = lowest.masked_fill(inequality.to(y.device), 0.0)
    if strict and bool((y < lowest).any()):
        signs = bool((y < 0)[lowest == 0].any())
        rule = "nonnegative for inequalities" if signs else f"at least {-y_max!r}"
        raise ValueError(f"{where} must be {rule}, got {y[y < lowest].amin().item()!r} in it")
    if strict and bool((y > highest).any()):
        raise ValueError(f"{where} must be at most {y_max!r}, got {y.amax().item()!r} in it")
    return torch.clamp(y, lowest, highest)
