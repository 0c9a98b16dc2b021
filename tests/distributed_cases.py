"""What two processes do together: run as a script by test_distributed.py, once for all cases.

    python tests/distributed_cases.py RANK FOLDER

Every case is a function of (rank, size). Called with (0, 1) and without a process group it is the
same training in a single process on the same global batches.
"""

import contextlib
import copy
import datetime
import math
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from test_injection import F64, Net, constrained
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, full, prox
from torch_powalm.stateful import MultiplierState

ALL = ("static", "mean", "counts", "statistics")
BATCHES, SAMPLES = 3, 12


def data(batch, rank=0, size=1, *, uneven=False):
    """This rank's part of a global batch; class 2 is absent from some parts."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(SAMPLES, 4, generator=generator, dtype=F64)
    target = torch.tensor([0, 1, 2, 0, 2, 1, 0, 1, 0, 1, 1, 0])
    if size == 1:
        return x, target
    parts = [8, 4] if uneven else [6, 6]
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
        "skipped": torch.tensor(optimizer.skipped),
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


EQUAL = {
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


def nan_loss(loss, values):
    return loss * math.nan, values


def nan_value(loss, values):
    return loss, {**values, "mean": values["mean"] * math.nan}


def inf_statistics(loss, values):
    return loss, {**values, "rate": values["rate"] + math.inf}


SPOILED = {"loss": nan_loss, "value": nan_value, "statistics": inf_statistics}


def spoiled(rank, size, how, on_nonfinite):
    """Under "skip" the other batches are trained on; under "raise" the error is the outcome."""
    return train(rank, size, spoil=SPOILED[how], on_nonfinite=on_nonfinite)


def raised(rank, size, how):
    """State before and after the error on every rank, and where it came from."""
    net = Net()
    optimizer = constrained(adam(net), registry(net), nu=0.7)
    model = DistributedDataParallel(net) if size > 1 else net

    def step(batch, spoil=None):
        optimizer.zero_grad()
        loss, values = measure(model, *data(batch, rank, size))
        if spoil and rank == size - 1:
            loss, values = spoil(loss, values)
        optimizer.augment(loss, **values).backward()
        optimizer.step()

    for batch in range(BATCHES):
        step(batch)
    optimizer.update_multipliers()
    before = copy.deepcopy(outcome(net, optimizer))
    message = ""
    try:
        step(0, SPOILED[how])
    except FloatingPointError as error:
        message = str(error)
    after = outcome(net, optimizer)
    step(1)  # training can go on
    return {"before": before, "after": after, "message": message, "k": optimizer.dual.k}


def collectives(rank, size):
    """all_reduce calls of ours per augment() and per update; DDP's own are made in C++."""
    net = Net()
    constraints = registry(net)
    optimizer = constrained(adam(net), constraints, nu=0.7)
    model = DistributedDataParallel(net) if size > 1 else net
    calls = []
    original = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "broadcast")}

    def count(name):
        def counted(tensor, *args, **kwargs):
            calls.append((name, tensor.numel()))
            return original[name](tensor, *args, **kwargs)

        return counted

    for name in original:
        setattr(dist, name, count(name))
    seen = []
    try:
        for batch in range(BATCHES):
            optimizer.zero_grad()
            loss, values = measure(model, *data(batch, rank, size))
            augmented = optimizer.augment(loss, **values)
            seen.append(len(calls))
            augmented.backward()
            optimizer.step()
            seen.append(len(calls))
        optimizer.update_multipliers()
        constraints.violations()
        seen.append(len(calls))
    finally:
        for name, function in original.items():
            setattr(dist, name, function)
    return {"seen": seen, "calls": calls}


def groups(rank, size):
    """A given group, and what copies and pickles do with it."""
    group = dist.new_group([0, 1]) if size > 1 else None
    result = train(rank, size, group=group)
    net = Net()
    optimizer = PowerALMOptimizer(adam(net), registry(net, ("static",)), process_group=group)
    alike = copy.deepcopy((net, optimizer))[1]
    base = torch.optim.SGD(net.parameters(), 0.1)
    plain = ConstraintRegistry()
    plain.equality("unit_rows", net.unit_rows)
    restored = pickle.loads(pickle.dumps(PowerALMOptimizer(base, plain, process_group=group)))
    return {
        "result": result,
        "kept": alike._ranks.group is group,
        "dropped": restored._ranks.group is None,
    }


def not_in_the_group(rank, size):
    group = dist.new_group([0])
    net = Net()
    try:
        PowerALMOptimizer(adam(net), registry(net), process_group=group)
    except TypeError as error:
        return str(error)
    return "built"


