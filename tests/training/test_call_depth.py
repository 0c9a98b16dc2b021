"""From step(), augment() and update_multipliers() to a formula are at most three calls."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_powalm
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")
PACKAGE = str(Path(torch_powalm.__file__).parent)


class Trace:
    """Calls of the package's functions while it is active: the paths that reach functional.py."""

    def __init__(self):
        self.stack, self.paths = [], []

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def _see(self, frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        if event == "call":
            self.stack.append(code.co_name)
            inside = "update_multipliers" in self.stack[1:]  # an automatic update within a step
            if code.co_filename.endswith("functional.py") and not inside:
                self.paths.append(tuple(self.stack))
        elif event == "return":
            self.stack.pop()

    def longest(self):
        """The longest path to the first formula on it: calls, counted from the user's."""
        formulas = {name for name in vars(torch_powalm.functional) if name[0] != "_"}
        # A step in a few also measures units; that is not on the way to the formula.
        paths = [p for p in self.paths if not any(n.startswith("measure_") for n in p)]
        first = [path[: next(i for i, n in enumerate(path) if n in formulas) + 1] for path in paths]
        return max(first, key=len)


def training(kinds, nu, coupling):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    constraints = ConstraintRegistry()
    if "equality" in kinds:
        constraints.equality("rows", lambda: model[0].weight.square().sum(1) - 1)
    if "inequality" in kinds:
        constraints.inequality("budget", lambda: model[2].weight.abs().sum() - 1.0)
    if "batch" in kinds:
        constraints.inequality("mean_loss", size=1)
    optimizer = PowerALMOptimizer(
        torch.optim.Adam(model.parameters()), constraints, nu=nu, coupling=coupling, total_steps=10
    )
    x, target = torch.randn(9, 6), torch.arange(9) % 3

    def backward():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        if "batch" in kinds:
            loss = optimizer.augment(loss, mean_loss=loss.reshape(1) - 0.1)
        loss.backward()

    return optimizer, backward


@pytest.mark.parametrize("coupling", ["all", "block"])
@pytest.mark.parametrize("nu", [0.5, 1.0])
@pytest.mark.parametrize(
    "kinds", [("equality",), ("inequality",), ("batch",), ("equality", "inequality", "batch")]
)
def test_the_formula_is_three_calls_away(kinds, nu, coupling):
    optimizer, backward = training(kinds, nu, coupling)
    for _ in range(2):  # the first step measures the units, the second starts the multipliers
        backward()
        optimizer.step()
    for _ in range(9):  # the automatic updates among them
        with Trace() as augment:
            backward()
        with Trace() as step:
            optimizer.step()
        with Trace() as update:
            optimizer.update_multipliers()
        traces = {"step": step, "update_multipliers": update}
        if "batch" in kinds:
            traces["augment"] = augment
        for name, trace in traces.items():
            path = trace.longest()
            assert path[0] == name
            assert len(path) - 1 <= 3, " > ".join(path)
