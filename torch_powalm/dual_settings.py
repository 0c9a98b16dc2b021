"""Checks of the settings of the multipliers and the penalty."""

import math

SIGMAS = ("penalty", "paper", "sqrt", "pi")  # rules of the dual step


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
