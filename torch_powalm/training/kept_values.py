"""Checks of one entry of what a base keeps: a number, or a tensor of a shape."""

import math
from typing import Any

from torch import Tensor

from torch_powalm.checks.state_checks import check_entries, check_number, check_storage, refuse


def check_scalar(value: Any, where: str) -> None:
    """Raise unless an entry is a nonnegative number, or a tensor of one."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, Tensor):
        check_storage(value, where)
        if value.numel() != 1 or not value.is_floating_point():
            refuse(where, "be a number", value)
    elif not plain:
        refuse(where, "be a number", value)
    number = check_number(value.item() if isinstance(value, Tensor) else value, where, low=0)
    if where.endswith("['step']"):
        if number != int(number):
            refuse(where, "be a whole number", number)
        check_number(number, where, high=2**53)


def check_real(
    value: Tensor, where: str, low: float = -math.inf, also_complex: bool = False
) -> None:
    """Raise unless a tensor has data, and real finite entries ≥ low."""
    check_storage(value, where)
    if not (value.is_floating_point() or (also_complex and value.is_complex())):
        refuse(where, "be a floating-point tensor", value)
    check_entries(local(value), where, low)


def check_shape(value: Any, where: str, shape: tuple[int, ...]) -> None:
    """Raise unless an entry is a tensor of this shape."""
    if not isinstance(value, Tensor) or value.is_nested or tuple(value.shape) != shape:
        refuse(where, f"be a tensor of shape {shape}", value)


def check_plain(value: Any, where: str, low: float = -math.inf) -> None:
    """Raise unless an entry of LBFGS is a number or a tensor without dimensions."""
    if not isinstance(value, Tensor):
        check_number(value, where, low=low)
    elif value.is_nested or value.dim():
        refuse(where, "be a number or a tensor without dimensions", value)
    else:
        check_real(value, where, low)


def local(tensor: Any) -> Tensor:
    """Return the entries of a tensor in this process."""
    values: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    values = values.detach()
    return values.coalesce().values() if values.is_sparse else values
