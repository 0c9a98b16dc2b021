"""Count what a reader has to follow in one training step and one multiplier update.

    python -m experiments.benchmarks.call_walk

Traces the calls of the package's functions in the README's kind of training (an equality and an
inequality of the parameters, an inequality of the batch) and prints the number of calls, of files,
of returns to a file already left, and the calls from each entry point to the first formula.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import torch_powalm
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

PACKAGE = Path(torch_powalm.__file__).parent


class Walk:
    """The calls of the package's functions while `run` is active, in order."""

    def __init__(self) -> None:
        self.files: list[str] = []  # of the calls, in order
        self.stack: list[str] = []
        self.paths: dict[str, list[str]] = {}  # the longest path to a formula, by entry point

    def run(self, action: Callable[[], object]) -> None:
        """Trace an action."""
        sys.setprofile(self._see)
        try:
            action()
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)) or code.co_name.startswith("<"):
            return
        if event == "call":
            file = str(Path(code.co_filename).relative_to(PACKAGE))
            self.files.append(file)
            self.stack.append(f"{file}:{code.co_name}")
            before = [name for name in self.stack[:-1] if name.startswith("functional.py")]
            longest = self.paths.get(self.stack[0], [])
            if file == "functional.py" and not before and len(self.stack) > len(longest):
                self.paths[self.stack[0]] = list(self.stack)
        elif event == "return":
            self.stack.pop()

    def returns(self) -> int:
        """How often the walk comes back to a file that it has left."""
        changes = [file for i, file in enumerate(self.files) if i == 0 or self.files[i - 1] != file]
        return len(changes) - len(set(changes))


def training() -> tuple[Callable[[], None], PowerALMOptimizer]:
    """Return a function that makes one training step, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))
    constraints = ConstraintRegistry()
    constraints.equality("unit_rows", lambda: model[0].weight.square().sum(1) - 1)
    constraints.inequality("budget", lambda: model[2].weight.abs().sum() - 100.0)
    constraints.inequality("class_loss", size=10)
    optimizer = PowerALMOptimizer(
        torch.optim.Adam(model.parameters()), constraints, nu=0.8, beta_1=0.1
    )
    x, target = torch.randn(50, 20), torch.arange(50) % 10

    def step() -> None:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(x), target, reduction="none")
        class_loss = losses.reshape(5, 10).mean(0) - 0.3
        optimizer.augment(losses.mean(), class_loss=class_loss).backward()
        optimizer.step()

    return step, optimizer


def traced() -> Walk:
    """Trace a step and an update after the first ones."""
    step, optimizer = training()
    step()
    optimizer.update_multipliers()
    walk = Walk()
    walk.run(lambda: (step(), optimizer.update_multipliers()))
    return walk


def main() -> None:
    """Print the counts."""
    walk = traced()
    print(
        f"{len(walk.files)} calls in {len(set(walk.files))} files, "
        f"{walk.returns()} returns to a file already left"
    )
    for path in walk.paths.values():
        print(f"{len(path) - 1} calls to a formula: {' > '.join(path)}")


if __name__ == "__main__":
    main()
