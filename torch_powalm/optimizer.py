"""PowerALMOptimizer: a torch optimizer that also meets constraints.

One training step, top to bottom:

    augment(loss, …)      batch blocks: loss + ⟨w, A_batch⟩ with w = y + β∇φ(A)
    backward              the user's
    step()                parameter-only blocks: p.grad += J_Aᵀ w; the base's step; prox
    update_multipliers()  at the epoch's end: y += σ∇φ(A), β ← ωβ
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm import batch, checkpoint, sharding
from torch_powalm.blocks import BatchValue, check_samples
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.dual import DualState
from torch_powalm.functional import norm, total_norm
from torch_powalm.injection import add_to_grad, check_reach, not_finite, vjp
from torch_powalm.prox import Proximable
from torch_powalm.ranks import Ranks
from torch_powalm.result import DualRecord, TrainingResiduals
from torch_powalm.vector import BlockVector
from torch_powalm.wrapper import OptimizerWrapper, is_stepped_by_lightning

_MEMORY = 0.9  # of the running norm of the augmented gradient
_COUNTERS = ("steps", "skipped", "gradient_norm")  # saved beside the dual state


class PowerALMOptimizer(OptimizerWrapper):
    """Wraps a torch optimizer so that training solves min loss(x) s.t. A(x) = 0, B(x) ≤ 0.

    Args:
        base: the optimizer that makes the steps.
        constraints: the blocks A and B.
        nu: exponent of the penalty, in (0, 1]; 1 is the classical method, smaller is sharper.
        beta_1: first penalty β, > 0.
        omega: growth of β at every multiplier update, ≥ 1.
        sigma: dual step, "penalty" (σ = β) or "paper" (starts at sigma_1 and keeps y bounded).
        sigma_1: first dual step of the rule "paper", ≥ 0.
        beta_max: largest β.
        y_max: largest absolute multiplier.
        sufficient_decrease: in (0, 1): β grows only if the residual has not fallen by this factor.
        coupling: "all" (one norm over all blocks, as in the paper) or "block" (one each).
        prox: convex terms by parameter; their prox follows every step, with the group's lr as step.
        owns: names of the blocks this optimizer is for; None for all.
        on_nonfinite: "raise", or "skip" the step or update (counted in `skipped`) when a
            constraint or a gradient is not finite.
        process_group: the processes whose gradients DDP or FSDP2 averages; None for the default
            group when torch.distributed is initialised. A group of this process alone trains a
            model of its own.

    Example:
        optimizer = PowerALMOptimizer(torch.optim.Adam(model.parameters()), constraints, nu=0.8)
    """

    def __init__(
        self,
        base: Optimizer,
        constraints: ConstraintRegistry,
        *,
        nu: float = 0.8,
        beta_1: float = 0.1,
        omega: float = 1.0,
        sigma: str = "penalty",
        sigma_1: float = 10.0,
        beta_max: float = math.inf,
        y_max: float = math.inf,
        sufficient_decrease: float | None = None,
        coupling: str = "all",
        prox: Mapping[Tensor, Proximable] | None = None,
        owns: Sequence[str] | None = None,
        on_nonfinite: str = "raise",
        process_group: Any = None,
    ) -> None:
        super().__init__(base)
        if not isinstance(constraints, ConstraintRegistry):
            raise TypeError(
                f"constraints must be a ConstraintRegistry, got {type(constraints).__name__}"
            )
        if coupling not in ("all", "block"):
            raise ValueError(f"coupling must be 'all' or 'block', got {coupling!r}")
        if on_nonfinite not in ("raise", "skip"):
            raise ValueError(f"on_nonfinite must be 'raise' or 'skip', got {on_nonfinite!r}")
        if isinstance(owns, str):
            raise TypeError(f"owns must be a sequence of names, got {owns!r}")
        known = {id(p) for p in self.params}
        for p in prox or ():
            if id(p) not in known:
                raise ValueError(f"prox must have parameters of base as keys, got {p!r}")
        self.constraints = constraints
        self.coupling, self.on_nonfinite = coupling, on_nonfinite
        self.owns = None if owns is None else list(owns)
        self.dual = DualState(
            nu=nu,
            beta_1=beta_1,
            omega=omega,
            sigma=sigma,
            sigma_1=sigma_1,
            beta_max=beta_max,
            y_max=y_max,
            sufficient_decrease=sufficient_decrease,
        )
        if prox and any("lr" not in group for group in self.param_groups):
            raise ValueError("prox must come with a base that has a learning rate, got none")
        self._prox = list((prox or {}).items())
        self._books = _Books()
        self._vector: BlockVector | None = None
        self._claim = object()
        self._window = batch.Window()
        self._ranks = Ranks(process_group)

    @property
    def steps(self) -> int:
        """Steps since the last multiplier update."""
        return self._books.steps

    @property
    def skipped(self) -> int:
        """Steps and updates left out because something was not finite."""
        return self._books.skipped

    @property
    def gradient_norm(self) -> float:
        """Running norm of the augmented gradient since the last update."""
        return self._books.gradient_norm

    @property
    def process_group(self) -> Any:
        """The processes whose gradients are averaged; None for the default group."""
        return self._ranks.group

    def augment(
        self,
        loss: Tensor,
        /,
        *,
        strict: Mapping[str, BatchValue] | None = None,
        samples: float = 1.0,
        window: Sequence[Mapping[str, BatchValue]] | None = None,
        **values: BatchValue,
    ) -> Tensor:
        """Give a loss the gradient of its batch blocks; its value stays the user's.

        Args:
            loss: scalar, of this batch.
            strict: true values of blocks whose `values` are differentiable proxies: multipliers
                and reports use them, gradients do not.
            samples: weight of this batch in the epoch's averages.
            window: the values of all micro-batches of this step, which makes gradient accumulation
                exact; divide the result by their number, as a plain loss.
            **values: for every batch block a tensor, (tensor, count) or additive statistics.
        """
        vector = self._ready()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss must be a scalar tensor, got {got}")
        check_samples(samples)
        proxy = batch.tallies(vector.batch, values, samples, "augment")
        reported = proxy
        if strict:
            if strict.keys() - values.keys():
                raise KeyError(f"strict has no batch constraint {min(strict.keys() - values)!r}")
            reported = batch.tallies(vector.batch, {**values, **strict}, samples, "strict")
        whole, parts = proxy, 1
        if window is not None:
            if samples != 1.0:
                raise ValueError(
                    f"samples must be 1 with window (use (value, count)), got {samples!r}"
                )
            if not window:
                raise ValueError("window must have at least one micro-batch, got none")
            others = [batch.tallies(vector.batch, part, samples, "window") for part in window]
            whole, parts = batch.total(others), len(others)

        with_graph = [t.total.requires_grad for t in proxy.values()]
        if not torch.is_grad_enabled() or not (loss.requires_grad or any(with_graph)):
            return loss  # validation: nothing is remembered
        if not all(with_graph):
            name = list(proxy)[with_graph.index(False)]
            raise ValueError(f"constraint {name!r} must have a gradient, got a constant")
        # Without gradients they have been cleared by model.zero_grad(), or FSDP2 still keeps them
        # to itself (set_requires_gradient_sync(False), for accumulation).
        if (
            self._window.has_done
            and not vector.sharded
            and all(p.grad is None for p in self.params)
        ):
            self._forget_gradients()
        seen = proxy
        if self._ranks.size > 1:
            seen, reported, whole = self._ranks.sums(proxy, reported, whole, device=vector.device)
            parts *= self._ranks.size  # the mean over ranks of the gradients undoes it
        A_batch = vector.batch_values(proxy if whole is proxy else batch.completed(proxy, whole))
        static = None
        if vector.static:
            with torch.no_grad():
                static = vector.evaluate()
        w = self._weight(vector.join(static, A_batch))
        if reported is not seen:
            true = vector.join(static, vector.batch_values(reported))
            w = w if self._finite(true) else None
        if w is None:  # on_nonfinite="skip": the step will see a gradient of nan
            w = torch.full((sum(vector.lengths),), math.nan, device=vector.device)
        w = w[vector.static_size :] if vector.static else w
        if parts > 1:
            w = w * parts
        call = self._window.add(seen, reported)
        augmented: Tensor = batch.Augment.apply(loss, A_batch, w, call)
        return augmented

    @torch.no_grad()
    def backward_constraints(self) -> None:
        """Add the parameter-only blocks' gradient to .grad now, so that the total can be clipped.

        Call it after backward (and `scaler.unscale_`); the next step() does not add it again.
        """
        if not any(p.grad is self._books.injected for p in self.params if p.grad is not None):
            self._books.injected = None  # the gradients have been cleared by model.zero_grad()
        self._inject(self._ready(), self.params)

    def _step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Add the parameter-only blocks' gradient, let the base step, apply the prox terms.

        A closure calls backward on the (augmented) loss and returns it: the base then sees the
        value of L_β, and the closure's own first value is returned.
        """
        if self._books.watched is None:
            self._look_for_callback()
        if closure is not None:
            return self._step_with_closure(closure, **kwargs)
        if not self.base.state and self._initialises_state():
            return self.base.step(**kwargs)
        return self._step_with_gradients(**kwargs)

    def _step_with_gradients(self, **kwargs: Any) -> Any:
        vector, params = self._ready(), self.params
        epoch = self._epoch_with_window(vector)
        if not self._inject(vector, params) or not self._is_finite(vector, params):
            return self._skip()
        result = self._base_step(**kwargs)
        self._finish_step(epoch)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them the batches they came from."""
        super().zero_grad(set_to_none)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        self._window.forget_done()
        self._books.injected = None

    @torch.no_grad()
    def update_multipliers(self, **exact: Tensor) -> DualRecord:
        """Move y and β by the values of now, and begin a new epoch.

        Parameter-only blocks are evaluated; batch blocks take what the epoch has gathered, or the
        exact values given here by name.
        """
        vector = self._ready()
        unknown = exact.keys() - {block.name for block in vector.batch}
        if unknown:
            raise KeyError(f"update_multipliers has no batch constraint {min(unknown)!r}")
        r = vector.join(
            vector.evaluate() if vector.static else None,
            self._epoch_values(vector, exact) if vector.batch else None,
        )
        violations = vector.violations(r)
        if self._finite(r):
            self._start(r)
            record = self.dual.update(r)
        else:
            record = DualRecord(self.dual.k, math.nan, self.dual.beta, 0.0, norm(self.dual.y))
            self._books.skipped += 1
        latest = vector.split(r)
        for block in vector.batch:
            self.constraints.latest[block.name] = latest[block.name].clone()
            self.constraints.epoch.pop(block.name, None)
        self._books.steps, self._books.gradient_norm = 0, math.inf
        return dataclasses.replace(record, violations=violations)

    def should_update(
        self,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int = 1,
        lam: float | None = None,
    ) -> bool:
        """Whether a multiplier update is due, by exactly one of three rules.

        Args:
            steps: every so many steps.
            epochs: every so many epochs of `steps_per_epoch` steps.
            steps_per_epoch: for `epochs`, usually len(loader).
            lam: when the running norm of the augmented gradient is at most lam/β (Algorithm 1).
        """
        if [steps, epochs, lam].count(None) != 2:
            raise ValueError(
                "should_update takes exactly one of steps, epochs and lam, "
                f"got {steps!r}, {epochs!r} and {lam!r}"
            )
        if lam is not None:
            if not lam > 0:
                raise ValueError(f"lam must be positive, got {lam!r}")
            return self.gradient_norm <= lam / self.dual.beta
        for name, every in (
            ("steps", steps),
            ("epochs", epochs),
            ("steps_per_epoch", steps_per_epoch),
        ):
            if every is not None and every < 1:
                raise ValueError(f"{name} must be at least 1, got {every!r}")
        return self.steps >= (steps if steps is not None else (epochs or 1) * steps_per_epoch)

    @torch.no_grad()
    def residuals(self) -> TrainingResiduals:
        """Norms of the augmented gradient and of the constraints, after a backward."""
        vector = self._ready()
        A_static, r = self._residual(vector)
        w = self._weight(r)
        if w is None:
            return TrainingResiduals(math.nan, math.nan)
        extra: list[Tensor | None] = [None] * len(self.params)
        if A_static is not None and self._books.injected is None:
            extra = vjp(A_static, self.params, w[: vector.static_size])
        terms = {id(p): g for p, g in self._prox}
        parts = []
        for p, more in zip(self.params, extra, strict=True):
            grad = sharding.full(p.grad) if p.grad is not None else torch.zeros_like(p)
            if more is not None:
                grad = sharding.full(more) + grad
            whole = sharding.full(p)
            distance = terms[id(p)].distance(whole, grad) if id(p) in terms else total_norm([grad])
            parts.append(distance)
        primal = [v.norm for v in vector.violations(r).values()]
        return TrainingResiduals(math.hypot(*parts), math.hypot(*primal))

    @torch.no_grad()
    def check_ranks(self) -> None:
        """Raise when a parameter-only block is not the same on all ranks; all ranks must call it.

        Each rank adds these blocks' gradient by itself, so that ranks drift apart when a function
        draws random numbers or parameters differ. The first step calls this once.
        """
        if self._ranks.size == 1:
            return
        vector = self._ready()
        norms = {name: norm(value) for name, value in vector.static_values().items()}
        name = self._ranks.differing(norms, vector.device)
        if name is not None:
            raise RuntimeError(
                f"constraint {name!r} must be the same on every rank, got {norms[name]!r} as its "
                "norm here; use the same parameters and no random numbers on all ranks"
            )

    def __repr__(self) -> str:
        blocks = ", ".join(self.constraints.blocks if self.owns is None else self.owns)
        return (
            f"PowerALMOptimizer(nu={self.dual.nu}, beta={self.dual.beta:g}, owns {blocks} and "
            f"{len(self.params)} parameters)\n{self.base!r}"
        )

    def _ready(self) -> BlockVector:
        """The blocks as a vector, made at first use: the model is then where it is trained."""
        if self._vector is None:
            blocks = self.constraints.blocks
            names = list(blocks) if self.owns is None else self.owns
            for name in names:
                if name not in blocks:
                    raise KeyError(f"owns has no registered constraint {name!r}")
            if not names:
                raise ValueError("constraints must have at least one block, got none")
            _check_params(self.params)
            sharded = any(sharding.is_sharded(p) for p in self.params)
            vector = BlockVector([blocks[name] for name in names], self.params[0].device, sharded)
            self.constraints.claim(names, self._claim)
            self._vector = vector
        self.constraints.check_owner(self._vector.names, self._claim)
        return self._vector

    def _start(self, r: Tensor) -> None:
        if not self.dual.started:
            vector = self._ready()
            self.dual.start(r, vector.inequality, self._groups(vector))

    def _groups(self, vector: BlockVector) -> list[slice] | None:
        return vector.slices() if self.coupling == "block" else None

    def _weight(self, r: Tensor) -> Tensor | None:
        """The weight at r, or None under on_nonfinite="skip"."""
        if not self.dual.started:
            if not self._finite(r):
                return None
            self._start(r)
        w = self.dual.weight(r)
        if w is None:
            self._finite(r)
        return w

    def _finite(self, r: Tensor) -> bool:
        if math.isfinite(norm(r)):
            return True
        if self.on_nonfinite == "raise":
            raise FloatingPointError(
                f"constraint {self._ready().not_finite(r)!r} must be finite, got nan or inf"
            )
        return False

    def _residual(self, vector: BlockVector) -> tuple[Tensor | None, Tensor]:
        """A of the parameter-only blocks with a graph, and the whole (A, B) of this step."""
        A_batch = vector.batch_values(self._window.proxy(vector.batch)) if vector.batch else None
        A_static = None
        if vector.static:
            with torch.enable_grad():
                A_static = vector.evaluate()
        return A_static, vector.join(A_static, A_batch)

    def _inject(self, vector: BlockVector, params: Sequence[Tensor]) -> bool:
        """Add J_Aᵀ w of the parameter-only blocks to .grad, unless a constraint is not finite."""
        if not vector.static or self._books.injected is not None:
            return True
        if not self._books.checked:
            check_reach(vector, params)
            self.check_ranks()
            self._books.checked = True
        A_static, r = self._residual(vector)
        w = self._weight(r)
        if w is None or A_static is None:
            return False
        grads = vjp(A_static, params, w[: vector.static_size] if vector.batch else w)
        (sharding.add_to_shards if vector.sharded else add_to_grad)(params, grads)
        touched = (p.grad for p, grad in zip(params, grads, strict=True) if grad is not None)
        self._books.injected = next(touched, None)
        return True

    def _is_finite(self, vector: BlockVector, params: Sequence[Tensor]) -> bool:
        """Check the augmented gradient in .grad and follow its norm."""
        measure = sharding.total_norm if vector.sharded else total_norm
        now = measure([p.grad for p in params if p.grad is not None])
        if math.isfinite(now):
            past = self.gradient_norm if math.isfinite(self.gradient_norm) else now
            self._books.gradient_norm = _MEMORY * past + (1 - _MEMORY) * now
            return True
        if self.on_nonfinite == "raise":
            name = not_finite(vector, params)
            what = f"gradient of constraint {name!r}" if name else "gradient of the loss"
            raise FloatingPointError(f"{what} must be finite, got nan or inf")
        return False

    def _skip(self) -> None:
        self._books.skipped += 1
        self._window.clear()
        self._books.injected = None

    def _epoch_with_window(self, vector: BlockVector) -> batch.Tallies:
        """The epoch's sums after this step, of the true values where the user gave them."""
        if not vector.batch:
            return {}
        epoch = self.constraints.epoch
        return {
            name: epoch[name].plus(seen) if name in epoch else seen
            for name, seen in self._window.reported(vector.batch).items()
        }

    def _finish_step(self, epoch: batch.Tallies) -> None:
        """Prox terms, and the books."""
        if self._prox:
            with torch.no_grad():
                self._apply_prox()
        self.constraints.epoch.update(epoch)
        self._window.clear()
        self._books.injected = None
        self._books.steps += 1

    def _apply_prox(self) -> None:
        lr = {id(p): float(group["lr"]) for group in self.param_groups for p in group["params"]}
        for p, g in self._prox:
            p.copy_(sharding.as_shard(g.prox(sharding.full(p), lr[id(p)]), p))

    def _step_with_closure(self, closure: Callable[[], Any], **kwargs: Any) -> Any:
        if _searches(self.base):
            return self._search(closure, **kwargs)
        with torch.enable_grad():
            loss = closure()
        if loss is None and all(p.grad is None for p in self.params):
            return None  # a batch that Lightning's training_step has left out
        self._step_with_gradients(**kwargs)
        return loss

    def _search(self, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """A step of a base that may evaluate L_β at several points."""
        vector, params = self._ready(), self.params
        first: list[Any] = []  # the closure's first value, and the epoch's sums with its batch
        # A line search evaluates at trial points; a failure there must not leave them behind.
        backup = [p.detach().clone() for p in params]

        def augmented_closure() -> Any:
            with torch.enable_grad():
                loss = closure()
            if not self._inject(vector, params) or not self._is_finite(vector, params):
                raise _NotFiniteError
            if not first:
                first.extend((loss, self._epoch_with_window(vector)))
            self._books.injected = None
            return loss if loss is None else loss + self.dual.value(self._residual(vector)[1])

        try:
            self.base.step(augmented_closure, **kwargs)
        except (_NotFiniteError, FloatingPointError) as error:
            with torch.no_grad():
                for p, old in zip(params, backup, strict=True):
                    p.copy_(old)
            if first:  # the base was inside its search: what it has learned there goes
                self.base.state.clear()
            if isinstance(error, FloatingPointError):
                raise
            return self._skip()
        self._finish_step(first[1] if first else {})
        return first[0] if first else None

    def _initialises_state(self) -> bool:
        """Whether this is the empty step by which torch's distributed checkpoints make state."""
        grads = [p.grad for p in self.params if p.requires_grad]
        return (
            all(float(group.get("lr", 0.0)) == 0 for group in self.param_groups)
            and all(grad is not None for grad in grads)
            and sharding.total_norm([grad for grad in grads if grad is not None]) == 0
        )

    def _epoch_values(self, vector: BlockVector, exact: Mapping[str, Tensor]) -> Tensor:
        values = []
        for block in vector.batch:
            if block.name in exact:
                values.append(block.flat(exact[block.name], block.size).detach())
            elif block.name in self.constraints.epoch:
                values.append(self.constraints.epoch[block.name].value(block))
            else:
                raise RuntimeError(
                    f"update_multipliers has seen no batch of {block.name!r} since the last update"
                )
        return torch.cat(values).to(vector.device)

    def watch(self) -> None:
        """Said by a callback that moves, saves and restores the multipliers."""
        self._books.watched = True

    def _look_for_callback(self) -> None:
        """Warn, at the first step, when a Lightning trainer makes it and no callback watches."""
        self._books.watched = is_stepped_by_lightning()
        if self._books.watched:
            warnings.warn(
                "the trainer has no PowerALMCallback: multipliers stay as they are unless the "
                "module calls update_multipliers(); add torch_powalm.lightning.PowerALMCallback()",
                stacklevel=4,
            )

    def powalm_state_dict(self) -> dict[str, Any]:
        """The part "powalm" of `state_dict`, for engines that drop it: multipliers and epoch."""
        state = checkpoint.save(self._ready(), self.dual, self.constraints)
        return {**state, **{name: getattr(self, name) for name in _COUNTERS}}

    def load_powalm_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `powalm_state_dict` gave, and leave the base as it is."""
        self._prepare_load({"powalm": state_dict})()

    def _extra_state(self) -> dict[str, Any]:
        return {"powalm": self.powalm_state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._books.checked = False  # a copy's functions may still reach the old model

    def _prepare_load(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        if "powalm" not in state_dict:
            if not self._books.watched:
                warnings.warn("state_dict has no multipliers, they stay as they are", stacklevel=3)
            return lambda: None
        vector, state = self._ready(), state_dict["powalm"]
        loaded = checkpoint.load(vector, self.dual, self._groups(vector), state)
        counters = {name: state[name] for name in _COUNTERS}

        def commit() -> None:
            self.dual.__dict__.update(loaded.dual.__dict__)
            for block in vector.batch:
                self.constraints.epoch.pop(block.name, None)
            self.constraints.epoch.update(loaded.epoch)
            self.constraints.latest.update(loaded.latest)
            self._books.__dict__.update(counters)
            self._window.clear()

        return commit


@dataclasses.dataclass
class _Books:
    """Counters in one object, since Fabric and Lightning work on a copy of the attributes."""

    steps: int = 0
    skipped: int = 0
    gradient_norm: float = math.inf
    injected: Tensor | None = None  # a .grad that holds the parameter-only blocks' part
    checked: bool = False  # every block has been seen to reach a parameter
    watched: bool | None = None  # a Lightning callback moves the multipliers, or none, as said


class _NotFiniteError(Exception):
    """Leaves the base's step when on_nonfinite="skip"."""


def _searches(base: Optimizer) -> bool:
    """Whether a step may call its closure more than once."""
    from_torch = type(base).__module__.startswith("torch.") and "step" not in base.__dict__
    return isinstance(base, torch.optim.LBFGS) or not from_torch


def _check_params(params: Sequence[Tensor]) -> None:
    devices = sorted({str(p.device) for p in params})
    if len(devices) > 1:
        raise ValueError(f"parameters must be on one device, got {', '.join(devices)}")
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        raise ValueError(
            "parameters must not be flattened by FullyShardedDataParallel (a constraint would see "
            "one rank's piece), got a flat parameter; use torch.distributed.fsdp.fully_shard"
        )
