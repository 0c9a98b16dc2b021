"""Equalities of weights: an orthogonal recurrent layer, rows of unit norm."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.constraint_bench.networks import initialize, mlp, pooled_images, row_batches
from experiments.constraint_bench.task import Constraint, Evaluation, Task, Training


class RowReader(nn.Module):
    """Recurrent network that reads an image row by row."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.read, self.recur = nn.Linear(14, hidden), nn.Linear(hidden, hidden, bias=False)
        self.classify = nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images given as vectors of 14 rows."""
        read = self.read(images.view(-1, 14, 14))
        state = torch.tanh(read[:, 0])
        for row in range(1, 14):
            state = torch.tanh(read[:, row] + self.recur(state))
        logits: Tensor = self.classify(state)
        return logits


def orthogonal_rnn(generator: torch.Generator) -> Training:
    """MNIST row by row, the recurrent matrix orthogonal: 300 equalities."""
    model = RowReader(24)
    initialize(model, generator)
    upper = torch.triu_indices(24, 24)

    def gram() -> Tensor:
        W = model.recur.weight
        return (W @ W.T - torch.eye(24))[upper[0], upper[1]]

    block = Constraint("orthogonal", False, 300, 0.02, fn=gram)
    return classifier(model, "mnist", [block], 50, 600, generator)


def unit_rows(generator: torch.Generator) -> Training:
    """Fashion-MNIST, the rows of the first layer of norm 1: 48 equalities."""
    model = mlp([196, 48, 10], nn.ReLU, generator)
    with torch.no_grad():
        model[0].weight.mul_(0.5)

    def norms() -> Tensor:
        weight: Tensor = model[0].weight
        return weight.square().sum(1) - 1

    block = Constraint("unit_rows", False, 48, 0.01, fn=norms)
    return classifier(model, "fashion_mnist", [block], 100, 800, generator)


def classifier(
    model: nn.Module,
    dataset: str,
    blocks: list[Constraint],
    batch_size: int,
    steps: int,
    generator: torch.Generator,
) -> Training:
    """Classify images under constraints of the parameters."""
    data = pooled_images(dataset)

    def evaluate(rows: Tensor) -> Evaluation:
        x, target = data["train"]
        return Evaluation(cross_entropy(model(x[rows]), target[rows]), {}, {})

    @torch.no_grad()
    def merit(split: str) -> float:
        x, target = data[split]
        return cross_entropy(model(x), target).item()

    @torch.no_grad()
    def values(split: str) -> dict[str, Tensor]:
        return {block.name: block.fn() for block in blocks if block.fn is not None}

    batches = row_batches(len(data["train"][0]), batch_size, steps, generator)
    return Training(model, blocks, batches, evaluate, merit, values)


TASKS = [
    Task("orthogonal_rnn", "weights", orthogonal_rnn, 600, 100, lr=3e-3, sgd_lr=0.03),
    Task("unit_rows", "weights", unit_rows, 800, 50, lr=3e-3, sgd_lr=0.03),
]
