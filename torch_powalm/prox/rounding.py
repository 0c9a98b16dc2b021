"""Rounding errors of norms and sums."""

import math

import torch
from torch import Tensor


def rounding(x: Tensor, n: int) -> float:
    """Relative error allowed in a norm or sum of n entries in the dtype of x.

    Torch accumulates a long norm sequentially: on the sphere, errors of √n machine epsilons occur.
    """
    return (64.0 + 4.0 * math.sqrt(n)) * torch.finfo(x.dtype).eps
