"""The formulas of functional.py with 0-dim tensors in place of Python floats.

No function reads a number back, branches on one, or has a shape that depends on one. So nothing
waits for the device, and torch.compile traces each of them into one graph.
"""

import torch
from torch import Tensor

from torch_powalm.functional import violation

_NEWTON = 10  # steps for the equation of the slacks; they converge quadratically
_FLOOR, _CEILING = -600.0, 300.0  # of log t
_TINY = 1e-300  # a sum of squares below counts as this


def wide(device: torch.device) -> torch.dtype:
    """Return the type in which sums of squares are accumulated: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def squares(v: Tensor) -> Tensor:
    """Return ‖v‖² of a tensor of any shape, sparse or complex ones too."""
    if v.is_sparse:
        v = v.coalesce().values()
    if v.is_complex():
        v = torch.view_as_real(v.resolve_conj())
    length: Tensor = torch.linalg.vector_norm(v.reshape(-1), dtype=wide(v.device))
    return length.square()


def norm(*tensors: Tensor) -> Tensor:
    """Return the Euclidean norm of all entries of some tensors; at least one is needed."""
    found = [squares(t) for t in tensors]
    return (found[0] if len(found) == 1 else torch.stack(found).sum()).sqrt()


def stiffness(r_norm: Tensor, beta: Tensor, nu: float) -> Tensor:
    """Return c = β ‖r‖^(ν−1); 0 at r = 0."""
    if nu == 1:
        return beta
    return torch.where(r_norm > 0, beta * r_norm.pow(nu - 1), 0.0)


def scaled_add(y: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Return y + c r, even if c itself overflows in the dtype of r but c r does not."""
    root = c.sqrt().clamp(max=0.1 * torch.finfo(r.dtype).max).to(r.dtype)
    return y + (r * root) * root


def slack_stiffness(
    r: Tensor, lower: Tensor | None, beta: Tensor, nu: float, rest: Tensor | None = None
) -> Tensor:
    """Return the stiffness c = 1/t at the exact minimizer over the slacks.

        u = max(B, t · lower),     t = ‖(A, u)‖^(1−ν) / β

    ‖u‖² is a + b t² between the points t_i = B_i / lower_i at which an entry stops to depend on t.
    All of these are evaluated at once, and the root lies in one interval. There
    F(s) = (1−ν)/2 · log(a + b e^(2s)) − log β − s is convex and decreasing in s = log t, so that
    Newton's method rises to the root from a point below it; the larger root of F with a = 0 or
    b = 0 is such a point, and at most 0.35 (1−ν)/ν away.

    Args:
        r: (A(x), B(x)).
        lower: −y for inequalities, −inf for equalities; None where there are equalities only.
        beta: penalty β.
        nu: exponent ν in (0, 1].
        rest: sum of squares of entries of (A, u) that are not in r.
    """
    total = squares(r) if rest is None else squares(r) + rest
    if lower is None or nu == 1:
        return stiffness(total.sqrt(), beta, nu)
    a, b, beta = *_segment(r, lower, beta, nu, rest), beta.to(total.dtype)
    half, log_beta = (1 - nu) / 2, beta.log()
    log_a, log_b = a.clamp(min=_TINY).log(), b.clamp(min=_TINY).log()
    s = torch.maximum(half * log_a - log_beta, (half * log_b - log_beta) / nu)
    for _ in range(_NEWTON):
        s = s.clamp(_FLOOR, _CEILING)
        moving = b * (2 * s).exp()
        u_squares = (a + moving).clamp(min=_TINY)
        slope = 2 * half * moving / u_squares - 1
        s = s - (half * u_squares.log() - log_beta - s) / slope
    return torch.where(total > 0, (-s.clamp(_FLOOR, _CEILING)).exp(), 0.0)


def _segment(
    r: Tensor, lower: Tensor, beta: Tensor, nu: float, rest: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return a and b of ‖u‖² = a + b t² in the interval of t that holds the root."""
    r, lower = r.to(wide(r.device)), lower.to(wide(r.device))
    moves = (r < 0) & lower.isfinite()
    bound, knee = torch.where(moves, lower.abs(), 0.0), r.abs() / lower.abs()
    knee, order = torch.where(moves, knee, 0.0).sort()
    fixed = torch.where(moves, 0.0, r.square()).sum()
    fixed = fixed if rest is None else fixed + rest
    r_squares = torch.where(moves, r.square(), 0.0)[order]
    squared = bound.square()[order]
    a = fixed + torch.cat([r_squares.new_zeros(1), r_squares.cumsum(0)])
    b = torch.cat([squared.flip(0).cumsum(0).flip(0), squared.new_zeros(1)])
    u_squares = (a[1:] + torch.where(squared > 0, b[1:] * knee.square(), 0.0)).clamp(min=_TINY)
    gap = (1 - nu) / 2 * u_squares.log() - beta.log() - knee.log()
    passed = ((gap > 0) | (knee == 0)).sum().reshape(1)
    return a.gather(0, passed).reshape(()), b.gather(0, passed).reshape(())


def shortening(
    r: Tensor, y: Tensor, inequality: Tensor | None, far: Tensor, beta: Tensor, nu: float
) -> Tensor:
    """Return q = min(1, far / ‖u‖) of a scaled r; `far` is larger where y pushes away."""
    u = violation(r, inequality)
    distance = norm(u)
    against = -torch.dot(y, u).to(distance.dtype) / torch.where(distance > 0, distance, 1.0)
    far = (far.pow(nu) + against.clamp(min=0) / beta).pow(1 / nu)
    return torch.where(distance > far, far / distance, 1.0)


def running_norm(past: Tensor, now: Tensor, memory: float) -> Tensor:
    """Return the running norm after a step; `past` is inf at first, and stays if now is nan."""
    start = torch.where(past.isfinite(), past, now)
    return torch.where(now.isfinite(), memory * start + (1 - memory) * now, past)


def is_finite(*tensors: Tensor) -> Tensor:
    """Return whether all entries are finite, as a 0-dim tensor."""
    return torch.stack([t.isfinite().all() for t in tensors]).all()
