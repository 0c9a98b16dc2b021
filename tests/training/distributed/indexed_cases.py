"""What several processes do together with one constraint for each sample."""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.training.distributed.ranks_training import adam, outcome
from tests.training.distributed.sharded_cases import Wide, shard
from tests.training.small_training import F64
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

N, STEPS = 24, 9


class PerSample:
    """A training in which the loss of every sample is bounded."""

    def __init__(self, rank, size, *, sharded=False, mixed=False, **settings):
        self.rank, self.size, self.mixed = rank, size, mixed
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(N, 4, generator=generator, dtype=F64)
        self.target = torch.randint(0, 3, (N,), generator=generator)
        self.net = shard(Wide(), size) if sharded else Wide()
        self.model = self.net
        if size > 1 and not sharded:
            self.model = DistributedDataParallel(self.net)
        self.constraints = ConstraintRegistry()
        self.constraints.inequality("sample", size=N, indexed=True)
        if mixed:
            self.constraints.equality("rows", lambda: self.net.first.weight.square().sum(1) - 1)
            self.constraints.inequality("mean", size=3)
        settings = {"beta_1": 1.0, **settings}
        self.optimizer = PowerALMOptimizer(adam(self.net), self.constraints, **settings)

    def step(self, i, uneven=False, repeats=False):
        """Step on this rank's part of the global batch i."""
        order = torch.randperm(N, generator=torch.Generator().manual_seed(i))[:12]
        if repeats:
            order[[5, 11]] = order[0].clone()
        part = (8 if uneven and self.size > 1 else 12) // self.size
        cuts = [12 - part * (self.size - 1), *[part] * (self.size - 1)]
        index = order.split(cuts)[self.rank]
        self.optimizer.zero_grad()
        out = self.model(self.x[index])
        losses = cross_entropy(out, self.target[index], reduction="none")
        share = self.size * len(index) / len(order)
        given = {"sample": (losses - 0.5, index)}
        extra = {}
        if self.mixed:
            given["mean"] = out.mean(0) - 0.1
            extra = {"samples": float(len(index))}
        self.optimizer.augment(losses.mean() * share, **given, **extra).backward()
        self.optimizer.step()

    def train(self, first=0, last=STEPS, **batches):
        for i in range(first, last):
            self.step(i, **batches)
            if i % 4 == 3:
                self.optimizer.update_multipliers()

    def outcome(self):
        state = self.optimizer.powalm_state_dict()["indexed"]["sample"]
        state = {name: value.nan_to_num(-9.0).double() for name, value in state.items()}
        return {**outcome(self.net, self.optimizer), **state}


def indexed(rank, size, *, uneven=False, repeats=False, last=STEPS, **settings):
    training = PerSample(rank, size, **settings)
    training.train(last=last, uneven=uneven, repeats=repeats)
    return training.outcome()


def indexed_resume(rank, size):
    """Resume on all ranks, amid an epoch, from what the first rank has saved."""
    straight, first, second = (PerSample(rank, size, mixed=True, nu=0.6) for _ in range(3))
    straight.train()
    first.train(last=6)
    saved = [copy.deepcopy([first.net.state_dict(), first.optimizer.state_dict()])]
    if size > 1:
        dist.broadcast_object_list(saved, src=0)
    weights, state = saved[0]
    second.net.load_state_dict(weights)
    second.optimizer.load_state_dict(state)
    second.train(first=6)
    return {"straight": straight.outcome(), "resumed": second.outcome()}


def indexed_nan(rank, size, *, check_finite):
    """A value that is not finite on the last rank is skipped by all of them."""
    settings = {"on_nonfinite": "skip", "check_finite": check_finite}
    training = PerSample(rank, size, **settings)
    training.train(last=4)
    if rank == size - 1:
        training.x[:] = torch.nan
    training.train(first=4)
    training.optimizer.update_multipliers()
    return training.outcome()


INDEXED = {
    "indexed: nu=0.6": (indexed, dict(nu=0.6)),
    "indexed: nu=1.0, uneven": (indexed, dict(nu=1.0, uneven=True)),
    "indexed: uneven, repeats": (indexed, dict(uneven=True, repeats=True)),
    "indexed: with other blocks": (indexed, dict(mixed=True, uneven=True)),
    "indexed: at updates": (indexed, dict(mixed=True, check_finite="at_update")),
    "indexed: measured": (indexed, dict(beta_1=None, total_steps=40, last=30, uneven=True)),
    "indexed: shards": (indexed, dict(sharded=True, mixed=True)),
}
