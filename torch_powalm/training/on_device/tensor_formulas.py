"""The formulas of functional.py with 0-dim tensors in place of Python floats.

No function reads a number back, branches on one, or has a shape that depends on one. So nothing
waits for the device, and torch.compile traces each of them into one graph.
"""

import torch
from torch import Tensor
from torch.nn import functional

from torch_powalm.functional import violation

_NEWTON = ((0.8, 3), (0.5, 4), (0.2, 5), (0.0, 6))  # steps from this ν on: 1e-11 or better
_FLOOR, _CEILING = -600.0, 300.0  # of log t
_LINEAR = 40.0  # log(1 + e^p) is p beyond this, to the last bit


def wide(device: torch.device) -> torch.dtype:
    """Return the type in which sums of squares are accumulated: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def length(v: Tensor) -> Tensor:
    """Return ‖v‖ of a tensor of any shape, sparse or complex ones too."""
    if v.is_sparse:
        v = v.coalesce().values()
    if v.is_complex():
        v = torch.view_as_real(v.resolve_conj())
    found: Tensor = torch.linalg.vector_norm(v, dtype=wide(v.device))
    return found


def norm(*tensors: Tensor) -> Tensor:
    """Return the Euclidean norm of all entries of some tensors; at least one is needed."""
    found = [length(t) for t in tensors]
    return found[0] if len(found) == 1 else length(torch.stack(found))


def stiffness(r_norm: Tensor, beta: Tensor, nu: float) -> Tensor:
    """Return c = β ‖r‖^(ν−1); 0 at r = 0."""
    if nu == 1:
        return beta
    return (beta * r_norm.pow(nu - 1)).masked_fill(r_norm == 0, 0.0)


def scaled_add(y: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Return y + c r, even if c itself overflows in the dtype of r but c r does not."""
    root = c.sqrt().clamp(max=0.1 * torch.finfo(r.dtype).max).to(r.dtype)
    return torch.addcmul(y, r * root, root)


def slack_stiffness(
    r: Tensor, lower: Tensor | None, beta: Tensor, nu: float, rest: Tensor | None = None
) -> Tensor:
    """Return the stiffness c = 1/t at the exact minimizer over the slacks.

        u = max(B, t · lower),     t = ‖(A, u)‖^(1−ν) / β

    ‖u‖² is a + b t² between the points t_i = B_i / lower_i at which an entry stops to depend on t.
    All of these are evaluated at once, and the root lies in one interval. There
    F(p) = (1−ν) log(1 + e^p) − p + log b − ν log a − 2 log β, with e^p = b t²/a, is convex and
    decreasing, so that Newton's method rises to the root from a point below it; the root of F with
    max(p, 0) in place of log(1 + e^p) is such a point, and at most 0.7 (1−ν)/ν away.

    Args:
        r: (A(x), B(x)).
        lower: −y for inequalities, −inf for equalities; None where there are equalities only.
        beta: penalty β.
        nu: exponent ν in (0, 1].
        rest: sum of squares of entries of (A, u) that are not in r.
    """
    if lower is None or nu == 1:
        total = length(r)
        return stiffness(total if rest is None else torch.hypot(total, rest.sqrt()), beta, nu)
    a, b, empty = _segment(r, lower, beta, nu, rest)
    tiny = torch.finfo(a.dtype).tiny
    log_a, log_b = a.clamp(min=tiny).log(), b.clamp(min=tiny).log()
    shift = log_b - log_a  # p = 2 log t + shift
    level = log_b - nu * log_a - 2 * beta.to(a.dtype).log()
    p = torch.maximum(level, level / nu)
    for _ in range(next(steps for lowest, steps in _NEWTON if nu >= lowest)):
        bend = functional.softplus(p, threshold=_LINEAR)
        value = torch.add(level - p, bend, alpha=1 - nu)
        p = torch.addcdiv(p, value, torch.rsub(p.sigmoid(), 1.0, alpha=1 - nu))
    minus_s = (0.5 * (shift - p)).clamp(-_CEILING, -_FLOOR)
    return minus_s.exp().masked_fill(empty, 0.0)


def _segment(
    r: Tensor, lower: Tensor, beta: Tensor, nu: float, rest: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a and b of ‖u‖² = a + b t² in the interval of t that holds the root.

    The third result is whether all of ‖(A, B)‖² is 0.
    """
    r, lower = r.to(wide(r.device)), lower.to(wide(r.device))
    info = torch.finfo(r.dtype)
    stays = (r >= 0) | (lower == -torch.inf)
    knee = (r / lower).abs().masked_fill(stays, 0.0).clamp(max=0.1 * info.max**0.5)
    knee, order = knee.sort()
    moving = (stays.logical_not() * r)[order].square()
    fixed = (stays * r).square().sum(0, keepdim=True)
    fixed = fixed if rest is None else fixed + rest
    squared = lower.masked_fill(stays, 0.0)[order].square()
    a = torch.cat([fixed, moving]).cumsum(0)
    b = functional.pad(squared, (0, 1)).flip(0).cumsum(0).flip(0)
    u_squares = torch.addcmul(a[1:], b[1:], knee.square()).clamp(min=info.tiny)
    gap = torch.sub((1 - nu) / 2 * u_squares.log() - beta.to(r.dtype).log(), knee.log())
    passed = (gap > 0).sum(0, keepdim=True)
    return a.gather(0, passed).reshape(()), b.gather(0, passed).reshape(()), a[-1] == 0


def shortening(
    r: Tensor, y: Tensor, inequality: Tensor | None, far: Tensor, beta: Tensor, nu: float
) -> Tensor:
    """Return q = min(1, far / ‖u‖) of a scaled r; `far` is larger where y pushes away."""
    u = violation(r, inequality)
    distance = norm(u)
    against = (torch.dot(y, u).to(distance.dtype) / distance).nan_to_num(0.0)
    far = torch.sub(far.pow(nu), against.clamp(max=0) / beta).pow(1 / nu)
    return (far / distance).clamp(max=1.0)


def not_finite(x: Tensor) -> Tensor:
    """Return where a tensor is nan or infinite, in two operations."""
    return (x - x).ne(0)  # inf − inf is nan, and nan differs from 0


def running_norm(past: Tensor, now: Tensor, memory: float) -> Tensor:
    """Return the running norm after a step; `past` is inf at first, and stays if now is nan."""
    start = torch.where(past == torch.inf, now, past)
    return torch.where(not_finite(now), past, start.lerp(now, 1 - memory))
