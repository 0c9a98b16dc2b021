"""A training on some ranks, the last of which does something differently."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer
from torch_powalm.prox import Box


class Odd:
    """What the last rank does differently; the others do nothing of it.

    Args:
        on: whether this is the last rank.
        kind: the disagreement.
    """

    def __init__(self, on: bool, kind: str) -> None:
        self.alone = kind.startswith(ALONE)  # on all ranks
        self.kind = kind.removeprefix(ALONE) if on else ""

    def __call__(self, kind: str) -> bool:
        """Whether this rank does it."""
        return self.kind == kind


SETTINGS: dict[str, dict[str, Any]] = {
    "another nu": {"nu": 0.5},
    "another rule": {"sigma": "paper"},
    "another coupling": {"coupling": "block"},
    "another beta_1": {"beta_1": 2.0},
    "a measured penalty": {"beta_1": None},
    "another omega": {"omega": 1.5},
    "a bound on y": {"y_max": 5.0},
    "a warm-up": {"warm_up": 3},
    "another rule for nan": {"on_nonfinite": "skip"},
    "a margin": {"margin": 0.1},
    "another length": {"total_steps": 50, "updates": 3},
    "updates in steps": {"updates": 2},
    "checks at updates": {"check_finite": "at_update"},
}
ALONE = "parameters only: "  # without blocks of the batch
KINDS = [
    *SETTINGS,
    "another order",
    "another kind",
    "another name",
    "another size",
    "another block of the parameters",
    "one block of the batch more",
    "one block of the batch less",
    "a scale",
    "counts",
    "another precision",
    "statistics of another size",
    "other parameters",
    "never calls augment",
    "leaves out one augment",
    "calls augment once more",
    "leaves out one update",
    "updates once more",
    "ends an epoch early",
    "leaves out one step",
    "another state",
    "other multipliers",
    "another learning rate",
    "another base",
    "a prox term",
    "resumes alone",
    "raises an error of its own",
    "loads an older state",
    "another base later",
    "another length later",
    "another learning rate later",
    "moves its parameters",
    "exact values",
    "two micro-batches",
    "a second backward",
    "clears its gradients",
    "strict values",
    "a window",
    *(ALONE + kind for kind in ("another nu", "leaves out one update", "updates once more")),
]

# Shards have no copies that could differ; a step of shards and reading their state are collectives
# of their own, which no rank may make alone.
UNSHARDED = (
    *("other parameters", "another state", "leaves out one step", "resumes alone"),
    *("loads an older state", "moves its parameters"),
)


def build(odd: Odd, net: nn.Module) -> PowerALMOptimizer:
    """Return the optimizer of a rank."""
    constraints = ConstraintRegistry()
    constraints.equality("rows", lambda: net.weight.square().sum(1) - 1)
    if odd("another block of the parameters"):
        constraints.inequality("total", lambda: net.weight.sum() - 9)
    kind = constraints.equality if odd("another kind") else constraints.inequality
    scale = 2.0 if odd("a scale") else None
    batch: list[Callable[[], Any]] = [
        lambda: kind("rate", size=2 if odd("another size") else 1, scale=scale),
        lambda: constraints.inequality(
            "other" if odd("another name") else "share",
            size=1,
            from_statistics=lambda s: s[:1] / s[1:2] - 0.1,
        ),
    ]
    if odd("one block of the batch less"):
        batch.pop()
    if odd.alone:
        batch.clear()
    for register in reversed(batch) if odd("another order") else batch:
        register()
    if odd("one block of the batch more"):
        constraints.inequality("more", size=1)
    settings = {"beta_1": 1.0, "nu": 0.8, **SETTINGS.get(odd.kind, {})}
    make = torch.optim.Adam if odd("another base") else torch.optim.SGD
    base = make(net.parameters(), lr=0.02 if odd("another learning rate") else 0.01)
    prox = {net.bias: Box(-1.0, 1.0)} if odd("a prox term") else None
    return PowerALMOptimizer(base, constraints, prox=prox, **settings)


def train(rank: int, kind: str, sharded: bool) -> None:
    """Train on one rank until something raises."""
    odd = Odd(rank == dist.get_world_size() - 1, kind)
    torch.manual_seed(0)
    net: Any = nn.Linear(8, 4, dtype=torch.float64)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net)
        model = net
    else:
        model = nn.parallel.DistributedDataParallel(net)
    if odd("other parameters") and not sharded:
        with torch.no_grad():
            net.weight.mul_(1.5)
    optimizer = build(odd, net)
    load(odd, kind, optimizer)
    for step in range(9):
        if odd("raises an error of its own") and step == 4:
            raise RuntimeError("the rank's own: all ranks must")
        pass_backward(odd, model, optimizer, step)
        if not (odd("leaves out one step") and step == 4):
            optimizer.step()
        missed = odd("leaves out one update") and step == 5
        early = odd("ends an epoch early") and step == 4
        if step == 4:
            optimizer = changed(odd, net, optimizer)
        if (step % 3 == 2 and not missed) or (odd("updates once more") and step == 3) or early:
            exact = {"rate": torch.ones(1, dtype=torch.float64)} if odd("exact values") else {}
            optimizer.update_multipliers(**exact)


def load(odd: Odd, kind: str, optimizer: PowerALMOptimizer) -> None:
    """Load the state with which a rank begins."""
    if odd("another state"):
        optimizer.load_powalm_state_dict({**optimizer.powalm_state_dict(), "total_steps": 7})
    if odd("resumes alone"):
        state = optimizer.powalm_state_dict()
        y = {"rows": torch.ones(4), "rate": torch.ones(1), "share": torch.ones(1)}
        optimizer.load_powalm_state_dict({**state, "y": y, "k": 3, "total_steps": 6})
    if kind == "other multipliers":
        state = optimizer.powalm_state_dict()
        y = {"rows": torch.ones(4), "rate": torch.ones(1), "share": torch.ones(1)}
        if odd("other multipliers"):
            y["rows"] = 2 * y["rows"]
        optimizer.load_powalm_state_dict({**state, "y": y})


def pass_backward(odd: Odd, model: nn.Module, optimizer: PowerALMOptimizer, step: int) -> None:
    """Run a batch forward and backward."""
    x = torch.randn(5, 8, dtype=torch.float64)
    optimizer.zero_grad()
    out = model(x)
    loss = out.square().mean()
    calls = 1
    if odd.alone or odd("never calls augment") or (odd("leaves out one augment") and step == 4):
        calls = 0
    calls += odd("calls augment once more") and step == 4
    given = values(odd, out)
    strict = {"rate": given["rate"].detach()} if odd("strict values") else None
    window = [given] if odd("a window") else None
    for _ in range(calls):
        loss = optimizer.augment(loss, strict=strict, window=window, **given)
    loss.backward(retain_graph=odd("a second backward"))
    if step == 4 and odd("a second backward"):
        loss.backward()
    if step == 4 and odd("two micro-batches"):
        out = model(x)
        optimizer.augment(out.square().mean(), **values(odd, out)).backward()
    if step == 4 and odd("clears its gradients"):
        optimizer.zero_grad()


def changed(odd: Odd, net: nn.Module, optimizer: PowerALMOptimizer) -> PowerALMOptimizer:
    """Return the optimizer after what one rank does to it in the middle of a training."""
    if odd("loads an older state"):
        optimizer.load_powalm_state_dict(build(odd, net).powalm_state_dict())
    if odd("another base later"):
        return optimizer.with_base(torch.optim.Adam(net.parameters(), lr=0.01))
    if odd("another length later"):
        optimizer.set_length(30)
    if odd("another learning rate later"):
        optimizer.param_groups[0]["lr"] = 0.02
    if odd("moves its parameters"):
        with torch.no_grad():
            net.weight.mul_(1.5)
    return optimizer


def values(odd: Odd, out: torch.Tensor) -> dict[str, Any]:
    """Return the batch blocks of a step."""
    rate: Any = out[:, :1].mean(0)
    if odd("another size"):
        rate = out[:, :2].mean(0)
    if odd("another precision"):
        rate = rate.float()
    if odd("counts"):
        rate = (rate, torch.ones(1))
    statistics = [out.sigmoid().sum(), out.new_tensor(20.0)]
    if odd("statistics of another size"):
        statistics.append(out.new_tensor(1.0))
    found = {"rate": rate, "other" if odd("another name") else "share": torch.stack(statistics)}
    if odd("one block of the batch less"):
        del found["share"]
    if odd("one block of the batch more"):
        found["more"] = out[:, 1:2].mean(0)
    return found
