"""Random trainings, each run by the optimizer and, in step with it, by a loop written by hand.

In float64, parameters, multipliers and penalties must agree to 1e-8 after every step. What a
training measures (scales, penalty, longest gradient) is read off; everything else is computed from
formulas in `hand_loop.py`.
"""

import copy
import io
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.attacks.findings import FindingError
from experiments.attacks.hand_loop import F64, HandBlock, HandDual, HandEstimate
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox

BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.5, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, eps=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-4),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, eps=1e-4),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, eps=1e-4),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01, eps=1e-4),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02, eps=1e-4),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5, eps=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, eps=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.02),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.005),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "wolfe": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
}
TOLERANCE = {F64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "constant": lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0),
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.7),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 30),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.2, 1.0, total_iters=8),
}


class Case:
    """A random training.

    Args:
        rng: source of randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        pick = rng.choice
        self.base = pick(list(BASES))
        self.searches = self.base in ("lbfgs", "wolfe")
        self.dtype = pick([F64, F64, F64, F64, torch.float32, torch.bfloat16])
        if self.searches or self.base == "rprop":
            self.dtype = F64  # a rounding error may change the outcome of a search, or a sign
        self.schedule = pick(list(SCHEDULES))
        self.automatic = not self.searches and rng.random() < 0.3
        # A search makes rounding errors some ten times larger with every step.
        self.seed, self.steps = rng.randrange(2**31), rng.randrange(3, 9 if self.searches else 40)
        self.parts = 1 if self.searches else pick([1, 1, 2, 3])
        self.window = self.parts > 1 and pick([True, False])
        self.every = rng.randrange(1, 8)
        self.two_groups = not self.searches and pick([True, False])
        self.clipped = not self.searches and rng.random() < 0.2
        self.closure = self.searches or (not self.clipped and rng.random() < 0.2)
        self.scaled = not self.closure and self.dtype is F64 and rng.random() < 0.15
        self.projected = not self.searches and rng.random() < 0.2
        self.saved = {s for s in range(1, self.steps) if rng.random() < 0.04}
        self.spoiled = {s for s in range(self.steps) if rng.random() < 0.04}
        self.settings = self._settings(rng)
        if self.settings.get("on_nonfinite") != "skip" or self.parts > 1 or self.scaled:
            self.spoiled = set()
        self.blocks = self._blocks(rng)
        if isinstance(self.settings.get("beta_1"), str):
            names = [b.name for b in self.blocks]
            self.settings["beta_1"] = {n: pick([0.3, 1.0, 4.0]) for n in names}
        self.strict = {b.name for b in self.blocks if b.kind != "static" and rng.random() < 0.3}
        batch = [b for b in self.blocks if b.kind != "static"]
        self.samples = pick([1.0, 1.0, 2.5]) if batch and not self.window else 1.0

    def _settings(self, rng: random.Random) -> dict[str, Any]:
        pick = rng.choice
        found: dict[str, Any] = {"nu": pick([0.3, 0.5, 0.8, 0.8, 1.0])}
        if self.automatic:
            found["total_steps"] = pick([self.steps, 40, 100])
        else:
            found["beta_1"] = pick([0.1, 1.0, 1.0, 10.0, "by name"])
            found["updates"] = pick(["epoch", rng.randrange(1, 6)])
        if rng.random() < 0.5:
            found["coupling"] = pick(["all", "block"])
        if rng.random() < 0.5 and not self.automatic:
            found["omega"] = pick([1.0, 1.05, 1.5])
            found["beta_max"] = pick([20.0, 100.0])
        if rng.random() < 0.4 and not self.automatic:
            found["sigma"] = pick(["penalty", "paper", "sqrt", "pi"])
            found["sigma_1"] = pick([0.1, 1.0, 10.0])
        if rng.random() < 0.2:
            found["y_max"] = pick([0.05, 1.0])
        if rng.random() < 0.2 and not self.automatic:
            found["sufficient_decrease"] = pick([0.5, 0.9])
        if rng.random() < 0.2:
            found["warm_up"] = rng.randrange(1, 6)
        if rng.random() < 0.3:
            found["on_nonfinite"] = "skip"
        if rng.random() < 0.2:
            found["margin"] = pick([0.03, 0.2])
        if rng.random() < 0.2 and not self.searches:
            found["check_finite"] = "at_update"
        return found

    def _blocks(self, rng: random.Random) -> list[HandBlock]:
        kinds = ["rows", "total", "bias", "value", "counts", "rate", "grid"]
        chosen = rng.sample(kinds, rng.randrange(1, 5))
        found = []
        for name in kinds:  # those of the parameters first, as in the vector
            if name in chosen:
                size = {"rows": 4, "bias": 2, "counts": 3}.get(name, 1)
                kind = {"value": "value", "counts": "counts", "rate": "statistics"}.get(name, "")
                latest = name == "grid"
                kind = kind or ("value" if latest else "static")
                scale = rng.choice([None, None, 0.5, 3.0])
                inequality = rng.random() < 0.6
                found.append(HandBlock(name, inequality, size, kind, latest, scale))
        return found

    def __str__(self) -> str:
        blocks = [f"{b.name} {'≤' if b.inequality else '='} {b.scale}" for b in self.blocks]
        names = "dtype schedule automatic steps parts window every two_groups clipped closure"
        names += " scaled projected saved spoiled strict samples settings"
        told = ", ".join(f"{n} {getattr(self, n)}" for n in names.split() if getattr(self, n))
        return f"{self.base}, {blocks}, {told}"


class Run:
    """One of the two: a model, its base and its data.

    Args:
        case: the training.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(case.seed)
        self.data = torch.randn(12, 6, 3, generator=generator, dtype=F64).to(case.dtype)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(case.dtype)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=F64))
        self.params = list(self.model.parameters())
        groups: Any = self.params
        if case.two_groups:
            groups = [{"params": self.params[:1]}, {"params": self.params[1:], "lr": 0.003}]
        self.base = BASES[case.base](groups)

    def static(self, name: str) -> Tensor:
        """Return the value of a block of the parameters."""
        first, last = self.model[0], self.model[2]
        if name == "rows":
            return first.weight.square().sum(1) - 1
        if name == "total":
            return last.weight.abs().sum().reshape(1) - 1.5
        return last.bias - 0.1

    def batch(self, step: int, part: int) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
        """Return the loss of a micro-batch, the values of its blocks, and the true ones."""
        case = self.case
        x = self.data[(step * case.parts + part) % len(self.data)]
        rows = 4 + (step + part) % 3
        out = self.model(x[:rows])
        loss = (out - x[:rows, :2].sin()).square().mean()
        if step in case.spoiled:
            loss = loss * math.nan
        label = torch.arange(rows) % (2 + (step + part) % 2)  # sometimes without the last class
        one_hot = nn.functional.one_hot(label, 3).to(out.dtype)
        count = one_hot.sum(0)
        each = out.square().sum(1)
        values: dict[str, Any] = {
            "value": out[:, 0].tanh().mean().reshape(1) - 0.1,
            "counts": (each @ one_hot / count.clamp(min=1) - 0.3, count),
            "rate": torch.stack([out[:, 1].sigmoid().sum(), out.new_tensor(float(rows))]),
            "grid": self.model(self.data[0, :2]).square().mean().reshape(1) - 0.05,
        }
        hard = (out.detach() > 0).to(out.dtype)
        true: dict[str, Any] = {
            "value": hard[:, 0].mean().reshape(1) - 0.3,
            "counts": (hard[:, 1] @ one_hot / count.clamp(min=1) - 0.2, count),
            "rate": torch.stack([hard[:, 1].sum(), out.new_tensor(float(rows))]),
            "grid": hard[:, 0].mean().reshape(1) - 0.1,
        }
        names = [b.name for b in case.blocks if b.kind != "static"]
        return (
            loss,
            {name: values[name] for name in names},
            {name: true[name] for name in names if name in case.strict},
        )


