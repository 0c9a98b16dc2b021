"""The formulas of the power augmented Lagrangian, as pure functions of flat vectors.

    L_β(x, y) = f(x) + g(x) + ⟨y, r⟩ + β φ(r),     φ(r) = ‖r‖^(ν+1) / (ν+1),     0 < ν ≤ 1

r holds the equalities A(x) and, for every inequality B(x) ≤ 0, u = max(B(x), −t y), in which the
slack is eliminated. The formulas use the stiffness c = β ‖r‖^(ν−1): β∇φ(r) = c r, and t = 1/c.
"""

import math

import torch
from torch import Tensor

_FEW = 64  # up to this many constraints, Python floats are faster than tensor operations
_LARGE = 1e30  # a smaller factor times a float32 entry of a unit vector cannot overflow


def norm(*tensors: Tensor) -> float:
    """Euclidean norm of all entries of some tensors of any shape as one vector; 0 for none.

    Correct where the squares of the entries would overflow or underflow.
    """
    vectors = [_flat(t) for t in tensors]
    if len(vectors) > 1 and not all(v.is_cpu for v in vectors):
        # On an accelerator every item() waits for the device: read one number for all tensors.
        norms = [torch.linalg.vector_norm(v, dtype=torch.float32) for v in vectors]
        return float(torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms])))
    squares = 0.0
    for v in vectors:
        squares += torch.dot(v, v).item()
    if 1e-30 < squares < 1e30:
        return math.sqrt(squares)
    return math.hypot(*[_scaled_norm(v) for v in vectors])


def phi(r: Tensor, nu: float) -> float:
    """Power term φ(r) = ‖r‖^(ν+1) / (ν+1)."""
    return power(norm(r), nu)


def power(r_norm: float, nu: float) -> float:
    """φ as a function of the norm, inf where it overflows."""
    return math.pow(r_norm, nu + 1) / (nu + 1) if r_norm < 1e150 else math.inf


def grad_phi(r: Tensor, nu: float) -> Tensor:
    """Gradient ∇φ(r) = ‖r‖^(ν−1) r, with ∇φ(0) = 0."""
    return scaled_add(torch.zeros_like(r), r, stiffness(norm(r), 1.0, nu))


def stiffness(r_norm: float, beta: float, nu: float) -> float:
    """The factor c = β ‖r‖^(ν−1) of β∇φ(r) = c r; 0 at r = 0, where ∇φ vanishes."""
    if nu == 1:
        return beta
    return beta * r_norm ** (nu - 1) if r_norm > 0 else 0.0


def scaled_add(y: Tensor, r: Tensor, c: float) -> Tensor:
    """Return y + c r, even if c itself overflows in the dtype of r but c r does not."""
    if c < _LARGE:
        return torch.add(y, r, alpha=c)
    # Finite in the dtype of r, so that 0 · root is 0.
    root = min(math.sqrt(c), 0.1 * torch.finfo(r.dtype).max)
    return torch.add(y, r * root, alpha=root)


def slack_stiffness(
    r: Tensor, r_norm: float, lower: Tensor | None, beta: float, nu: float, rest: float = 0.0
) -> float:
    """Stiffness c = 1/t at the exact minimizer of L_β over the slacks s ≥ 0 of B(x) + s = 0.

        u = max(B, −t y),     t = ‖(A, u)‖^(1−ν) / β

    In s = log t this is s = M(s), where the slope of M lies in [0, 1 − ν], so that its root is
    unique. The fixed-point iteration falls to it from above; secant steps inside the bracket
    converge in a few iterations.

    Args:
        r: (A(x), B(x)), finite.
        r_norm: ‖r‖.
        lower: −y for inequalities, −inf for equalities; None where there are equalities only.
        beta: penalty β > 0.
        nu: exponent ν in (0, 1].
        rest: sum of squares of entries of (A, u) that are not in r, but in r_norm.
    """
    if lower is None or nu == 1 or r_norm == 0:
        return stiffness(r_norm, beta, nu)

    if len(r) <= _FEW:
        entries = list(zip(r.tolist(), lower.tolist(), strict=True))

    def image(s: float) -> float:
        t = math.exp(s)
        if len(r) <= _FEW:
            u_norm = math.hypot(*[max(r_i, t * lower_i) for r_i, lower_i in entries])
        else:
            u_norm = norm(eliminate_slack(r, lower, t))
        u_norm = math.hypot(u_norm, math.sqrt(rest)) if rest > 0 else u_norm
        # At u = 0 the image is −inf; −600 will do, since every entry that depends on t is inactive.
        return max((1 - nu) * math.log(max(u_norm, 1e-300)) - math.log(beta), -600.0)

    tolerance = 4 * torch.finfo(r.dtype).eps
    low, high = -math.inf, (1 - nu) * math.log(r_norm) - math.log(beta)
    s_prev, gap_prev = high, image(high) - high
    s = high + gap_prev
    for _ in range(100):
        gap = image(s) - s
        if abs(gap) <= tolerance * max(1.0, abs(s)):
            break
        low, high = (s, high) if gap > 0 else (low, s)
        # Secant step for h(s) = M(s) − s, whose slope lies in [−1, −ν].
        slope = (gap - gap_prev) / (s - s_prev)  # the last step was longer than the tolerance
        secant = s - gap / min(max(slope, -1.0), -nu)
        s_prev, gap_prev = s, gap
        s = secant if low < secant < high else s + gap
    return math.exp(-s)


