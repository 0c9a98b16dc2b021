"""OptimizerProtocol: what torch and its engines expect of an optimizer that wraps another.

Schedulers, GradScaler, accelerate, Fabric and Lightning touch `param_groups`, `state`, `defaults`,
hooks, `step` and pickling. This file handles all of it, so optimizer.py contains only the method.
Groups, state and defaults are those of the base, also after a load, and the constructor of
torch.optim.Optimizer never runs.

All private names of torch that the package uses are in this file. What breaks without each:

    _HOOKS                         register_step_pre_hook and its five siblings raise AttributeError
    _global_optimizer_*_hooks      global hooks are not called on the fast path
    _profiler_enabled              a profile shows no ranges of step and zero_grad on the fast path
    _use_grad_for_differentiable   a compiled step breaks into graphs around the base's own
    __code__, __wrapped__          torch wraps every step in a profiler range: 2 to 9 % of a step
    _step_supports_amp_scaling     a step of a fused base is masked by a copy of all that it changes
    _fsdp_flattened                FSDP1 silently trains on wrong constraints
    _get_default_store             ranks that never come are not named
    sys._getframe                  no warning when a Lightning trainer lacks the callback
"""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)

from torch_powalm.training.distributed.sharded_tensors import is_sharded

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_SHARDED = (2, 7)  # the first torch whose fully_shard the tests run: 2.6 fails on the CPU
_BROKEN_STEP = _use_grad_for_differentiable(lambda self: None).__code__
_HOOKED_STEP = Optimizer.profile_hook_step(lambda self: None).__code__


class OptimizerProtocol(Optimizer):
    """A torch optimizer that shares its groups, state and defaults with `base`.

    Args:
        base: any torch optimizer that is not already wrapped.
    """

    def __init__(self, base: Optimizer) -> None:
        self.set_base(base)
        self._in_hooks = False  # the step is running inside its hooks
        # Whether a Lightning callback updates the multipliers; None before the first step.
        self._managed: bool | None = None
        self._start_protocol()

    def set_base(self, base: Optimizer) -> None:
        """Wrap another optimizer."""
        if isinstance(base, OptimizerProtocol):
            raise TypeError(f"base must not be wrapped already, got {type(base).__name__}")
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch.optim.Optimizer, got {type(base).__name__}")
        if any(group.get("maximize") for group in base.param_groups):
            raise ValueError("base must minimize (or it maximizes the penalty), got maximize=True")
        params = [p for group in base.param_groups for p in group["params"]]
        version = tuple(map(int, torch.__version__.split(".")[:2]))
        if version < _SHARDED and any(map(is_sharded, params)):
            needed, got = ".".join(map(str, _SHARDED)), torch.__version__
            rule = f"parameters sharded by fully_shard (FSDP2) need torch {needed} or newer"
            raise RuntimeError(f"{rule}, got torch {got}")
        self.base = base

    def _start_protocol(self) -> None:
        for hooks in _HOOKS:
            setattr(self, hooks, OrderedDict())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's parameter groups."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        """The base's state."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The base's defaults."""
        return self.base.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.base.defaults = defaults

    @property
    def params(self) -> list[Tensor]:
        """All parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def _step_in_hooks(self, closure: Callable[[], Any] | None, **kwargs: Any) -> Any:
        """Run `step` inside the hooks and the profiler range that torch gives every optimizer."""
        self._in_hooks = True
        try:
            return Optimizer.profile_hook_step(_step)(self, closure, **kwargs)
        finally:
            self._in_hooks = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base."""
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients as the base does, without a profiler range that nobody observes."""
        base = self.base
        plain = type(base).zero_grad is Optimizer.zero_grad and "zero_grad" not in base.__dict__
        if plain and set_to_none and not torch._C._autograd._profiler_enabled():
            for group in base.param_groups:
                for p in group["params"]:
                    p.grad = None
        else:
            base.zero_grad(set_to_none=set_to_none)

    def mark_managed(self) -> None:
        """Mark the optimizer as managed by a callback, which updates and saves the multipliers."""
        self._managed = True

    def _look_for_callback(self) -> None:
        """Warn if a Lightning trainer takes the first step and the optimizer is not managed."""
        self._managed = is_stepped_by_lightning()
        if self._managed:
            warnings.warn(
                "the trainer has no PowerALMCallback: multipliers do not change unless the "
                "module calls update_multipliers(); add torch_powalm.lightning.PowerALMCallback()",
                stacklevel=4,
            )

    def __getattr__(self, name: str) -> Any:
        # Public names only: `_step_supports_amp_scaling` of a fused base would make GradScaler skip
        # its check of the gradients, and what we add to them could turn parameters into nan.
        if name.startswith("_") or "base" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    def __getstate__(self) -> dict[str, Any]:
        # Hooks and a `step` patched by a scheduler belong to this object, not to its copies.
        return {k: v for k, v in self.__dict__.items() if k not in (*_HOOKS, "step")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_protocol()


def _step(optimizer: Optimizer, closure: Callable[[], Any] | None, **kwargs: Any) -> Any:
    return type(optimizer).step(optimizer, closure, **kwargs)


def step_base(base: Optimizer, **kwargs: Any) -> Any:
    """Step the base, without its hooks and profiler range if nobody observes them."""
    step: Any = type(base).step
    wrapped_by_torch = getattr(step, "__code__", None) is _HOOKED_STEP
    if "step" in base.__dict__ or not wrapped_by_torch or is_observed(base):
        return base.step(**kwargs)
    if torch.compiler.is_compiling():
        with torch.no_grad():
            return _traceable(step)(base, **kwargs)
    return step.__wrapped__(base, **kwargs)


def _traceable(step: Any) -> Any:
    """Return a step without the graph breaks that torch puts around it."""
    while getattr(step, "__code__", None) in (_HOOKED_STEP, _BROKEN_STEP):
        step = step.__wrapped__
    return step


def skips_on_device(base: Optimizer) -> bool:
    """Whether kernels of the base leave everything unchanged where `base.found_inf` is not 0."""
    return bool(getattr(base, "_step_supports_amp_scaling", False))


def is_observed(optimizer: Optimizer) -> bool:
    """Whether a hook or the profiler observes the optimizer's step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or (not torch.compiler.is_compiling() and torch._C._autograd._profiler_enabled())
    )


def check_params(params: Sequence[Tensor]) -> None:
    """Raise if parameters are on several devices or flattened by FSDP1."""
    devices = sorted({str(p.device) for p in params})
    if len(devices) > 1:
        raise ValueError(f"parameters must be on one device, got {', '.join(devices)}")
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        raise ValueError(
            "parameters must not be flattened by FullyShardedDataParallel (a constraint would see "
            "one rank's piece), got a flat parameter; use torch.distributed.fsdp.fully_shard"
        )


def default_store() -> Any:
    """Return the store through which ranks found each other."""
    return torch.distributed.distributed_c10d._get_default_store()


def is_stepped_by_lightning() -> bool:
    """Whether a Lightning trainer, and not the user's code, called the current step.

    Being the caller is the only sign of a trainer; with a GradScaler it passes not even a closure.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(("torch.", "torch_powalm.")):  # hooks, schedulers, GradScaler
            return name.startswith(("lightning.pytorch.", "pytorch_lightning."))
        frame = frame.f_back
    return False
