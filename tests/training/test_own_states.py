"""The state that a base has saved by itself loads, whatever its settings and precision."""

import copy
import io

import pytest
import torch
from torch import nn, optim

from torch_powalm import ConstraintRegistry, PowerALMOptimizer

BASES = {
    name: kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
}
SETTINGS = {  # other than the defaults
    "Adam": {"amsgrad": True, "foreach": False},
    "AdamW": {"amsgrad": True, "lr": torch.tensor(0.01)},
    "SGD": {"lr": 0.01, "momentum": 0.9, "dampening": 0.1},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "LBFGS": {"line_search_fn": "strong_wolfe", "history_size": 3},
}


def build(name, dtype, settings):
    torch.manual_seed(0)
    model = nn.Linear(3, 4, bias=False, dtype=dtype)
    constraints = ConstraintRegistry()
    constraints.equality("rows", lambda: model.weight.square().sum(1) - 1)
    optimizer = PowerALMOptimizer(BASES[name](model.parameters(), **settings), constraints)
    return model, optimizer


def train(model, optimizer, steps):
    x = torch.ones(5, 3, dtype=model.weight.dtype)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["double", "bfloat16"])
@pytest.mark.parametrize("own", [{}, SETTINGS], ids=["defaults", "others"])
@pytest.mark.parametrize("name", sorted(BASES.keys() - {"SparseAdam"}))
def test_every_base_of_torch_resumes_to_the_same_bits(name, own, dtype):
    settings = own.get(name, {})
    if own and not settings:
        settings = {"lr": 0.005}
    straight, resumed = build(name, dtype, settings), build(name, dtype, settings)
    train(*straight, 3)
    file = io.BytesIO()
    torch.save(straight[1].state_dict(), file)
    resumed[0].load_state_dict(copy.deepcopy(straight[0].state_dict()))
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed[1].load_state_dict(state)
    for run in (straight, resumed):
        train(*run, 2)
    # torch keeps mu_product of NAdam in single precision, and loads it in that of the parameter.
    rtol = 1e-6 if name == "NAdam" and dtype is torch.float64 else 0.0
    torch.testing.assert_close(straight[0].weight, resumed[0].weight, rtol=rtol, atol=0)
