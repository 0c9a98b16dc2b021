"""PowerALMOptimizer: a torch optimizer that also meets constraints.

One training step, top to bottom, and the file of each:

    augment(loss, …)      batch blocks: loss + ⟨w, A_batch⟩ with w = y + β∇φ(A)     gradient.py
    backward              the user's
    step()                parameter-only blocks: p.grad += J_Aᵀ w                   gradient.py
                          the base's step, by .grad or by a search; prox            step.py
    update_multipliers()  at the epoch's end, by its residual r                     epoch.py
                          y += σ∇φ(r), β ← ωβ; a record for the log                 lagrangian.py
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_powalm import checkpoint
from torch_powalm.blocks import BatchValue
from torch_powalm.constraints import ConstraintRegistry
from torch_powalm.dual import DualState
from torch_powalm.epoch import Epoch
from torch_powalm.gradient import AugmentedGradient
from torch_powalm.lagrangian import Lagrangian
from torch_powalm.prox import Proximable
from torch_powalm.ranks import Ranks
from torch_powalm.result import DualRecord, TrainingResiduals
from torch_powalm.step import InnerStep
from torch_powalm.wrapper import OptimizerWrapper


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
        self._lagrangian = Lagrangian(base, constraints, self.dual, coupling, owns, on_nonfinite)
        self.constraints, self.coupling, self.owns = constraints, coupling, self._lagrangian.owns
        self._epoch, self._ranks = Epoch(constraints), Ranks(process_group)
        self._gradient = AugmentedGradient(self._lagrangian, self._epoch, self._ranks)
        self._inner = InnerStep(self._gradient, prox or {})

    @property
    def on_nonfinite(self) -> str:
        """Whether to "raise" or to "skip" what is not finite."""
        return self._lagrangian.on_nonfinite

    @on_nonfinite.setter
    def on_nonfinite(self, value: str) -> None:
        self._lagrangian.on_nonfinite = value

    @property
    def steps(self) -> int:
        """Steps since the last multiplier update."""
        return self._epoch.steps

    @property
    def skipped(self) -> int:
        """Steps and updates left out because something was not finite."""
        return self._epoch.skipped

    @property
    def gradient_norm(self) -> float:
        """Running norm of the augmented gradient since the last update."""
        return self._epoch.gradient_norm

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
        return self._gradient.augment(loss, values, strict, samples, window)

    @torch.no_grad()
    def backward_constraints(self) -> None:
        """Add the parameter-only blocks' gradient to .grad now, so that the total can be clipped.

        Call it after backward (and `scaler.unscale_`); the next step() does not add it again.
        """
        self._gradient.inject_early()

    def _step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Add the parameter-only blocks' gradient, let the base step, apply the prox terms.

        A closure calls backward on the (augmented) loss and returns it: the base then sees the
        value of L_β, and the closure's own first value is returned.
        """
        if closure is not None:
            return self._inner.with_closure(closure, **kwargs)
        if not self.base.state and self._inner.initialises_state():
            return self.base.step(**kwargs)
        return self._inner.with_gradients(**kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them the batches they came from."""
        super().zero_grad(set_to_none)
        self._gradient.forget()

    @torch.no_grad()
    def update_multipliers(self, **exact: Tensor) -> DualRecord:
        """Move y and β by the values of now, and begin a new epoch.

        Parameter-only blocks are evaluated; batch blocks take what the epoch has gathered, or the
        exact values given here by name.
        """
        vector = self._lagrangian.ready()
        r = self._epoch.residual(vector, exact)
        record = self._lagrangian.update(r)
        self._epoch.begin(vector, r, skipped=math.isnan(record.primal_residual))
        return record

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
        return self._epoch.is_due(steps, epochs, steps_per_epoch, lam, self.dual.beta)

    @torch.no_grad()
    def residuals(self) -> TrainingResiduals:
        """Norms of the augmented gradient and of the constraints, after a backward."""
        return self._gradient.norms({id(p): g for p, g in self._inner.prox})

    def check_ranks(self) -> None:
        """Raise when a parameter-only block is not the same on all ranks; all ranks must call it.

        Each rank adds these blocks' gradient by itself, so that ranks drift apart when a function
        draws random numbers or parameters differ. The first step calls this once.
        """
        self._gradient.check_ranks()

    def __repr__(self) -> str:
        return (
            f"PowerALMOptimizer(nu={self.dual.nu}, beta={self.dual.beta:g}, owns "
            f"{', '.join(self._lagrangian.names)} and {len(self.params)} parameters)\n{self.base!r}"
        )

    def watch(self) -> None:
        """Said by a callback that moves, saves and restores the multipliers."""
        self._inner.watched = True

    def powalm_state_dict(self) -> dict[str, Any]:
        """The part "powalm" of `state_dict`, for engines that drop it: multipliers and epoch."""
        return checkpoint.save(self._lagrangian, self._epoch)

    def load_powalm_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `powalm_state_dict` gave, and leave the base as it is."""
        checkpoint.prepare_load(self._gradient, state_dict)()

    def _extra_state(self) -> dict[str, Any]:
        return {"powalm": self.powalm_state_dict()}

    def _prepare_load(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        if "powalm" in state_dict:
            return checkpoint.prepare_load(self._gradient, state_dict["powalm"])
        if not self._inner.watched:
            warnings.warn("state_dict has no multipliers, they stay as they are", stacklevel=3)
        return lambda: None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._gradient.checked = False  # a copy's functions may still reach the old model
