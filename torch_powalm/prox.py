"""Convex terms g: their value, their proximal operator, and the distance to −∂g(x).

    g.value(x)        g(x); the indicator of a set is 0 inside, up to rounding, and inf outside
    g.prox(v, step)   argmin_u g(u) + ‖u − v‖² / (2 step)
    g.distance(x, v)  dist(−v, ∂g(x)) = min ‖v + s‖ over s ∈ ∂g(x), and inf where g(x) = inf

With v = ∇ψ(x), `distance` is the dual residual of min ψ + g. A face is recognised by comparison
where the prox returns exact values (a bound, a zero) and up to rounding where it cannot (a norm
equal to the radius). Hand it results of the prox: a coordinate that is one rounding error inside
its bound counts as free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Proximable(Protocol):
    """A convex term with a cheap proximal operator.

    is_indicator says that g is the indicator of a set: 0 wherever its prox lands.
    """

    @property
    def is_indicator(self) -> bool:
        """Whether g only takes the values 0 and inf."""

    def value(self, x: Tensor) -> float:
        """Value g(x)."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Minimiser of g(u) + ‖u − v‖² / (2 step) for step > 0, in memory of its own."""

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Distance from −v to ∂g(x)."""


@dataclass(frozen=True)
class Zero:
    """No term: g(x) = 0."""

    is_indicator: ClassVar[bool] = True

    def value(self, x: Tensor) -> float:
        """0."""
        return 0.0

    def prox(self, v: Tensor, step: float) -> Tensor:
        """A copy of v."""
        return v.clone()

    def distance(self, x: Tensor, v: Tensor) -> float:
        """‖v‖."""
        return _norm(v)


@dataclass(frozen=True)
class NonNegative:
    """Indicator of {x : x ≥ 0}."""

    is_indicator: ClassVar[bool] = True

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0, else inf."""
        return _indicator(x.amin().item() >= 0)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """max(v, 0)."""
        return v.clamp(min=0.0)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: s_i ≤ 0 where x_i = 0, s_i = 0 elsewhere."""
        if self.value(x) == math.inf:
            return math.inf
        return _norm(_shorten_by_orthant(v, x))


@dataclass(frozen=True, eq=False)
class Box:
    """Indicator of {x : lower ≤ x ≤ upper}.

    Args:
        lower: float, or tensor that broadcasts to x; −inf leaves a side open.
        upper: likewise, lower ≤ upper, with inf for an open side.
    """

    is_indicator: ClassVar[bool] = True

    lower: float | Tensor
    upper: float | Tensor

    def __post_init__(self) -> None:
        lower, upper = _as_tensor(self.lower), _as_tensor(self.upper)
        if (wrong := ~(lower < math.inf)).any():
            raise ValueError(f"lower must be less than inf, got {_first(lower, wrong)!r}")
        if (wrong := ~(upper > -math.inf)).any():
            raise ValueError(f"upper must be greater than -inf, got {_first(upper, wrong)!r}")
        if (wrong := lower > upper).any():
            pair = f"{_first(lower, wrong)!r} > {_first(upper, wrong)!r}"
            raise ValueError(f"lower must be at most upper, got {pair}")
        if isinstance(self.lower, Tensor) != isinstance(self.upper, Tensor):
            # clamp takes two floats or two tensors
            object.__setattr__(self, "lower", lower)
            object.__setattr__(self, "upper", upper)

    def value(self, x: Tensor) -> float:
        """0 if lower ≤ x ≤ upper, else inf."""
        inside = self.prox(x, 1.0)
        if torch.equal(inside, x):
            return 0.0
        return _indicator(((x - inside).abs() <= _rounding(x, 1) * x.abs()).all().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """min(max(v, lower), upper)."""
        return torch.clamp(v, _like(self.lower, v), _like(self.upper, v))

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: s_i ≤ 0 at lower, s_i ≥ 0 at upper, any s_i where the two are equal."""
        if self.value(x) == math.inf:
            return math.inf
        residual = torch.where(x <= _like(self.lower, x), v.clamp(max=0.0), v)
        return _norm(torch.where(x >= _like(self.upper, x), residual.clamp(min=0.0), residual))


