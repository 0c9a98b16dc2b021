"""Trainings that bound the loss of every sample: plain, ours, and Cooper's indexed multipliers.

    min mean loss   s.t.   loss_i ≤ bound for every training sample i

The bounds are those of Feasible Learning (Ramirez et al., AISTATS 2025), whose objective is 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from experiments.data.images import Images
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

BATCH, WIDTH, RATE = 128, 256, 1e-3
DUAL_RATES = (0.01, 0.1, 1.0)  # of Cooper's multipliers


class Samples(NamedTuple):
    """Training and test samples as rows of numbers in [0, 1], with their classes."""

    x: Tensor
    target: Tensor
    test_x: Tensor
    test_target: Tensor


class Outcome(NamedTuple):
    """What a training has reached, on all training samples and on the test samples."""

    mean: float
    quantile: float  # 99 of 100 training losses are at most this
    maximum: float
    above: float  # part of the training samples beyond the bound
    accuracy: float  # on the test samples


Step = Callable[[nn.Module, Tensor, Tensor, Tensor], None]


def samples(images: Images, first: int | None = None) -> Samples:
    """Return images as rows; only the first ones of each part if a number is given."""
    train, labels, test, test_labels = (part[:first] for part in images)
    rows = [part.reshape(len(part), -1).float() / 255 for part in (train, test)]
    return Samples(rows[0], labels, rows[1], test_labels)


def network(inputs: int, seed: int) -> nn.Module:
    """Return a network with one hidden layer."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def plain(model: nn.Module, base: Adam, n: int, bound: float) -> Step:
    """Training without bounds."""

    def step(model: nn.Module, x: Tensor, target: Tensor, index: Tensor) -> None:
        base.zero_grad()
        cross_entropy(model(x), target).backward()
        base.step()

    return step


def ours(model: nn.Module, base: Adam, n: int, bound: float) -> Step:
    """PowerALMOptimizer with an indexed block, and nothing set."""
    constraints = ConstraintRegistry()
    constraints.inequality("sample_loss", size=n, indexed=True)
    optimizer = PowerALMOptimizer(base, constraints)

    def step(model: nn.Module, x: Tensor, target: Tensor, index: Tensor) -> None:
        optimizer.zero_grad()
        losses = cross_entropy(model(x), target, reduction="none")
        optimizer.augment(losses.mean(), sample_loss=(losses - bound, index)).backward()
        optimizer.step()

    return step


def cooper_indexed(dual_rate: float) -> Callable[[nn.Module, Adam, int, float], Step]:
    """Cooper's IndexedMultiplier: gradient ascent at a rate that has to be chosen."""

    def build(model: nn.Module, base: Adam, n: int, bound: float) -> Step:
        import cooper

        constraint = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
            multiplier=cooper.multipliers.IndexedMultiplier(num_constraints=n),
        )

        class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.sample_loss = constraint

            def compute_cmp_state(self, x: Tensor, target: Tensor, index: Tensor) -> object:
                losses = cross_entropy(model(x), target, reduction="none")
                # The multipliers of a batch are summed: their mean has the scale of the loss.
                state = cooper.ConstraintState((losses - bound) / len(x), constraint_features=index)
                states = {self.sample_loss: state}
                return cooper.CMPState(loss=losses.mean(), observed_constraints=states)

        problem = Problem()
        multipliers = list(problem.dual_parameters())
        dual = torch.optim.SGD(multipliers, lr=dual_rate * BATCH, maximize=True)
        optimizer = cooper.optim.SimultaneousOptimizer(
            cmp=problem, primal_optimizers=base, dual_optimizers=dual
        )

        def step(model: nn.Module, x: Tensor, target: Tensor, index: Tensor) -> None:
            optimizer.roll(compute_cmp_state_kwargs={"x": x, "target": target, "index": index})

        return step

    return build


METHODS: dict[str, Callable[[nn.Module, Adam, int, float], Step]] = {
    "plain": plain,
    "ours, nothing set": ours,
    **{f"Cooper, dual rate {rate:g}": cooper_indexed(rate) for rate in DUAL_RATES},
}


def train(method: str, data: Samples, bound: float, epochs: int, seed: int) -> Outcome:
    """Train with one method; the rate of Adam falls to 0 along a cosine."""
    n, model = len(data.x), network(data.x.shape[1], seed)
    base = Adam(model.parameters(), lr=RATE)
    step = METHODS[method](model, base, n, bound)
    batches = epochs * -(-n // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, batches)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(n, generator=generator).split(BATCH):
            step(model, data.x[index], data.target[index], index)
            schedule.step()
    return judge(model, data, bound)


@torch.no_grad()
def judge(model: nn.Module, data: Samples, bound: float) -> Outcome:
    """Measure a network on all samples."""
    losses = cross_entropy(model(data.x), data.target, reduction="none").double()
    right = (model(data.test_x).argmax(1) == data.test_target).double()
    above = (losses > bound).double().mean()
    quantile = losses.quantile(0.99)
    return Outcome(*map(float, (losses.mean(), quantile, losses.max(), above, right.mean())))
