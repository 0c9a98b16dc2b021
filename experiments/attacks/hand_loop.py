"""The dual side written by hand, from the formulas of the paper and of docs/training.md.

It imports nothing of the package. Slacks are eliminated by plain iteration, weights are y + c u in
place of max(y + c r, 0), and everything runs in float64. Numbers that a training measures (scales,
penalty, part of an update) are passed in.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

F64 = torch.float64


class HandBlock(NamedTuple):
    """What the loop knows of a block."""

    name: str
    inequality: bool
    size: int
    kind: str  # "static", "value", "counts" or "statistics"
    latest: bool = False
    scale: float | None = None

    def value(self, total: Tensor, weight: Tensor) -> Tensor:
        """Return the constraint from its sums."""
        if self.kind == "statistics":
            return total[:1] / total[1:2] - 0.2
        return torch.where(weight > 0, total / weight.clamp(min=1e-300), 0.0)


class HandDual:
    """y, β and k of all blocks.

    Args:
        blocks: in the order of their entries: those of the parameters first.
        settings: as of `PowerALMOptimizer`.
    """

    def __init__(self, blocks: list[HandBlock], settings: dict[str, Any]) -> None:
        self.blocks, self.settings = blocks, settings
        self.nu, self.k, self.far = settings.get("nu", 0.8), 1, math.inf
        self.inequality = torch.cat([torch.full((b.size,), b.inequality) for b in blocks])
        ends = torch.tensor([b.size for b in blocks]).cumsum(0).tolist()
        whole = [slice(0, ends[-1])]
        each = [slice(e - b.size, e) for b, e in zip(blocks, ends, strict=True)]
        self.groups = each if settings.get("coupling") == "block" else whole
        given = settings.get("beta_1")
        by_name = given if isinstance(given, dict) else {}
        self.beta = max(by_name.values()) if by_name else (1.0 if given is None else given)
        factors = [
            (b.scale or 1.0)
            * ((by_name[b.name] / self.beta) ** (1 / (self.nu + 1)) if by_name else 1.0)
            for b in blocks
        ]
        self.scale = torch.cat(
            [torch.full((b.size,), f, dtype=F64) for b, f in zip(blocks, factors, strict=True)]
        )
        self.y = torch.zeros(len(self.inequality), dtype=F64)
        self.start_norm = 0.0
        self.last_norm: float | None = None
        self.nearest = math.inf  # the smallest |r| at the last update

    def start(self, r: Tensor) -> None:
        """Remember the violation at the first point."""
        if self.last_norm is None:
            norms = [float(self._violation(r * self.scale)[g].norm()) for g in self.groups]
            self.last_norm = math.hypot(*norms)
            self.start_norm = math.hypot(*[n**self.nu for n in norms])

    def _violation(self, z: Tensor) -> Tensor:
        return torch.where(self.inequality, z.clamp(min=0), z)

    def _priced(self) -> Tensor:
        return torch.where(self.scale > 0, self.y / self.scale, 0.0)

    def _near(self, r: Tensor) -> Tensor:
        z = r * self.scale
        u = self._violation(z)
        length = float(u.norm())
        if not length > self.far:
            return z
        push = max(0.0, -float(self._priced() @ u) / length)
        far = (self.far**self.nu + push / self.beta) ** (1 / self.nu)
        return z * min(1.0, far / length)

    def _residuals(self, z: Tensor) -> list[Tensor]:
        """Return (A, u) of every group: u = max(B, −t y) with t = ‖(A, u)‖^(1−ν)/β."""
        found, y = [], self._priced()
        for g in self.groups:
            u, t = z[g], math.inf
            for _ in range(3000):
                before, t = t, float(u.norm()) ** (1 - self.nu) / self.beta
                u = torch.where(self.inequality[g], torch.maximum(z[g], -t * y[g]), z[g])
                if abs(t - before) <= 1e-15 * t:
                    break
            found.append(u)
        return found

    def weight(self, r: Tensor) -> Tensor:
        """Return w = y + c u with c = β‖u‖^(ν−1), in the units of the user."""
        parts = []
        for g, u in zip(self.groups, self._residuals(self._near(r)), strict=True):
            length = float(u.norm())
            c = self.beta * length ** (self.nu - 1) if length > 0 else 0.0
            parts.append(self._priced()[g] + c * u)
        w = torch.cat(parts) * self.scale
        return torch.where(self.inequality, w.clamp(min=0), w)

    def value(self, r: Tensor) -> Tensor:
        """Return ⟨y, u⟩ + βφ(u) as a function of r that can be differentiated."""
        z = r * self.scale
        total = r.new_zeros(())
        for g, u in zip(self.groups, self._residuals(z.detach()), strict=True):
            u = torch.where(self.inequality[g] & (u > z[g].detach()), u, z[g])
            length = u.norm()
            total = (
                total + self._priced()[g] @ u + self.beta / (1 + self.nu) * length ** (1 + self.nu)
            )
        return total

    def update(
        self, r: Tensor, part: Tensor | float = 1.0, beta: float | None = None
    ) -> tuple[float, float]:
        """Move y and β; return ‖violation‖ and σ.

        Args:
            r: the residual of the epoch.
            part: part of the move that y makes.
            beta: the next penalty, if it is measured.
        """
        z, settings = self._near(r), self.settings
        self.nearest = float(z.abs().min())
        residuals = self._residuals(z)
        norms = [float(u.norm()) for u in residuals]
        length = math.hypot(*norms)
        powered = math.hypot(*[n**self.nu for n in norms])
        self.start_norm = self.start_norm or powered
        rule = settings.get("sigma", "penalty")
        sigma_1 = settings.get("sigma_1", 10.0)
        decay = math.log(2) ** 2 / ((self.k + 1) * math.log(self.k + 2) ** 2)
        sigma = {
            "penalty": self.beta,
            "paper": sigma_1 * min(1.0, decay * self.start_norm / powered if powered else 1.0),
            "sqrt": sigma_1 / math.sqrt(self.k + 1),
            "pi": sigma_1,
        }[rule]
        steps = [z[g] for g in self.groups] if rule == "pi" else residuals
        lengths = [float(s.norm()) for s in steps]
        moves = [
            s * n ** (self.nu - 1) if n > 0 else s for s, n in zip(steps, lengths, strict=True)
        ]
        y = (self._priced() + sigma * torch.cat(moves)) * self.scale
        y = torch.where(self.inequality, y.clamp(min=0), y)
        limit = settings.get("y_max", math.inf)
        self.y = (self.y + part * (y - self.y)).clamp(-limit, limit)
        enough = settings.get("sufficient_decrease")
        fallen = enough is not None and length <= enough * (self.last_norm or 0.0)
        self.last_norm = length
        growth = 1.0 if fallen else settings.get("omega", 1.0)
        grown = min(growth * self.beta, settings.get("beta_max", math.inf))
        self.beta = grown if beta is None else beta
        self.k += 1
        return float(self._violation(r).norm()), sigma


class HandEstimate:
    """Running average of one batch block (Trigg and Leach)."""

    def __init__(self, block: HandBlock) -> None:
        self.block, self.largest = block, 0.5 if block.kind == "statistics" else 1.0
        self.sums: tuple[Tensor, Tensor] | None = None

    def blended(self, total: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums as they will be after this batch."""
        if self.sums is None:
            return total, weight
        gain = self.gain * (weight > 0).to(F64)  # torch.where of two numbers is of float32
        old, before = self.sums
        return old + gain * (total - old), before + gain * (weight - before)

    def follow(self, total: Tensor, weight: Tensor) -> None:
        """Move the average."""
        if self.sums is None:
            self.sums, self.gain, self.M = (total, weight), self.largest, 0.0
            self.E = torch.zeros(self.block.size, dtype=F64)
            return
        both = (weight > 0) & (self.sums[1] > 0)
        e = self.block.value(total, weight) - self.block.value(*self.sums)
        if self.block.kind != "statistics":
            e = torch.where(both, e, 0.0)
        moved = self.blended(total, weight)
        first, size = self.M == 0, float(e.norm())
        self.E = e if first else 0.9 * self.E + 0.1 * e
        self.M = size if first else 0.9 * self.M + 0.1 * size
        self.gain = min(self.largest, max(0.05, float(self.E.norm()) / self.M if self.M else 1.0))
        self.sums = moved