def random_constraint(rank, size, *, from_step, one_seed=False):
    """A function with random numbers of each rank's own, from a certain step on."""
    net = Net()
    generator = torch.Generator().manual_seed(0 if one_seed else rank)
    step = 0

    def probe():
        direction = torch.randn(4, generator=generator, dtype=F64) if step >= from_step else 1.0
        return (net.first.weight * direction).sum(1)

    constraints = ConstraintRegistry()
    constraints.equality("fine", net.unit_rows)
    constraints.equality("probe", probe)
    optimizer = constrained(adam(net), constraints)
    model = DistributedDataParallel(net) if size > 1 else net
    messages = []
    for step in range(3):
        try:
            optimizer.zero_grad()
            x, target = data(step, rank, size)
            cross_entropy(model(x), target).backward()
            optimizer.step()
            optimizer.check_ranks()
        except RuntimeError as error:
            messages.append(str(error))
        else:
            messages.append("")
    return messages


class Slack(nn.Module):
    """The slack has no part in the loss."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.slack = nn.Parameter(torch.tensor([0.5, 0.1, 0.3], dtype=F64))

    def forward(self, x):
        return self.net(x)


def slack(rank, size, *, inside):
    module = Slack()
    constraints = ConstraintRegistry()
    constraints.equality(
        "bound", lambda: module.net.second.weight.square().sum(1) + module.slack.square() - 1
    )
    optimizer = constrained(adam(module), constraints, nu=0.7)
    model = module if inside else module.net
    if size > 1:
        model = DistributedDataParallel(model, find_unused_parameters=inside)
    for epoch in range(6):
        x, target = data(epoch % 3, rank, size)
        optimizer.zero_grad()
        cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.update_multipliers()
    return outcome(module, optimizer)


def low_precision(rank, size):
    """A forward pass in bfloat16 and a GradScaler, as AMP does."""
    net = Net().float()
    optimizer = constrained(adam(net), registry(net), nu=0.7)
    model = DistributedDataParallel(net) if size > 1 else net
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for _ in range(2):
        for batch in range(BATCHES):
            x, target = data(batch, rank, size)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss, values = measure(model, x.float(), target)
                loss = optimizer.augment(loss, **values)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.update_multipliers()
    return outcome(net, optimizer)


# FSDP2


class Wide(nn.Module):
    """Rows that two ranks cannot share evenly."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5, bias=False, dtype=F64)
        self.second = nn.Linear(5, 3, dtype=F64)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.6 * torch.randn(p.shape, generator=generator, dtype=F64))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


ZOO = {
    "sum": lambda m: m.first.weight.sum() - 1,
    "square": lambda m: m.first.weight.square().sum() - 1,
    "norm": lambda m: torch.linalg.vector_norm(m.first.weight) - 1,
    "rows": lambda m: m.first.weight.square().sum(1) - 1,
    "columns": lambda m: m.first.weight.square().sum(0) - 1,
    "spectral": lambda m: torch.linalg.matrix_norm(full(m.first.weight), 2) - 1,
    "spectral, of shards": lambda m: torch.linalg.matrix_norm(m.first.weight, 2) - 1,
    "entry": lambda m: m.second.weight[0] - 0.1,
    "orthonormal": lambda m: full(m.first.weight).T @ full(m.first.weight) - torch.eye(4).double(),
    "joined": lambda m: torch.cat([full(p).reshape(-1) for p in m.parameters()]) - 0.1,
    "two layers": lambda m: full(m.second.weight) @ full(m.first.weight) - 0.1,
    "bias": lambda m: m.second.bias - 0.1,
}


def shard(model, size):
    if size > 1:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.first)
        fully_shard(model)
    return model


def zoo(rank, size, which, *, base=adam, clip=False):
    """One constraint of parameters on a sharded model."""
    model = shard(Wide(), size)
    constraints = ConstraintRegistry()
    add = constraints.inequality if which in ("rows", "entry") else constraints.equality
    add("block", lambda: ZOO[which](model))
    optimizer = constrained(base(model), constraints, nu=0.7)
    for epoch in range(3):
        for batch in range(2):
            x, target = data(batch, rank, size)
            optimizer.zero_grad()
            cross_entropy(model(x), target).backward()
            if clip:
                optimizer.backward_constraints()
                clip_grad_norm_(model.parameters(), 0.3)
            if epoch == 2 and batch == 1:
                residuals = optimizer.residuals()
            optimizer.step()
        optimizer.update_multipliers()
    violation = constraints.violations()["block"]
    return {
        **outcome(model, optimizer),
        "residuals": torch.tensor([*residuals, *violation, optimizer.gradient_norm]).double(),
    }