@dataclass(frozen=True, eq=False)
class Ball:
    """Indicator of {x : ‖x − center‖ ≤ radius}, the Euclidean norm of all entries together.

    Args:
        radius: > 0.
        center: float, or tensor that broadcasts to x.
    """

    is_indicator: ClassVar[bool] = True

    radius: float
    center: float | Tensor = 0.0

    def __post_init__(self) -> None:
        _check_positive("radius", self.radius)
        _check_finite("center", _as_tensor(self.center))

    def value(self, x: Tensor) -> float:
        """0 if ‖x − center‖ ≤ radius, else inf."""
        return _indicator(_norm(x - _like(self.center, x)) <= self.radius + self._slack(x))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Scaled offset: center + (v − center) min(1, radius/‖v − center‖)."""
        center = _like(self.center, v)
        offset = v - center
        norm = _norm(offset)
        return offset.mul_(self.radius / norm).add_(center) if norm > self.radius else v.clone()

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: t(x − center) with t ≥ 0 on the sphere, 0 inside."""
        offset = x - _like(self.center, x)
        norm, slack = _norm(offset), self._slack(x)
        if not norm <= self.radius + slack:
            return math.inf
        return _norm(v if norm < self.radius - slack else _shorten_by_ray(v, offset, norm))

    def _slack(self, x: Tensor) -> float:
        # x = center + offset is rounded relative to x, which may be far longer than the offset
        return _rounding(x, x.numel()) * (self.radius + _norm(x))


@dataclass(frozen=True)
class NonNegativeBall:
    """Indicator of {x : x ≥ 0, ‖x‖ ≤ radius}, the Euclidean norm of all entries together.

    Args:
        radius: > 0.
    """

    is_indicator: ClassVar[bool] = True

    radius: float

    def __post_init__(self) -> None:
        _check_positive("radius", self.radius)

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0 and ‖x‖ ≤ radius, else inf."""
        return _indicator(x.amin().item() >= 0 and _norm(x) <= self.radius + self._slack(x))

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection onto the cone, then onto the ball (Bauschke, Bui, Wang 2018)."""
        x = v.clamp(min=0.0)
        norm = _norm(x)
        return x.mul_(self.radius / norm) if norm > self.radius else x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: that of x ≥ 0, plus t x with t ≥ 0 on the sphere.

        The minimum over s and t of Σ (v_i + s_i + t x_i)² falls apart: where x_i = 0 the ray adds
        nothing and s_i ≤ 0 leaves min(v_i, 0); where x_i > 0 there is no s_i, and the best t is
        max(0, −⟨v, x⟩/‖x‖²), in which the entries with x_i = 0 do not appear.
        """
        norm, slack = _norm(x), self._slack(x)
        if not (norm <= self.radius + slack and x.amin().item() >= 0):
            return math.inf
        residual = _shorten_by_orthant(v, x)
        return _norm(residual if norm < self.radius - slack else _shorten_by_ray(residual, x, norm))

    def _slack(self, x: Tensor) -> float:
        return _rounding(x, x.numel()) * self.radius


@dataclass(frozen=True)
class Simplex:
    """Indicator of {x : x ≥ 0, Σ x = total}.

    Args:
        total: > 0.
        dim: the dimension along which each row is a simplex; None for one simplex of all entries.
    """

    is_indicator: ClassVar[bool] = True

    total: float = 1.0
    dim: int | None = None

    def __post_init__(self) -> None:
        _check_positive("total", self.total)

    def value(self, x: Tensor) -> float:
        """0 if x ≥ 0 and each sum is total, else inf."""
        rows = self._rows(x)
        slack = _rounding(x, rows.shape[-1]) * self.total
        summed = ((rows.sum(-1) - self.total).abs() <= slack).all()
        return _indicator((summed & (x >= 0).all()).item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """max(v − τ, 0) with Σ max(v − τ, 0) = total (Held, Wolfe, Crowder 1974).

        For every k, total ≥ Σ (v_i − τ) over the k largest v_i, with equality when these are the
        positive entries. So τ is the largest (Σ_k v_i − total)/k.
        """
        rows = self._rows(v)
        # entries that stay positive now lie in (−total, 0]: a large common shift costs no digits
        rows = rows - rows.amax(-1, keepdim=True)
        sums = rows.sort(dim=-1, descending=True).values.cumsum(-1)
        tau = ((sums - self.total) / _count(rows)).amax(-1, keepdim=True)
        x = (rows - tau).clamp_(min=0.0)
        # the rounding of τ adds up over the positive entries: a Newton step takes it out of the sum
        positive = x > 0
        error = (self.total - x.sum(-1, keepdim=True)) / positive.sum(-1, keepdim=True)
        x.add_(positive * error).clamp_(min=0.0)  # an entry as small as the error stays in the set
        return x.reshape(v.shape) if self.dim is None else x.movedim(-1, self.dim)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: s_i = μ on the support of a row, s_i ≤ μ off it, any μ.

        With a = −v less its mean on the support S, the best μ minimises

            Σ_S (a_i − μ)² + Σ_off max(a_i − μ, 0)²,   so   |S| μ = Σ_off max(a_i − μ, 0).

        As in the projection, μ is the largest of 0 and all Σ_k a_i / (|S| + k), k largest off S.
        """
        if self.value(x) == math.inf:
            return math.inf
        support, a = self._rows(x) > 0, -self._rows(v)
        size = support.sum(-1, keepdim=True)
        a = a - (a * support).sum(-1, keepdim=True) / size
        sums = a.masked_fill(support, -math.inf).sort(dim=-1, descending=True).values.cumsum(-1)
        mu = (sums / (size + _count(a))).amax(-1, keepdim=True).clamp_(min=0.0)
        residual = a - mu
        return _norm(torch.where(support, residual, residual.clamp(min=0.0)))

    def _rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1) if self.dim is None else x.movedim(self.dim, -1)