class Ours(Run):
    """A training by the optimizer."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        constraints = ConstraintRegistry()
        for block in case.blocks:
            register = constraints.inequality if block.inequality else constraints.equality
            if block.kind == "static":
                register(block.name, lambda name=block.name: self.static(name), scale=block.scale)
            else:
                rate = block.kind == "statistics"
                register(
                    block.name,
                    size=block.size,
                    from_statistics=(lambda s: s[:1] / s[1:2] - 0.2) if rate else None,
                    latest=block.latest,
                    scale=block.scale,
                )
        terms = {self.params[3]: prox.Box(-0.2, 0.2)} if case.projected else None
        self.optimizer = PowerALMOptimizer(self.base, constraints, prox=terms, **case.settings)
        self.schedule = SCHEDULES[case.schedule](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=case.scaled)
        self.parts_of_updates: list[Any] = []
        self.updates: list[tuple[float, float, float]] = []
        self._listen()

    def _listen(self) -> None:
        """Record what an update measures, and what it returns."""
        units, optimizer = self.optimizer.units, self.optimizer
        part, update = units.part, optimizer.update_multipliers

        def recorded_part(*args: Any) -> Any:
            self.parts_of_updates.append(part(*args))
            return self.parts_of_updates[-1]

        def recorded_update(*args: Any, **exact: Any) -> Any:
            k = optimizer.dual.k
            record = update(*args, **exact)
            if optimizer.dual.k > k:
                self.updates.append((record.primal_residual, record.sigma, optimizer.dual.beta))
            return record

        units.part = recorded_part
        optimizer.update_multipliers = recorded_update

    def backward(self, step: int) -> Any:
        """Compute the gradients of a step; return the last loss."""
        case, optimizer, loss = self.case, self.optimizer, None
        optimizer.zero_grad(set_to_none=step % 3 > 0)
        every = [self.batch(step, part) for part in range(case.parts)]
        window = [values for _, values, _ in every] if case.window else None
        for loss, values, strict in every:
            if values:
                told = optimizer.augment(
                    loss, strict=strict or None, samples=case.samples, window=window, **values
                )
                if not (told == loss or (told.isnan() and loss.isnan())):
                    raise FindingError("augment changed the value of the loss")
                loss = told
            self.scaler.scale(loss / case.parts).backward(retain_graph=case.window)
        return loss

    def step(self, step: int) -> None:
        """Take a step, and update the multipliers if it is time."""
        case, optimizer = self.case, self.optimizer
        if case.closure:
            optimizer.step(lambda: self.backward(step))
        else:
            self.backward(step)
            self.scaler.unscale_(optimizer)
            if case.clipped:
                optimizer.backward_constraints()
                nn.utils.clip_grad_norm_(self.params, 0.5)
            self.scaler.step(optimizer)
            self.scaler.update()
        self.schedule.step()
        if optimizer.schedule.updates == "epoch" and step % case.every == case.every - 1:
            optimizer.update_multipliers()


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
        if not bool(self.batch(step, 0)[0].isfinite()):
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


def attack_by_hand(rng: random.Random) -> str:
    """Run a random training twice, and compare after every step."""
    case = Case(rng)
    ours, hand = Ours(case), ByHand(case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            end = _compare(case, ours, hand)
    except FindingError as error:
        raise FindingError(f"{error}; {case}") from error
    except Exception as error:
        raise FindingError(f"{type(error).__name__} {error}; {case}") from error
    kind = "measured" if case.automatic else "given"
    return f"{str(case.dtype).removeprefix('torch.')}, {kind} units{end}"


def _compare(case: Case, ours: Ours, hand: ByHand) -> str:
    for step in range(case.steps):
        if step in case.saved:
            ours = _resumed(case, ours)
        optimizer, seen = ours.optimizer, len(ours.updates)
        longest = optimizer.units.longest
        hand.measured = not optimizer.units.measuring
        started = optimizer.dual.started
        ours.step(step)
        if any(bool((p.abs() > 1e3).any()) for p in ours.params):
            return ", diverging"  # and with it every rounding error
        if case.automatic and optimizer.dual.started and not started:  # in this step
            hand.dual.far, hand.dual.beta = optimizer.dual.far, optimizer.dual.beta_1
            if optimizer.dual.scale is not None:
                hand.dual.scale = optimizer.dual.scale.to(F64)
        hand.step(step, ours, longest)
        for record in ours.updates[seen:]:
            if case.automatic and optimizer.dual.scale is not None:
                hand.dual.scale = optimizer.dual.scale.to(F64)
            part = ours.parts_of_updates.pop() if ours.parts_of_updates else None
            told = hand.update(part, record[2] if case.automatic else None)
            pair = (torch.tensor(t, dtype=F64) for t in (record[:2], told))
            _same(case, f"record at step {step}", *pair)
        for p, q in zip(ours.params, hand.params, strict=True):
            _same(case, f"parameters at step {step}", p.detach(), q.detach())
        if optimizer.dual.started:
            _same(case, f"multipliers at step {step}", optimizer.dual.y, hand.dual.y)
            if not case.automatic:
                betas = ([optimizer.dual.beta], [hand.dual.beta])
                _same(case, f"penalty at step {step}", *(torch.tensor(b, dtype=F64) for b in betas))
    return ""


def _same(case: Case, what: str, a: Tensor, b: Tensor) -> None:
    a, b = a.to(F64), b.to(F64)
    error = float((a - b).abs().max()) if a.numel() else 0.0
    if not error <= TOLERANCE[case.dtype] * (1 + float(b.abs().max() if b.numel() else 0.0)):
        raise FindingError(f"{what} differ by {error:.2g}")


def _resumed(case: Case, old: Ours) -> Ours:
    """Return the training, continued from what it has saved in a file."""
    new, file = Ours(case), io.BytesIO()
    states = {"model": old.model, "optimizer": old.optimizer, "schedule": old.schedule}
    states["scaler"] = old.scaler
    torch.save({name: part.state_dict() for name, part in states.items()}, file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    for name in states:
        getattr(new, name).load_state_dict(copy.copy(state[name]))
    new.updates = list(old.updates)
    return new
