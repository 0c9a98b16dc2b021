"""A random training by a loop written by hand, from the formulas of hand_loop.py."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from experiments.attacks.hand_loop import F64, HandDual, HandEstimate
from experiments.attacks.optimizer_training import Ours, Run
from experiments.attacks.random_case import SCHEDULES, Case


class ByHand(Run):
    """The same training, written by hand."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.dual = HandDual(case.blocks, case.settings)
        self.schedule = SCHEDULES[case.schedule](self.base)
        self.batch_blocks = [b for b in case.blocks if b.kind != "static"]
        averaged = [b for b in self.batch_blocks if case.automatic and not b.latest]
        self.estimates = {b.name: HandEstimate(b) for b in averaged}
        self.epoch: dict[str, tuple[Tensor, Tensor]] = {}
        self.done = 0

    def sums(self, values: dict[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the weighted values and the weights of the blocks of a batch."""
        found = {}
        for block in self.batch_blocks:
            value = values[block.name]
            if block.kind == "counts":
                value, weight = value
                total = torch.where(weight > 0, value, 0.0).to(F64) * weight.to(F64)
                found[block.name] = total, weight.to(F64)
            elif block.kind == "statistics":
                found[block.name] = value.to(F64), torch.ones(2, dtype=F64)
            else:
                samples = torch.full((block.size,), self.case.samples, dtype=F64)
                found[block.name] = value.to(F64) * samples, samples
        return found

    def residual(self, sums: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        """Return r at sums of the batch blocks, with a graph."""
        values = [self.static(b.name).to(F64) for b in self.case.blocks if b.kind == "static"]
        values += [b.value(*sums[b.name]) for b in self.batch_blocks]
        margin = self.case.settings.get("margin", 0.0)
        return torch.cat(values) + margin * self.dual.inequality.to(F64)

    def blended(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Return running averages in place of the sums of a batch, with the graph of the batch."""
        found = {}
        for name, (total, weight) in sums.items():
            if name in self.estimates:
                mixed, weight = self.estimates[name].blended(total.detach(), weight)
                total = mixed + (total - total.detach())
            found[name] = total, weight
        return found

    def gradients(self, step: int, active: bool) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Compute the gradient of L_β in .grad; return the reported sums, or None to skip."""
        case, n = self.case, self.case.parts
        batches = [self.batch(step, part) for part in range(n)]
        sums = [self.sums(values) for _, values, _ in batches]
        whole = {k: tuple(sum(s[k][i] for s in sums) for i in (0, 1)) for k in sums[0]}
        mean = {k: (t / n, w / n) for k, (t, w) in whole.items()}
        grads = [torch.zeros_like(p) for p in self.params]
        for (loss, _, _), own in zip(batches, sums, strict=True):
            if not bool(loss.isfinite()):
                if active:  # multipliers start at the first finite r
                    self.dual.start(self.residual(self.blended(mean)).detach())
                return None
            term = loss.to(F64) / n
            if active and self.batch_blocks:
                r = self.residual(self.blended(mean if case.window else own))
                self.dual.start(r.detach())
                w, size = self.dual.weight(r.detach()), sum(b.size for b in self.batch_blocks)
                term = term + w[-size:] @ r[-size:] / n
            for g, new in zip(grads, self._gradient(term), strict=True):
                g += new
        if active and len(self.batch_blocks) < len(case.blocks):
            r = self.residual(self.blended(mean))
            self.dual.start(r.detach())
            w, size = self.dual.weight(r.detach()), sum(b.size for b in self.batch_blocks)
            static = len(w) - size
            for g, new in zip(grads, self._gradient(w[:static] @ r[:static]), strict=True):
                g += new
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g
        reported = [self.sums({**values, **strict}) for _, values, strict in batches]
        self.mean = mean
        return {k: tuple(sum(s[k][i] for s in reported).detach() for i in (0, 1)) for k in sums[0]}

    def _gradient(self, term: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(term, self.params, retain_graph=True, allow_unused=True)
        pairs = zip(found, self.params, strict=True)
        return [torch.zeros_like(p) if g is None else g for g, p in pairs]

    def step(self, step: int, ours: Ours, longest: float) -> None:
        """Take the step that ours has taken."""
        case = self.case
        active = ours.optimizer.dual.started and self.done >= case.settings.get("warm_up", 0)
        if case.automatic and not self.measured:
            active = False
        reported = self._search(step, active) if case.searches else self.gradients(step, active)
        if reported is not None:
            if case.clipped:
                nn.utils.clip_grad_norm_(self.params, 0.5)
            if not case.searches:
                self._shorten(longest if active else math.inf)
                self.base.step()
                for name, estimate in self.estimates.items():
                    estimate.follow(*(t.detach() for t in self.mean[name]))
            if case.projected:
                self.params[3].data.clamp_(-0.2, 0.2)
            self.done += 1
            for block in self.batch_blocks:
                past, new = self.epoch.get(block.name), reported[block.name]
                if past is None or block.latest:
                    self.epoch[block.name] = new
                else:
                    self.epoch[block.name] = past[0] + new[0], past[1] + new[1]
        self.schedule.step()

    measured = False

    def _shorten(self, longest: float) -> None:
        length = math.sqrt(sum(float(p.grad.double().square().sum()) for p in self.params))
        if length > longest:
            for p in self.params:
                p.grad *= longest / length

    def _search(self, step: int, active: bool) -> dict[str, Any] | None:
        """Minimize the full L_β with a base that searches."""
        points: list[tuple[float, Any]] = []
        loss, values, _ = self.batch(step, 0)
        if not bool(loss.isfinite()):
            if active:
                self.dual.start(self.residual(self.sums(values)).detach())
            return None

        def closure() -> Tensor:
            self.base.zero_grad()
            loss, values, strict = self.batch(step, 0)
            sums = self.sums(values)
            if active:
                r = self.residual(sums)
                self.dual.start(r.detach())
                loss = loss + self.dual.value(r)
            loss.backward()
            reported = self.sums({**values, **strict})
            told = {k: tuple(t.detach() for t in pair) for k, pair in reported.items()}
            points.append((self._length(), told))
            return loss

        self.base.step(closure)
        here = self._length()
        near = [told for length, told in points if abs(length - here) <= 1e-14 * here]
        return near[-1] if near else points[-1][1]

    def _length(self) -> float:
        return math.sqrt(sum(float(p.detach().square().sum()) for p in self.params))

    def update(self, part: Any, beta: float | None) -> tuple[float, float]:
        """Update the multipliers from the averages of the epoch."""
        with torch.no_grad():
            r = self.residual(self.epoch)
        self.dual.start(r)
        self.epoch = {}
        return self.dual.update(r, 1.0 if part is None else part.to(F64), beta)