@dataclass(frozen=True)
class L1:
    """g(x) = weight Σ |x_i|.

    Args:
        weight: > 0.
    """

    is_indicator: ClassVar[bool] = False

    weight: float

    def __post_init__(self) -> None:
        _check_positive("weight", self.weight)

    def value(self, x: Tensor) -> float:
        """The sum weight Σ |x_i|."""
        return self.weight * float(x.abs().sum().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Soft threshold: v less its projection onto |v_i| ≤ weight · step."""
        return _shrink(v, self.weight * step)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: s_i = weight · sign(x_i), or |s_i| ≤ weight where x_i = 0."""
        smooth = torch.add(v, x / x.abs(), alpha=self.weight)
        return _norm(torch.where(x == 0, _shrink(v, self.weight), smooth))


@dataclass(frozen=True)
class L2Group:
    """g(x) = weight Σ ‖x_j‖ over the groups x_j, the slices of x along one dimension.

    Args:
        weight: > 0.
        dim: the dimension along which the entries of a group lie.
    """

    is_indicator: ClassVar[bool] = False

    weight: float
    dim: int

    def __post_init__(self) -> None:
        _check_positive("weight", self.weight)

    def value(self, x: Tensor) -> float:
        """The sum weight Σ ‖x_j‖."""
        return self.weight * float(_norms(x, self.dim).sum().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """v_j max(0, 1 − weight · step/‖v_j‖)."""
        return v * (1.0 - self.weight * step / _norms(v, self.dim)).clamp_(min=0.0)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: s_j = weight · x_j/‖x_j‖, or ‖s_j‖ ≤ weight where x_j = 0."""
        norms = _norms(x, self.dim)
        smooth = _norms(torch.add(v, x / norms, alpha=self.weight), self.dim)
        kink = (_norms(v, self.dim) - self.weight).clamp(min=0.0)
        return _norm(torch.where(norms == 0, kink, smooth))


@dataclass(frozen=True)
class NuclearNorm:
    """g(x) = weight Σ σ_i(x), the sum of the singular values of a matrix x.

    Args:
        weight: > 0.
    """

    is_indicator: ClassVar[bool] = False

    weight: float

    def __post_init__(self) -> None:
        _check_positive("weight", self.weight)

    def value(self, x: Tensor) -> float:
        """The sum weight Σ σ_i(x)."""
        _check_matrix("x", x)
        if not x.isfinite().all():
            return math.nan
        return self.weight * float(torch.linalg.svdvals(x).sum().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """U max(Σ − weight · step, 0) Vᵀ (Cai, Candès, Shen 2010, Theorem 2.1)."""
        _check_matrix("v", v)
        if not v.isfinite().all():  # the decomposition would raise
            return torch.full_like(v, math.nan)
        U, sigma, Vt = torch.linalg.svd(v, full_matrices=False)
        x: Tensor = U * (sigma - self.weight * step).clamp_(min=0.0) @ Vt
        return x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: weight (UVᵀ + W) with UᵀW = 0, WV = 0, ‖W‖ ≤ 1 in the spectral norm.

        U, V hold the singular vectors of x with σ_i > 0 (Watson 1992). The part of v that meets U
        or V only sees weight UVᵀ; W lowers the singular values of the rest by at most weight.
        """
        _check_matrix("x", x)
        if not (x.isfinite().all() and v.isfinite().all()):
            return math.nan
        U, sigma, Vt = torch.linalg.svd(x, full_matrices=False)
        positive = sigma > _rounding(x, max(x.shape)) * sigma[:1]
        U, Vt = U * positive, Vt * positive[:, None]
        rest = v - U @ (U.T @ v)
        rest = rest - (rest @ Vt.T) @ Vt
        kept = (torch.linalg.svdvals(rest) - self.weight).clamp(min=0.0)
        return math.hypot(_norm(v - rest + self.weight * (U @ Vt)), _norm(kept))


@dataclass(frozen=True)
class SecondOrderCone:
    """Indicator of {x : x_0 ≥ ‖(x_1, …, x_n)‖} for each vector along the last dimension of x."""

    is_indicator: ClassVar[bool] = True

    def value(self, x: Tensor) -> float:
        """0 if x_0 ≥ ‖(x_1, …, x_n)‖ for every vector, else inf."""
        head, norm = x[..., :1], _norms(x[..., 1:], -1)
        return _indicator((norm <= head * (1.0 + _rounding(x, x.shape[-1]))).all().item())

    def prox(self, v: Tensor, step: float) -> Tensor:
        """For v = (v_0, u): v in the cone, 0 in its polar, else (v_0 + ‖u‖)/2 · (1, u/‖u‖)."""
        head, norm = v[..., :1], _norms(v[..., 1:], -1)
        # (v_0 + ‖u‖)/2 is at most v_0 in the cone and at most 0 in its polar
        alpha = torch.maximum(head, ((head + norm) / 2).clamp_(min=0.0))
        scale = torch.where(norm > alpha, alpha / norm, 1.0)
        return torch.cat((alpha, v[..., 1:] * scale), dim=-1)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: 0 inside, t(−1, u/‖u‖) with t ≥ 0 on the boundary, the polar cone at 0.

        The polar of the cone K is −K, so the distance at 0 is ‖v − P_K(v)‖.
        """
        if self.value(x) == math.inf:
            return math.inf
        head, norm = x[..., :1], _norms(x[..., 1:], -1)
        boundary = norm >= head * (1.0 - _rounding(x, x.shape[-1]))
        normal = torch.cat((-torch.ones_like(head), x[..., 1:] / norm), dim=-1)
        t = (-(v * normal).sum(-1, keepdim=True) / 2).clamp(min=0.0)  # ‖normal‖² = 2
        residual = torch.where(boundary, v + t * normal, v)
        return _norm(torch.where(head == 0, v - self.prox(v, 1.0), residual))


@dataclass(frozen=True, eq=False)
class Affine:
    """Indicator of {x : matrix · x = rhs}, x flattened to a vector.

    The rows of the matrix may depend on each other as long as the system has a solution.

    Args:
        matrix: m × n in the dtype of x, m small; decomposed once.
        rhs: m entries.
    """

    is_indicator: ClassVar[bool] = True

    matrix: Tensor
    rhs: Tensor
    # the same set as basisᵀx = offset, with orthonormal columns
    _basis: Tensor = field(init=False, repr=False)
    _offset: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_matrix("matrix", self.matrix)
        if not self.matrix.is_floating_point():
            raise TypeError(f"matrix must have a floating-point dtype, got {self.matrix.dtype}")
        _check_finite("matrix", self.matrix)
        _check_finite("rhs", self.rhs)
        if self.rhs.shape != self.matrix.shape[:1]:
            raise ValueError(
                f"rhs must have shape ({self.matrix.shape[0]},), got {tuple(self.rhs.shape)}"
            )
        M, b = (t.detach().to("cpu", torch.float64) for t in (self.matrix, self.rhs))
        U, sigma, Vt = torch.linalg.svd(M, full_matrices=False)
        rounding = _rounding(self.matrix, max(M.shape))
        rank = int((sigma > rounding * sigma[:1]).sum())
        U, sigma, Vt = U[:, :rank], sigma[:rank], Vt[:rank]
        residual = _norm(b - U @ (U.T @ b))
        if residual > rounding * _norm(b):
            raise ValueError(f"rhs must be in the range of matrix, got a residual of {residual!r}")
        object.__setattr__(self, "_basis", Vt.T.to(self.matrix))
        object.__setattr__(self, "_offset", (U.T @ b / sigma).to(self.matrix))

    def value(self, x: Tensor) -> float:
        """0 if matrix · x = rhs, else inf."""
        # no face to tell apart here, so an absolute part of the slack does no harm; without it the
        # prox of a vector in the range of matrixᵀ for rhs = 0, a rounded zero, would be outside
        slack = _rounding(x, x.numel()) * (1.0 + _norm(x))
        return _indicator(_norm(self._error(x.reshape(-1))) <= slack)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Projection v − basis (basisᵀv − offset)."""
        x, basis = v.reshape(-1), self._basis.to(v)
        for _ in range(2):  # the first pass leaves an error relative to v, the second one to x
            x = torch.addmv(x, basis, self._error(x), alpha=-1)
        return x.reshape(v.shape)

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Normal cone: the range of matrixᵀ."""
        if self.value(x) == math.inf:
            return math.inf
        v, basis = v.reshape(-1), self._basis.to(v)
        return _norm(torch.addmv(v, basis, basis.T @ v, alpha=-1))

    def _error(self, x: Tensor) -> Tensor:
        n = self.matrix.shape[1]
        if x.numel() != n:
            raise ValueError(f"x has {x.numel()} entries, matrix has {n} columns")
        return torch.addmv(self._offset.to(x), self._basis.to(x).T, x, beta=-1)


@dataclass(frozen=True, eq=False)
class Separable:
    """g(x) = Σ g_j(x[rows_j]): terms on disjoint blocks of rows, and 0 on all other rows.

    Example:
        Separable([(slice(0, 3), Box(0.0, 1.0)), (slice(5, None), L1(0.1))])

    Args:
        parts: pairs of a slice of the first dimension, 0 ≤ start < stop, and the term of its rows;
            an open stop reaches to the end.
    """

    parts: Sequence[tuple[slice, Proximable]]
    _free: tuple[slice, ...] = field(init=False, repr=False)
    _size: int = field(init=False, repr=False)  # rows that x must have
    _is_indicator: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        for part in self.parts:
            _check_part(part)
        blocks = sorted((rows for rows, _ in self.parts), key=lambda rows: rows.start or 0)
        free, end = [], 0
        for j, rows in enumerate(blocks):
            start = rows.start or 0
            if j > 0 and (blocks[j - 1].stop is None or start < end):
                raise ValueError(f"parts must be disjoint, got {blocks[j - 1]!r} and {rows!r}")
            free.append(slice(end, start))
            end = start if rows.stop is None else rows.stop
        if not blocks or blocks[-1].stop is not None:
            free.append(slice(end, None))
        object.__setattr__(self, "_free", tuple(rows for rows in free if rows.start != rows.stop))
        object.__setattr__(self, "_size", end)
        object.__setattr__(self, "_is_indicator", all(g.is_indicator for _, g in self.parts))

    @property
    def is_indicator(self) -> bool:
        """Whether every term is an indicator."""
        return self._is_indicator

    def value(self, x: Tensor) -> float:
        """The sum Σ g_j(x[rows_j])."""
        self._check_rows(x)
        return math.fsum(g.value(x[rows]) for rows, g in self.parts)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Each term's prox on its rows."""
        self._check_rows(v)
        x = v.clone()
        for rows, g in self.parts:
            x[rows] = g.prox(v[rows], step)
        return x

    def distance(self, x: Tensor, v: Tensor) -> float:
        """Subdifferential: the product of those of the terms, and 0 on the free rows."""
        self._check_rows(x)
        distances = [g.distance(x[rows], v[rows]) for rows, g in self.parts]
        return math.hypot(*distances, *(_norm(v[rows]) for rows in self._free))

    def _check_rows(self, x: Tensor) -> None:
        if x.shape[0] < self._size:
            raise ValueError(f"x has {x.shape[0]} rows, parts need {self._size}")


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def _check_finite(name: str, value: Tensor) -> None:
    if (wrong := ~value.isfinite()).any():
        raise ValueError(f"{name} must be finite, got {_first(value, wrong)!r}")


def _check_matrix(name: str, value: Tensor) -> None:
    if value.ndim != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(value.shape)}")


def _check_part(part: Any) -> None:
    match part:
        case (slice() as rows, Proximable() as g) if not isinstance(g, type):
            start, stop = rows.start or 0, rows.stop
            if rows.step is not None or start < 0 or (stop is not None and stop <= start):
                rule = "slices with 0 <= start < stop and no step"
                raise ValueError(f"parts must have {rule}, got {rows!r}")
        case _:
            raise TypeError(f"parts must be pairs of a slice and a term, got {part!r}")


def _first(value: Tensor, wrong: Tensor) -> float:
    return float(value.expand_as(wrong)[wrong][0].item())


def _as_tensor(value: float | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _like(value: float | Tensor, x: Tensor) -> Any:
    """The value in dtype and device of x; a tensor of a shape that does not fit x raises."""
    return value.to(x).expand_as(x) if isinstance(value, Tensor) else value


def _rounding(x: Tensor, n: int) -> float:
    """Relative error allowed to a norm or sum of n entries in the dtype of x.

    Torch adds up a long norm in order: on the sphere, errors of √n machine epsilons were seen.
    """
    return (64.0 + 4.0 * math.sqrt(n)) * torch.finfo(x.dtype).eps


def _norm(x: Tensor) -> float:
    if x.dtype is torch.float64:  # a third of the time; a shorter dtype would lose its squares
        flat = x.reshape(-1)
        return math.sqrt(torch.dot(flat, flat).item())
    return float(torch.linalg.vector_norm(x).item())


def _norms(x: Tensor, dim: int) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return norms


def _count(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)


def _indicator(inside: object) -> float:
    return 0.0 if inside else math.inf


def _shrink(v: Tensor, threshold: float) -> Tensor:
    return v - v.clamp(-threshold, threshold)


def _shorten_by_orthant(v: Tensor, x: Tensor) -> Tensor:
    """The shortest v + s with s_i ≤ 0 where x_i = 0, s_i = 0 elsewhere."""
    return torch.where(x > 0, v, v.clamp(max=0.0))


def _shorten_by_ray(v: Tensor, direction: Tensor, norm: float) -> Tensor:
    """The shortest v + t · direction with t ≥ 0; norm is that of the direction."""
    t = max(0.0, -float((v * direction).sum().item()) / norm / norm)
    return torch.add(v, direction, alpha=t)
