"""What two FSDP2 processes do together. Every case is a function of (rank, size)."""

import math
import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from tests.training.distributed.ranks_training import (
    BATCHES,
    SAMPLES,
    adam,
    data,
    measure,
    outcome,
    rate,
    rate_equal,
)
from tests.training.small_training import F64, constrained
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, full, prox
from torch_powalm.training.distributed.dcp import MultiplierState


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


def shard(model, size, *, replicas=False):
    """Split the parameters over the ranks, or give each rank all of them (HSDP with one shard)."""
    if size > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shape, names = ((size, 1), ("replicate", "shard")) if replicas else ((size,), ("shard",))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        fully_shard(model.first, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def zoo(rank, size, which, *, base=adam, clip=False, replicas=False):
    """One constraint of parameters on a sharded model."""
    model = shard(Wide(), size, replicas=replicas)
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
        gradient_norm = optimizer.epoch.gradient_norm
        optimizer.update_multipliers()
    violation = constraints.violations()["block"]
    return {
        **outcome(model, optimizer),
        "residuals": torch.tensor([*residuals, *violation[:2], gradient_norm]).double(),
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
