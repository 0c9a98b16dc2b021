"""Hooks in which ranks meet that differ in their calls of `augment` or `update_multipliers`.

DDP waits in the backward pass for all ranks. One that has left out `augment` would wait there for
ranks that wait for it in `augment`; so a hook on one parameter lets the ranks meet before.

FSDP2 waits in the forward pass, too, and runs hooks of its shards only after it has waited. There,
hooks of the outermost sharded module run before its own.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torch_powalm.training.distributed.sharded_tensors import is_sharded

if TYPE_CHECKING:
    from torch_powalm.training.augmented_gradient import AugmentedGradient


def watch_backward(gradient: "AugmentedGradient") -> None:
    """Make the passes of a run of several ranks meet those of the other ranks."""
    watched = [p for p in gradient.blocks.params if p.requires_grad and p.is_leaf]
    if gradient.ranks.size == 1 or not watched:
        return
    meeting = _Meeting(gradient)
    if is_sharded(watched[0]):
        _Sharded(meeting, watched[0]).look_for_module()
    else:
        hook = lambda p: meeting.in_backward()  # noqa: E731
        watched[0].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


class _Meeting:
    """Where the ranks of one optimizer meet in passes of the model.

    Args:
        gradient: of the optimizer; it may be gone when a hook runs.
    """

    def __init__(self, gradient: "AugmentedGradient") -> None:
        self.owner = weakref.ref(gradient)

    def in_backward(self) -> None:
        """Meet the other ranks in a backward pass."""
        found = self.owner()
        if found is not None:
            augmented, blocks = found.window.meets_backward(), found.blocks.ready()
            augmented |= found.indexed.meets_backward()
            found.meet_ranks()
            of_batch = bool(blocks.batch or blocks.indexed)
            found.ranks.agreement.in_backward(blocks.device, augmented if of_batch else None)

    def in_forward(self) -> None:
        """Meet the other ranks in a forward pass, once they have compared their signatures."""
        found = self.owner()
        if found is not None:
            found.ranks.agreement.in_forward(found.blocks.device)


class _Sharded:
    """Hooks of the outermost sharded module that has a parameter.

    Args:
        meeting: what the hooks call.
        watched: the parameter.
    """

    def __init__(self, meeting: _Meeting, watched: Tensor) -> None:
        self.meeting, self.watched = meeting, weakref.ref(watched)
        self.search: RemovableHandle | None = None

    def look_for_module(self) -> None:
        """Wait for the first forward pass, which begins with the outermost module."""
        self.search = register_module_forward_pre_hook(self._look)

    def _look(self, module: nn.Module, args: Any) -> None:
        watched, meeting = self.watched(), self.meeting
        gone = watched is None or meeting.owner() is None
        fits = not gone and _is_outermost(module, watched)
        if (gone or fits) and self.search is not None:
            self.search.remove()
            self.search = None
        if fits:  # before the hooks of FSDP2, which wait for the other ranks
            module.register_forward_pre_hook(self._before_forward, prepend=True)
            module.register_forward_hook(self._after_forward, prepend=True)

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.meeting.in_forward()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        tensors = [t for t in _leaves(output) if t.requires_grad]
        if tensors:
            hook = lambda grad: self.meeting.in_backward()  # noqa: E731
            torch.autograd.graph.register_multi_grad_hook(tensors, hook, mode="any")


def _leaves(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a module returns."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _leaves(list(output.values()))
    elif isinstance(output, list | tuple):
        for item in output:
            yield from _leaves(item)


def _is_outermost(module: nn.Module, p: Tensor | None) -> bool:
    """Whether a module is sharded and has a parameter."""
    names = [kind.__name__ for kind in type(module).__mro__]
    return "FSDPModule" in names and any(q is p for q in module.parameters())
