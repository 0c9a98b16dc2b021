"""margin="auto" and certify on two ranks, with held-out data split or read by each of them."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.training.distributed.ranks_training import adam, outcome
from tests.training.small_training import F64
from torch_powalm import ConstraintRegistry, HeldOut, Mean, PowerALMOptimizer, Rates, certify

KINDS = {"missed": Rates(), "loss": Mean(0.0, 4.0, bound=0.8)}
STEPS, BATCH = 40, 20


def rows(seed, n):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=F64)
    return TensorDataset(x, (x.sum(1) + torch.randn(n, generator=generator) > 0).long())


def held_out_loader(seed, n, size, split, **settings):
    data = rows(seed, n)
    sampler = DistributedSampler(data, shuffle=False, **settings) if split and size > 1 else None
    return DataLoader(data, 50, sampler=sampler)


def certified(rank, size, *, split):
    """A training with margins from held-out data, and its certificate."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2, dtype=F64)
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.25)
    constraints.inequality("loss", size=1)

    def measure(batch):
        logits, target = net(batch[0]), batch[1]
        wrong = (logits.argmax(1) == 0)[target == 1]
        losses = cross_entropy(logits, target, reduction="none").clamp(max=4.0)
        counts = torch.tensor([wrong.sum(), len(wrong)], dtype=F64)
        return {"missed": counts, "loss": losses}

    held_out = HeldOut(measure, held_out_loader(1, 400, size, split), kinds=KINDS)
    optimizer = PowerALMOptimizer(
        *(adam(net), constraints), nu=0.7, beta_1=1.0, updates=10, margin="auto", held_out=held_out
    )
    model = DistributedDataParallel(net) if size > 1 else net
    x, target = rows(0, STEPS * BATCH).tensors
    for step in range(STEPS):
        part = slice(step * BATCH + rank * BATCH // size, step * BATCH + (rank + 1) * BATCH // size)
        optimizer.zero_grad()
        logits, labels = model(x[part]), target[part]
        losses = cross_entropy(logits, labels, reduction="none")
        score = (logits[:, 1] - logits[:, 0])[labels == 1]
        sums = torch.stack([torch.sigmoid(-score).sum(), score.new_tensor(float(len(score)))])
        strict = torch.stack([(score <= 0).sum().to(F64), sums[1].detach()])
        values = {"missed": sums, "loss": (losses.mean().reshape(1) - 0.8, float(len(labels)))}
        optimizer.augment(losses.mean(), strict={"missed": strict}, **values).backward()
        optimizer.step()
    optimizer.update_multipliers()
    net.eval()
    loader = held_out_loader(2, 400, size, split)
    found = certify(constraints, measure, loader, kinds=KINDS, tolerance={"loss": 0.01})
    return {
        "training": outcome(net, optimizer),
        "margins": optimizer.margins(),
        "estimates": torch.tensor([e.estimate for e in found], dtype=F64),
        "upper": torch.tensor([e.upper for e in found], dtype=F64),
        "samples": [e.samples for e in found],
        "verdicts": [e.verdict for e in found],
    }


def padded(rank, size):
    """401 samples on two ranks: the sampler repeats one."""
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.25)
    messages = []
    for drop_last in (False, True):
        loader = held_out_loader(3, 401, size, True, drop_last=drop_last)

        def counts(batch):
            return {"missed": torch.tensor([0.0, len(batch[0])])}

        try:
            found = certify(constraints, counts, loader, kinds={"missed": Rates()})
            messages.append(str(found["missed"][0].samples))
        except ValueError as error:
            messages.append(str(error))
    return messages