def sharded(
    rank,
    size,
    *,
    base=adam,
    with_prox=False,
    spoil=None,
    uneven=False,
    accumulate=False,
    scaler=False,
    clip=False,
    nu=0.7,
    **settings,
):
    """Blocks of every kind on a sharded model."""
    model = shard(Wide(), size)
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: model.first.weight.square().sum(1) - 1)
    constraints.inequality("budget", lambda: model.second.weight.square().sum() - 1.5)
    for name in ("mean", "mean_below"):
        constraints.equality(name, size=3)
    constraints.inequality("counts", size=3)
    constraints.equality("counts_equal", size=3)
    constraints.inequality("rate", size=1, from_statistics=rate)
    constraints.equality("rate_equal", size=1, from_statistics=rate_equal)
    terms = {model.second.bias: prox.Ball(0.1), model.second.weight: prox.NonNegative()}
    optimizer = constrained(
        base(model), constraints, nu=nu, prox=terms if with_prox else None, **settings
    )
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaler)
    for epoch in range(3):
        for batch in range(BATCHES):
            last = not accumulate or batch == BATCHES - 1
            if not accumulate or batch == 0:
                optimizer.zero_grad()
            if size > 1:
                model.set_requires_gradient_sync(last)
            x, target = data(batch, rank, size, uneven=uneven)
            loss, values = measure(model, x, target)
            if uneven:
                loss = loss * (size * len(x) / SAMPLES)
            if spoil and (epoch, batch, rank) == (1, 1, size - 1):
                loss, values = spoil(loss, values)
            extra = {"samples": len(x)} if uneven else {}
            loss = optimizer.augment(loss, **values, **extra)
            grad_scaler.scale(loss / BATCHES if accumulate else loss).backward()
            if not last:
                continue
            grad_scaler.unscale_(optimizer)
            if clip:
                optimizer.backward_constraints()
                clip_grad_norm_(model.parameters(), 0.3)
            grad_scaler.step(optimizer)
            grad_scaler.update()
        optimizer.update_multipliers()
    return {**outcome(model, optimizer), "scale": torch.tensor(grad_scaler.get_scale())}


def nan_in_one_shard(rank, size):
    """A gradient that is not finite in the shard of the last rank alone."""
    model = shard(Wide(), size)
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: model.first.weight.square().sum(1) - 1)
    optimizer = constrained(adam(model), constraints, on_nonfinite="skip")
    for batch in range(BATCHES):
        optimizer.zero_grad()
        cross_entropy(model(data(batch, rank, size)[0]), data(batch, rank, size)[1]).backward()
        if rank == size - 1 and batch == 1:
            grad = model.first.weight.grad
            (grad.to_local() if size > 1 else grad)[-1] = math.nan
        optimizer.step()
    optimizer.update_multipliers()
    return outcome(model, optimizer)


def distributed_checkpoint(rank, size, folder):
    """Two epochs, a distributed checkpoint, and two more in a fresh model; against four."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as dcp_state

    def build():
        model = shard(Wide(), size)
        constraints = ConstraintRegistry()
        constraints.equality("unit_rows", lambda: model.first.weight.square().sum(1) - 1)
        constraints.equality("mean", size=3)
        return model, constrained(adam(model), constraints, nu=0.7)

    def epochs(model, optimizer, number):
        for _ in range(number):
            for batch in range(BATCHES):
                optimizer.zero_grad()
                loss, values = measure(model, *data(batch, rank, size), ("mean",))
                optimizer.augment(loss, mean=values["mean"]).backward()
                optimizer.step()
            optimizer.update_multipliers()

    straight = build()
    epochs(*straight, 4)
    model, optimizer = build()
    epochs(model, optimizer, 2)

    def state(model, optimizer):
        weights, moments = dcp_state.get_state_dict(model, optimizer.base)
        return {"model": weights, "optimizer": moments, "powalm": MultiplierState(optimizer)}

    dcp.save(state(model, optimizer), checkpoint_id=folder)
    model, optimizer = build()
    saved = state(model, optimizer)
    dcp.load(saved, checkpoint_id=folder)  # the multipliers are in place now
    dcp_state.set_state_dict(
        model,
        optimizer.base,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
    )
    epochs(model, optimizer, 2)
    return {"straight": outcome(*straight), "resumed": outcome(model, optimizer)}


def captured(rank, size):
    """A function that holds a parameter which fully_shard then replaces."""
    model = Wide()
    weight = model.first.weight
    shard(model, size)
    constraints = ConstraintRegistry()
    constraints.equality("rows", lambda: weight.square().sum(1) - 1)
    optimizer = constrained(adam(model), constraints)
    x, target = data(0, rank, size)
    cross_entropy(model(x), target).backward()
    try:
        optimizer.step()
    except ValueError as error:
        return str(error)
    return "stepped"


def low_precision_shards(rank, size):
    """What a parameter-only block sees in step() when layers compute in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Wide().float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model.first, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    seen, layer = set(), []

    def rows():
        seen.add(model.first.weight.dtype)
        return model.first.weight.square().sum(1) - 1

    constraints = ConstraintRegistry()
    constraints.equality("rows", rows)
    optimizer = constrained(adam(model), constraints, nu=0.7)
    model.second.register_forward_hook(lambda module, inputs, out: layer.append(out.dtype))
    for batch in range(BATCHES):
        x, target = data(batch, rank, size)
        optimizer.zero_grad()
        cross_entropy(model(x.float()), target).backward()
        seen.clear()
        optimizer.step()
    optimizer.update_multipliers()
    return {
        "forward": sorted(map(str, set(layer))),
        "seen": sorted(map(str, seen)),
        "outcome": outcome(model, optimizer),
    }


