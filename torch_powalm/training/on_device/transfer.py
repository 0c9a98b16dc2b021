"""One transfer from the device to the host, for any number of tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_powalm.training.on_device.tensor_formulas import wide


@torch.no_grad()
def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies on the CPU with the same shapes and types, read in one transfer.

    Everything travels as one vector of the widest floating-point type of the device, which holds
    booleans, counters and other floating-point numbers without loss.
    """
    if not tensors:
        return []
    device = tensors[0].device
    same = [t if t.device == device else t.to(device, non_blocking=True) for t in tensors]
    packed = torch.cat([t.detach().reshape(-1).to(wide(device)) for t in same])
    pieces = torch.split(packed.to("cpu", copy=True), [t.numel() for t in tensors])
    return [piece.to(t.dtype).reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)]
