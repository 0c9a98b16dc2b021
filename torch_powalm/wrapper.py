"""OptimizerWrapper: what torch and its engines expect of an optimizer that wraps another.

Schedulers, GradScaler, accelerate, Fabric and Lightning touch `param_groups`, `state`, `defaults`,
hooks, `step`, pickling and state dicts. All of it is answered here, so that the mathematics is
not interrupted by protocol: groups, state and defaults are views of the base's own (they stay the
same objects after a load), and the base class's constructor is never run.
"""

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_HOOKED_STEP = Optimizer.profile_hook_step(lambda self: None).__code__


class OptimizerWrapper(Optimizer):
    """A torch optimizer that shares everything with `base`.

    Args:
        base: any torch optimizer that is not wrapped yet.
    """

    # A fused base would take over unscaling from GradScaler, which then skips its check of the
    # gradients while the wrapper adds to them: parameters turn into nan.
    _step_supports_amp_scaling = False

    def __init__(self, base: Optimizer) -> None:
        if isinstance(base, OptimizerWrapper):
            raise TypeError(f"base must not be wrapped already, got {type(base).__name__}")
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch.optim.Optimizer, got {type(base).__name__}")
        if any(group.get("maximize") for group in base.param_groups):
            raise ValueError("base must minimise (it would climb the penalty), got maximize=True")
        self.base = base
        self._start_protocol()

    def _start_protocol(self) -> None:
        for hooks in _HOOKS:
            setattr(self, hooks, OrderedDict())
        self._patch_step_function()

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

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Make a step; see the class for what it does."""
        if _is_watched(self):
            return Optimizer.profile_hook_step(type(self)._step)(self, closure, **kwargs)
        return self._step(closure, **kwargs)

    # Torch would give every step a profiler range; here only a step that somebody watches has one.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base."""
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients as the base does."""
        base = self.base
        plain = type(base).zero_grad is Optimizer.zero_grad and "zero_grad" not in base.__dict__
        if plain and set_to_none and not torch._C._autograd._profiler_enabled():
            for p in self.params:
                p.grad = None
        else:
            base.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The base's state and what the wrapper adds, after the wrapper's own hooks."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state_dict = {**self.base.state_dict(), **self._extra_state()}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            state_dict = post_hook(self, state_dict) or state_dict
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave; nothing changes when the wrapper's part does not fit."""
        state_dict = copy.copy(state_dict)  # hooks may edit it
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = pre_hook(self, state_dict) or state_dict
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            keys = list(state_dict) if isinstance(state_dict, dict) else type(state_dict).__name__
            raise ValueError(
                f"state_dict must have the keys 'state' and 'param_groups', got {keys!r}"
            )
        commit = self._prepare_load(state_dict)
        self.base.load_state_dict({k: state_dict[k] for k in ("state", "param_groups")})
        commit()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def _extra_state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _prepare_load(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check the wrapper's part of a state dict; the returned function takes it over."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        # Public names only: the base's private contracts (amp scaling) must not show through.
        if name.startswith("_") or "base" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    def __getstate__(self) -> dict[str, Any]:
        # Hooks and a `step` that a scheduler has patched belong to this object, not to its copies.
        return {k: v for k, v in self.__dict__.items() if k not in (*_HOOKS, "step")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_protocol()


def base_step(base: Optimizer, **kwargs: Any) -> Any:
    """A base's step, without its hooks and profiler range when there is nothing to see."""
    step = type(base).step
    wrapped_by_torch = getattr(step, "__code__", None) is _HOOKED_STEP
    if "step" in base.__dict__ or not wrapped_by_torch or _is_watched(base):
        return base.step(**kwargs)
    return step.__wrapped__(base, **kwargs)  # type: ignore[attr-defined]


def _is_watched(optimizer: Optimizer) -> bool:
    """Whether a hook or the profiler waits for the optimizer's step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or torch._C._autograd._profiler_enabled()
    )


def is_stepped_by_lightning() -> bool:
    """Whether a Lightning trainer makes the step that is being made, and not the user's code.

    A trainer gives no sign of itself (with a GradScaler not even a closure), except that it calls.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(("torch.", "torch_powalm.")):  # hooks, schedulers, GradScaler
            return name.startswith(("lightning.pytorch.", "pytorch_lightning."))
        frame = frame.f_back
    return False