def eliminate_slack(r: Tensor, lower: Tensor, t: float) -> Tensor:
    """(A, u) from (A, B), with u = max(B, t · lower)."""
    limits = torch.finfo(r.dtype)  # keep t in the range of the dtype, because 0 · inf is nan
    return torch.maximum(r, lower * min(max(t, limits.tiny), 0.1 * limits.max))


def augmented_lagrangian(
    f_x: float, r: Tensor, y: Tensor, beta: float, nu: float, r_norm: float | None = None
) -> float:
    """Value f(x) + ⟨y, r⟩ + β φ(r), with r = (A, u) after elimination of the slacks.

    Pass r_norm = ‖r‖ where it is already known.
    """
    penalty = power(norm(r) if r_norm is None else r_norm, nu)
    return f_x + torch.dot(y, r).item() + beta * penalty


def violation(r: Tensor, inequality: Tensor | bool | None) -> Tensor:
    """(A, max(B, 0)) from r = (A, B).

    Args:
        r: values of the constraints.
        inequality: which entries belong to B: a mask, or one answer for all of them.
    """
    if inequality is None or inequality is False:
        return r
    positive = r.clamp(min=0)
    return positive if inequality is True else torch.where(inequality, positive, r)


def rescale(
    r: Tensor,
    scale: Tensor | None,
    inequality: Tensor | None,
    far: float,
    y: Tensor,
    beta: float,
    nu: float,
) -> tuple[Tensor, float]:
    """Return q s r and q = min(1, far / ‖u‖), u = s (A, max(B, 0)): no force grows beyond `far`.

    Where y pushes away from u = 0, `far` is larger, so that the penalty prevails over y.

    Args:
        r: values of the constraints.
        scale: factors s of the entries; None for 1, and then q is 1 too.
        inequality: mask of the entries that are inequalities; None if none is.
        far: norm of the scaled violations beyond which the penalty grows linearly.
        y: multipliers of the scaled values.
        beta: penalty β.
        nu: exponent ν in (0, 1].
    """
    if scale is None:
        return r, 1.0
    r = r * scale
    if far == math.inf:
        return r, 1.0
    u = violation(r, inequality)
    distance = norm(u)
    if not far < distance < math.inf:
        return r, 1.0
    against = -torch.dot(y, u).item() / distance
    far = (far**nu + max(0.0, against) / beta) ** (1 / nu)
    return (r * (far / distance), far / distance) if far < distance else (r, 1.0)


def step_size(
    rule: str, sigma_1: float, beta: float, start_norm: float, step_norm: float, k: int
) -> float:
    """Step size σ of the k-th multiplier update under a rule of `DualState`."""
    if rule == "penalty":
        return beta
    if rule == "paper":
        return dual_step(sigma_1, start_norm, step_norm, k)
    return decaying_step(sigma_1, k) if rule == "sqrt" else sigma_1


def dual_step(sigma_1: float, start_norm: float, step_norm: float, k: int) -> float:
    """Step size of the k-th multiplier update (paper, Algorithm 1, step 3).

        σ = σ_1 min(1, ‖∇φ(r_1)‖ / ‖∇φ(r)‖ · log²2 / ((k+1) log²(k+2)))

    ‖∇φ(r)‖ is ‖r‖^ν as in the paper when one norm couples all entries. The increments σ‖∇φ(r)‖ are
    summable by construction, so ‖y‖ stays bounded.
    """
    decay = math.log(2) ** 2 / ((k + 1) * math.log(k + 2) ** 2)
    if step_norm <= start_norm * decay:
        return sigma_1
    return sigma_1 * start_norm * decay / step_norm


def decaying_step(sigma_1: float, k: int) -> float:
    """Step size σ_1/√(k+1) of the k-th multiplier update, which the paper's experiments used."""
    return sigma_1 / math.sqrt(k + 1)


def _flat(t: Tensor) -> Tensor:
    """The entries of any tensor, sparse or complex ones too, as a dense real vector."""
    if t.is_sparse:
        t = t.coalesce().values()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    return t if t.dim() == 1 else t.reshape(-1)


def _scaled_norm(v: Tensor) -> float:
    """‖v‖ by way of v / max |v_i|, whose squares are safe."""
    if v.numel() == 0:
        return 0.0
    largest = v.abs().max()
    top: float = largest.item()
    if top == 0 or not math.isfinite(top):
        return top
    scaled: float = torch.linalg.vector_norm(v / largest).item()
    return top * scaled
