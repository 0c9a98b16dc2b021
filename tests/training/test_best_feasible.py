"""BestFeasible: which state of a plain loop is kept, and what it says."""

import copy
import math

import pytest
import torch
from torch import nn

from torch_powalm import BestFeasible, ConstraintRegistry, PowerALMOptimizer, Violation
from torch_powalm.training.feasibility import feasible_loss, rank


def training():
    model = nn.Linear(1, 1, bias=False)
    constraints = ConstraintRegistry()
    constraints.inequality("small", lambda: model.weight.flatten() - 1)
    constraints.inequality("positive", lambda: -model.weight.flatten())
    return model, constraints


def weight(model, value):
    with torch.no_grad():
        model.weight.fill_(value)


def kept(script, tolerance=0.1):
    """Run (weight, merit) pairs through BestFeasible; return it and the restored weight."""
    model, constraints = training()
    best = BestFeasible(model, constraints, tolerance)
    for value, merit in script:
        weight(model, value)
        best.update(merit)
    weight(model, -7.0)
    best.restore()
    return best, model.weight.item()


@pytest.mark.parametrize(
    ("script", "expected", "feasible"),
    [
        ([(0.5, 3.0), (0.6, 1.0), (0.7, 2.0)], 0.6, True),  # the best merit among feasible ones
        ([(5.0, 0.0), (0.5, 9.0), (4.0, 0.0)], 0.5, True),  # feasible before any merit
        ([(5.0, 0.0), (2.0, 9.0), (3.0, 1.0)], 2.0, False),  # never feasible: least violated
        ([(0.5, 1.0), (0.6, 1.0)], 0.5, True),  # a tie: the earlier one
        ([(2.0, 1.0), (2.0, 0.0)], 2.0, False),
        ([(0.5, math.nan), (3.0, 2.0)], 3.0, False),  # a nan is never kept
        ([(0.5, 1.0), (math.nan, 0.0), (0.6, math.inf)], 0.5, True),
        ([(1.0625, 1.0), (0.5, 2.0)], 1.0625, True),  # within tolerance
    ],
)
def test_the_best_feasible_state_is_kept(script, expected, feasible):
    best, restored = kept(script)
    assert restored == pytest.approx(expected)
    assert best.feasible is feasible


def test_it_says_what_it_has_kept():
    model, constraints = training()
    best = BestFeasible(model, constraints, 0.1)
    assert str(best) == "BestFeasible: no state kept yet"
    assert not best.feasible
    weight(model, 3.0)
    assert best.update(0.5)
    expected = "no feasible state so far; least violated: merit 0.5, largest violation 2 (small)"
    assert str(best) == f"BestFeasible: {expected}"
    weight(model, -0.05)
    assert best.update(torch.tensor(0.25))
    expected = "feasible: merit 0.25, largest violation 0.05 (positive)"
    assert str(best) == f"BestFeasible: {expected}"
    assert not best.update(0.5)


def test_the_copy_does_not_follow_the_model():
    model, constraints = training()
    best = BestFeasible(model, constraints, 0.1)
    weight(model, 0.5)
    best.update(1.0)
    weight(model, 0.9)
    assert best.restore() is best
    assert model.weight.item() == 0.5
    weight(model, 0.9)
    best.restore()
    assert model.weight.item() == 0.5


def test_a_resumed_loop_keeps_what_was_best(tmp_path):
    best, _ = kept([(0.5, 3.0), (0.6, 1.0)])
    torch.save(best.state_dict(), tmp_path / "best.pt")
    model, constraints = training()
    other = BestFeasible(model, constraints, 0.1)
    other.load_state_dict(torch.load(tmp_path / "best.pt", weights_only=True))
    weight(model, 0.7)
    assert not other.update(2.0)
    other.restore()
    assert model.weight.item() == pytest.approx(0.6)
    assert str(other) == str(best)
    with pytest.raises(ValueError, match="state_dict must have 'model', got"):
        other.load_state_dict({"merit": 1.0})


def test_tolerances_by_block_make_violations_relative():
    tolerance = {"small": 10.0, "positive": 0.01}
    best, restored = kept([(-0.02, 0.0), (9.0, 5.0)], tolerance)
    assert (restored, best.feasible, best.violation) == (9.0, True, 8.0)


def test_observed_violations_come_before_those_of_the_training():
    model = nn.Linear(1, 1, bias=False)
    constraints = ConstraintRegistry()
    constraints.inequality("rate", size=1)
    optimizer = PowerALMOptimizer(torch.optim.SGD(model.parameters(), 0.1), constraints)
    best = BestFeasible(model, optimizer, 0.1)
    with pytest.raises(RuntimeError, match="cannot judge 'rate': no value of it has been seen"):
        best.update(1.0)
    loss = model.weight.sum()
    optimizer.augment(loss, rate=loss.reshape(1) * 0 + 5.0).backward()
    optimizer.step()
    best.update(1.0)
    assert (best.feasible, best.violation) == (False, 5.0)
    constraints.observe(rate=torch.tensor([0.05]))
    best.update(1.0)
    assert best.feasible
    assert not best.update(0.5)  # nothing observed since then
    assert best.update(0.5, {"rate": Violation(0.0, 0.0)})


def test_misuse_raises():
    model, constraints = training()
    with pytest.raises(ValueError, match="tolerance must be nonnegative and finite, got -1"):
        BestFeasible(model, constraints, -1)
    with pytest.raises(ValueError, match="tolerance of 'positive' must be positive, got None"):
        BestFeasible(model, constraints, {"small": 1.0})
    with pytest.raises(KeyError, match="tolerance has no constraint 'large'"):
        BestFeasible(model, constraints, {"large": 1.0})
    with pytest.raises(TypeError, match="constraints must be a registry or a PowerALMOptimizer"):
        BestFeasible(model, {}, 1.0)
    with pytest.raises(RuntimeError, match="cannot restore: no state has been kept"):
        BestFeasible(model, constraints, 1.0).restore()


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_a_kept_model_without_plain_tensors_is_refused(kind):
    model, constraints = training()
    best = BestFeasible(model, constraints, 0.1)
    best.update(1.0)
    state = copy.deepcopy(best.state_dict())
    name, weight = next(iter(state["model"].items()))
    state["model"][name] = weight.to_sparse() if kind == "sparse" else weight.to("meta")
    before = copy.deepcopy(best.state_dict())
    with pytest.raises(ValueError, match=rf"\['model'\]\['{name}'\] must be a dense tensor"):
        best.load_state_dict(state)
    torch.testing.assert_close(best.state_dict()["model"], before["model"], rtol=0, atol=0)


def test_lightning_and_plain_loops_use_the_same_order():
    entries = [(3.0, 0.0), (1.0, 0.2), (2.0, 0.05), (0.0, 0.3), (math.nan, 0.0), (0.0, math.inf)]
    by_rank = sorted(entries, key=lambda entry: rank(*entry, 0.1))
    assert by_rank == sorted(entries, key=lambda entry: feasible_loss(*entry, 0.1))
    assert by_rank[:4] == [(2.0, 0.05), (3.0, 0.0), (1.0, 0.2), (0.0, 0.3)]
