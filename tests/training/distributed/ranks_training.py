"""One training on the ranks of a process group, each with its part of the global batches."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import F64, Net, constrained
from torch_powalm import ConstraintRegistry, full

ALL = ("static", "mean", "counts", "statistics")


BATCHES, SAMPLES = 3, 12


def data(batch, rank=0, size=1, *, uneven=False):
    """This rank's part of a global batch; class 2 is absent from some parts."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(SAMPLES, 4, generator=generator, dtype=F64)
    target = torch.tensor([0, 1, 2, 0, 2, 1, 0, 1, 0, 1, 1, 0])
    if size == 1:
        return x, target
    parts = [8, 4] if uneven else [SAMPLES // size] * size
    return x.split(parts)[rank], target.split(parts)[rank]


def rate(s):
    return s[:1] / s[1:] - 0.3


def rate_equal(s):
    return s[:1] / s[1:] - 0.4


def registry(net, blocks=ALL):
    constraints = ConstraintRegistry()
    if "static" in blocks:
        constraints.equality("unit_rows", net.unit_rows)
        constraints.inequality("budget", net.budget)
    if "mean" in blocks:
        constraints.equality("mean", size=3)
        constraints.inequality("mean_below", size=3)
    if "counts" in blocks:
        constraints.inequality("counts", size=3)
        constraints.equality("counts_equal", size=3)
    if "statistics" in blocks:
        constraints.inequality("rate", size=1, from_statistics=rate)
        constraints.equality("rate_equal", size=1, from_statistics=rate_equal)
    if "ratio" in blocks:
        constraints.equality("ratio", size=1)
    return constraints


def measure(model, x, target, blocks=ALL):
    """The local mean loss, and the blocks' values as augment() takes them."""
    logits = model(x)
    losses = cross_entropy(logits, target, reduction="none")
    count = one_hot(target, 3).to(losses.dtype).sum(0)
    class_loss = losses @ one_hot(target, 3).to(losses.dtype) / count.clamp(min=1)
    positive = logits[target == 1, 1].sigmoid()
    statistics = torch.stack([positive.sum(), (target == 1).sum().to(losses.dtype)])
    values = {
        "mean": {"mean": logits.mean(0) - 0.2, "mean_below": logits.mean(0) + 0.1},
        "counts": {"counts": (class_loss - 0.9, count), "counts_equal": (class_loss - 1.1, count)},
        "statistics": {"rate": statistics, "rate_equal": statistics},
        "ratio": {"ratio": statistics[:1] / statistics[1:] - 0.4},
        "static": {},
    }
    return losses.mean(), {name: v for kind in blocks for name, v in values[kind].items()}


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.02)


def outcome(model, optimizer):
    """What is compared: whole parameters, multipliers, β and the epoch's violations."""
    y = optimizer.powalm_state_dict()["y"]
    return {
        "params": {name: full(p).detach().clone() for name, p in model.named_parameters()},
        "y": {name: value.clone() for name, value in y.items()},
        "beta": torch.tensor(optimizer.dual.beta),
        "skipped": torch.tensor(optimizer.epoch.skipped),
    }


