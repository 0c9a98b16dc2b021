"""200 steps of fine-tuning that must stay near a reference in Kullback–Leibler divergence."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from experiments.constraint_bench.networks import mlp, pooled_images, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training

BOUND, STEPS = 0.05, 200


def finetune_kl(generator: torch.Generator) -> Training:
    """From MNIST to Fashion-MNIST: KL(reference ‖ model) on MNIST at most 0.05 on average."""
    old, new = pooled_images("mnist"), pooled_images("fashion_mnist")
    model = mlp([196, 48, 10], nn.ReLU, generator)
    _pretrain(model, *old["train"], generator)
    reference = copy.deepcopy(model).requires_grad_(False)

    def divergence(x: Tensor) -> Tensor:
        p, q = (log_softmax(net(x), 1) for net in (reference, model))
        return (kl_div(q, p, log_target=True, reduction="batchmean") - BOUND).reshape(1)

    def evaluate(batch: tuple[Tensor, Tensor]) -> Evaluation:
        x, target = new["train"]
        loss = cross_entropy(model(x[batch[0]]), target[batch[0]])
        return Evaluation(loss, {"divergence": divergence(old["train"][0][batch[1]])}, {})

    @torch.no_grad()
    def merit(split: str) -> float:
        x, target = new[split]
        return cross_entropy(model(x), target).item()

    @torch.no_grad()
    def values(split: str) -> dict[str, Tensor]:
        return {"divergence": divergence(old[split][0])}

    rows = [row_batches(5000, 100, STEPS, generator) for _ in range(2)]
    block = Constraint("divergence", True, 1, 0.005)
    return Training(model, [block], list(zip(*rows, strict=True)), evaluate, merit, values)


def _pretrain(model: nn.Module, x: Tensor, target: Tensor, generator: torch.Generator) -> None:
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    for rows in row_batches(len(x), 100, 200, generator):
        adam.zero_grad()
        cross_entropy(model(x[rows]), target[rows]).backward()
        adam.step()


TASKS = [Task("short_finetune_kl", "short", finetune_kl, STEPS, 50, lr=3e-3, sgd_lr=0.01)]
