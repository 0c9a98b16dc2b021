"""Norms, and the rounding they come with."""

import math

import torch
from torch import Tensor


def rounding(x: Tensor, n: int) -> float:
    """Relative error allowed to a norm or sum of n entries in the dtype of x.

    Torch adds up a long norm in order: on the sphere, errors of √n machine epsilons were seen.
    """
    return (64.0 + 4.0 * math.sqrt(n)) * torch.finfo(x.dtype).eps


def length(x: Tensor) -> float:
    """The Euclidean norm of all entries."""
    if x.dtype is torch.float64:  # a third of the time; a shorter dtype would lose its squares
        flat = x.reshape(-1)
        return math.sqrt(torch.dot(flat, flat).item())
    return float(torch.linalg.vector_norm(x).item())


def lengths(x: Tensor, dim: int) -> Tensor:
    """Norms along a dimension, which is kept."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return norms
