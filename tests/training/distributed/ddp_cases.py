"""What two DDP processes do together. Every case is a function of (rank, size)."""

import copy
import math
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.training.distributed.ranks_training import (
    BATCHES,
    adam,
    data,
    measure,
    outcome,
    registry,
    train,
)
from tests.training.small_training import F64, Net, constrained
from torch_powalm import ConstraintRegistry, PowerALMOptimizer


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
        "kept": alike.ranks.group is group,
        "dropped": restored.ranks.group is None,
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