def train(
    rank,
    size,
    *,
    blocks=ALL,
    nu=0.7,
    uneven=False,
    accumulate=False,
    window=False,
    scaler=False,
    clip=False,
    closure=False,
    strict=False,
    base=adam,
    group=None,
    ddp=None,
    epochs=3,
    spoil=None,
    skip_batch=None,
    single_group=False,
    **settings,
):
    """Three epochs of three batches; `spoil` makes batch 1 of the second epoch not finite."""
    net = Net()
    constraints = registry(net, blocks)
    if single_group and size > 1:
        group = [dist.new_group([r]) for r in range(size)][rank]
    optimizer = constrained(base(net), constraints, nu=nu, process_group=group, **settings)
    model = DistributedDataParallel(net, **(ddp or {})) if size > 1 else net
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaler else None

    def augmented(batch, epoch, others=None):
        x, target = data(batch, rank, size, uneven=uneven)
        loss, values = measure(model, x, target, blocks)
        if uneven:
            loss = loss * (size * len(x) / SAMPLES)
        if spoil and (epoch, batch, rank) == (1, 1, size - 1):
            loss, values = spoil(loss, values)
        extra = {"samples": len(x)} if uneven else {}
        if strict:
            true = {k: v.detach() * 0.9 for k, v in values.items() if k == "mean"}
            extra["strict"] = {**true, "rate": values["rate"].detach() * torch.tensor([0.8, 1.0])}
        if others is not None:
            extra["window"] = others
        return optimizer.augment(loss, **values, **extra) if values else loss

    def backward(loss):
        (grad_scaler.scale(loss) if scaler else loss).backward()

    def step():
        if scaler:
            grad_scaler.unscale_(optimizer)
        if clip:
            optimizer.backward_constraints()
            clip_grad_norm_(net.parameters(), 0.3)
        if scaler:
            grad_scaler.step(optimizer)
            grad_scaler.update()
        else:
            optimizer.step()

    def values_of(batch):
        with torch.no_grad():
            return measure(net, *data(batch, rank, size), blocks)[1]

    for epoch in range(epochs):
        if accumulate:
            optimizer.zero_grad()
            others = [values_of(b) for b in range(BATCHES)] if window else None
            for batch in range(BATCHES):
                last = batch == BATCHES - 1
                quiet = contextlib.nullcontext() if size == 1 or last else model.no_sync()
                with quiet:
                    backward(augmented(batch, epoch, others) / BATCHES)
            step()
        else:
            for batch in range(BATCHES):
                if (epoch, batch) == skip_batch:
                    continue
                if closure:

                    def evaluate(batch=batch, epoch=epoch):
                        optimizer.zero_grad()
                        loss = augmented(batch, epoch)
                        loss.backward()
                        if size > 1:  # a line search needs the same value on every rank
                            dist.all_reduce(loss.detach_())
                        return loss / size

                    optimizer.step(evaluate)
                else:
                    optimizer.zero_grad()
                    backward(augmented(batch, epoch))
                    step()
        optimizer.update_multipliers()
    return outcome(net, optimizer)


def zero(model):
    """Adam with its state split over the ranks."""
    if not dist.is_initialized():
        return adam(model)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.02)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def foreach(model):
    return torch.optim.Adam(model.parameters(), lr=0.02, foreach=True)


def fused(model):
    return torch.optim.Adam(model.parameters(), lr=0.02, fused=True)


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=0.1, line_search_fn="strong_wolfe")


AUTOMATIC = dict(beta_1=None, omega=1.0, total_steps=20)


EQUAL = {
    "automatic": dict(epochs=15, **AUTOMATIC),
    "automatic, uneven": dict(epochs=15, uneven=True, **AUTOMATIC),
    "automatic, momentum": dict(epochs=15, base=momentum, **AUTOMATIC),
    "automatic, accumulation": dict(epochs=45, accumulate=True, **AUTOMATIC),
    "automatic, window": dict(epochs=45, accumulate=True, window=True, **AUTOMATIC),
    "automatic, scaler and clipping": dict(epochs=15, scaler=True, clip=True, **AUTOMATIC),
    **{f"{kind} nu={nu}": dict(blocks=(kind,), nu=nu) for kind in ALL for nu in (0.7, 1.0)},
    **{f"all nu={nu}": dict(nu=nu) for nu in (0.7, 1.0)},
    "all, each block its norm": dict(coupling="block"),
    "all, bucket views": dict(ddp=dict(gradient_as_bucket_view=True)),
    "all, static graph": dict(ddp=dict(static_graph=True)),
    "all, unused parameters looked for": dict(ddp=dict(find_unused_parameters=True)),
    "all, momentum": dict(base=momentum),
    "all, closure": dict(closure=True),
    "all, uneven": dict(uneven=True),
    "uneven means": dict(uneven=True, blocks=("mean",)),
    "all, accumulation": dict(accumulate=True, epochs=6),
    "all, accumulation with a window": dict(accumulate=True, window=True, epochs=6),
    "all, scaler": dict(scaler=True),
    "all, scaler and clipping": dict(scaler=True, clip=True),
    "all, clipping": dict(clip=True),
    "all, scaler and accumulation": dict(scaler=True, accumulate=True, epochs=6),
    "strict values": dict(strict=True),
    "all, ZeRO": dict(base=zero),
    "static, ZeRO": dict(base=zero, blocks=("static",)),
    "all, the paper's sigma": dict(sigma="paper", sufficient_decrease=0.9),
}