def fsdp1(rank, size, *, use_orig_params):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(
            Wide(), device_id=torch.device("cpu"), use_orig_params=use_orig_params
        )
    constraints = ConstraintRegistry()
    constraints.equality("unit", lambda: next(model.parameters()).square().sum() - 1)
    optimizer = PowerALMOptimizer(adam(model), constraints)
    try:
        optimizer.step()
    except ValueError as error:
        return str(error)
    return "stepped"


def cases(folder):
    found = {f"equal: {name}": (train, settings) for name, settings in EQUAL.items()}
    for how in SPOILED:
        found[f"raised: {how}"] = (raised, dict(how=how))
        found[f"skipped: {how}"] = (spoiled, dict(how=how, on_nonfinite="skip"))
    found |= {
        "wrong: a norm for every rank nu=0.7": (train, dict(single_group=True)),
        "wrong: a norm for every rank nu=1.0": (train, dict(single_group=True, nu=1.0)),
        "wrong: a mean of ratios": (train, dict(blocks=("ratio",))),
        "line search": (train, dict(closure=True, base=lbfgs, nu=1.0, epochs=1)),
        "collectives": (collectives, {}),
        "groups": (groups, {}),
        "not in the group": (not_in_the_group, {}),
        "random: at once": (random_constraint, dict(from_step=0)),
        "random: later": (random_constraint, dict(from_step=2)),
        "random: one seed": (random_constraint, dict(from_step=0, one_seed=True)),
        "slack: inside": (slack, dict(inside=True)),
        "slack: outside": (slack, dict(inside=False)),
        "low precision": (low_precision, {}),
        **{f"zoo: {which}": (zoo, dict(which=which)) for which in ZOO},
        "zoo: rows, clipping": (zoo, dict(which="rows", clip=True)),
        "zoo: sum, momentum": (zoo, dict(which="sum", base=momentum)),
        "zoo: columns, fused": (zoo, dict(which="columns", base=fused)),
        "zoo: orthonormal, foreach": (zoo, dict(which="orthonormal", base=foreach)),
        "captured": (captured, {}),
        "low-precision shards": (low_precision_shards, {}),
        "sharded: all": (sharded, {}),
        "sharded: nu=1.0": (sharded, dict(nu=1.0)),
        "sharded: uneven": (sharded, dict(uneven=True)),
        "sharded: accumulation": (sharded, dict(accumulate=True)),
        "sharded: clipping": (sharded, dict(clip=True)),
        "sharded: scaler": (sharded, dict(scaler=True)),
        "sharded: scaler and clipping": (sharded, dict(scaler=True, clip=True)),
        "sharded: scaler and accumulation": (sharded, dict(scaler=True, accumulate=True)),
        "sharded: block norms": (sharded, dict(coupling="block")),
        "sharded: prox": (sharded, dict(with_prox=True, base=momentum)),
        "sharded: skipped value": (sharded, dict(spoil=nan_value, on_nonfinite="skip")),
        "sharded: skipped loss": (sharded, dict(spoil=nan_loss, on_nonfinite="skip")),
        "sharded: skipped shard": (nan_in_one_shard, {}),
        "fsdp1: flat": (fsdp1, dict(use_orig_params=False)),
        "fsdp1: original": (fsdp1, dict(use_orig_params=True)),
        "distributed checkpoint": (distributed_checkpoint, dict(folder=str(folder / "dcp"))),
    }
    return found


def main():
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60)
    )
    results = {}
    for name, (run, settings) in cases(folder).items():
        try:
            results[name] = run(rank, 2, **settings)
        except Exception:
            results[name] = f"failed: {traceback.format_exc()}"
    torch.save(results, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
