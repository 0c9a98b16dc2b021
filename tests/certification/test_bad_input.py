"""certify refuses what it cannot judge, and says which argument or constraint is the reason."""

import importlib
import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, Mean, Rates, certify


def registry(size=1, **arguments):
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=size, **arguments)
    return constraints


def rate(s):
    return s[:1] / s[1:] - 0.05


def returning(value):
    return lambda batch: {"missed": value}


GOOD = torch.tensor([1.0, 100.0])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor([0.0, 0.0]), "group 0 of 'missed' must have samples, got none"),
        (torch.tensor([math.nan, 9.0]), "values of 'missed' must be finite on held-out data, got"),
        (torch.tensor([2.5, 9.0]), r"counts of 'missed' must be whole .*got 2.5 of 9"),
        (torch.tensor([10.0, 9.0]), r"counts of 'missed' must be whole .*got 10 of 9"),
        (torch.ones(3), r"statistics of 'missed' must be successes, then trials .*got 3 entries"),
    ],
)
def test_counts_must_be_counts(value, message):
    constraints = registry(from_statistics=rate)
    with pytest.raises(ValueError, match=message):
        certify(constraints, returning(value), [0], kinds={"missed": Rates()})


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Mean(0, 1), torch.tensor([0.5, 1.5]), r"values of 'missed' must be in \[0, 1\], got 1.5"),
        (Mean(0, 1), torch.tensor([-2.0]), r"values of 'missed' must be in \[0, 1\], got -2"),
        (Mean(0, 1), torch.tensor([math.inf]), "values of 'missed' must be finite .*, got inf"),
        (Mean(0, 1), torch.zeros(0), "group 0 of 'missed' must have samples, got none"),
        (Mean(0, 1), [torch.ones(1)] * 2, "values of 'missed' must be 1 vectors .*, got 2"),
        (Mean(0, 1, (0.1, 0.2)), torch.ones(3), "bound of 'missed' must have 1 entries, got 2"),
        (Rates(), torch.tensor([0.5]), "values of 'missed' must be 0 or 1, got 0.5"),
        (Rates(), torch.tensor([1.0]), "bound of 'missed' must be stated in Rates, got None"),
        (Rates(0.1), (torch.tensor([0.0]), torch.tensor([0.0])), "group 0 of 'missed' must have"),
        (
            Rates(0.1),
            (torch.tensor([0.3]), torch.tensor([5.5])),
            "counts of 'missed' must be whole",
        ),
    ],
)
def test_values_must_fit_their_kind(kind, value, message):
    with pytest.raises(ValueError, match=message):
        certify(registry(), returning(value), [0], kinds={"missed": kind})


@pytest.mark.parametrize("value", [torch.tensor(0.2), torch.ones(3, 1), (torch.ones(1), GOOD)])
def test_a_mean_needs_one_value_per_sample(value):
    with pytest.raises(TypeError, match="values of 'missed' must be a vector with one value per"):
        certify(registry(), returning(value), [0], kinds={"missed": Mean(0, 1)})


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (1.0, 1.0), (-math.inf, 0.0)])
def test_a_mean_without_a_range_is_refused(low, high):
    with pytest.raises(ValueError, match=r"low and high of Mean must be finite .*got"):
        Mean(low, high)


@pytest.mark.parametrize(
    ("fn", "pairs", "message"),
    [
        (lambda s: (s[:1] / s[1:] - 0.1).abs(), None, "entry 0 of 'missed' must rise or fall with"),
        (lambda s: (s[:1] + 1) / (s[1:] + 2), None, "from_statistics of 'missed' must depend on"),
        (rate, [(0, 2)], r"pairs of 'missed' must be positions in 2 statistics, got \(0, 2\)"),
    ],
)
def test_a_function_of_rates_must_be_monotone_and_of_rates(fn, pairs, message):
    constraints = registry(from_statistics=fn)
    with pytest.raises(ValueError, match=message):
        certify(constraints, returning(GOOD), [0], kinds={"missed": Rates(pairs=pairs)})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"constraints": 1}, TypeError, "constraints must be a ConstraintRegistry, got int"),
        ({"constraints": ConstraintRegistry()}, ValueError, "constraints must have at least one"),
        ({"confidence": 1.0}, ValueError, r"confidence must be in \(0, 1\), got 1.0"),
        ({"tolerance": -1.0}, ValueError, "tolerance must be nonnegative and finite, got -1.0"),
        ({"tolerance": {"x": 1.0}}, KeyError, "tolerance has no constraint 'x'"),
        ({"kinds": None}, ValueError, r"kinds must have Rates\(…\) or Mean\(…\) for 'missed'"),
        ({"kinds": {"mised": Rates()}}, KeyError, "kinds has no batch constraint 'mised'"),
        ({"kinds": {"missed": "rate"}}, TypeError, "kind of 'missed' must be Rates or Mean, got"),
        ({"kinds": {"missed": Mean(0, 1)}}, ValueError, "kind of 'missed' must be Rates for"),
        ({"measure": None}, TypeError, "measure must be a function of a batch, got NoneType"),
        ({"measure": lambda batch: {}}, KeyError, "measure must return a value for 'missed'"),
        ({"measure": lambda batch: {"x": GOOD}}, KeyError, "measure has no batch constraint 'x'"),
        ({"loader": None}, TypeError, "loader must be iterable, got NoneType"),
        ({"loader": []}, ValueError, "loader must have at least one batch, got none"),
    ],
)
def test_arguments_are_checked(changes, error, message):
    arguments = {
        "constraints": registry(from_statistics=rate),
        "measure": returning(GOOD),
        "loader": [0],
        "kinds": {"missed": Rates()},
        **changes,
    }
    with pytest.raises(error, match=message):
        certify(**arguments)


def test_an_equality_of_the_batch_needs_a_tolerance():
    constraints = ConstraintRegistry()
    constraints.equality("missed", size=1, from_statistics=rate)
    with pytest.raises(ValueError, match="tolerance of 'missed' must be positive for an equality"):
        certify(constraints, returning(GOOD), [0], kinds={"missed": Rates()})


def test_a_function_that_is_not_finite_is_refused():
    constraints = ConstraintRegistry()
    constraints.inequality("budget", lambda: torch.tensor([math.nan]))
    with pytest.raises(ValueError, match="constraint 'budget' must be finite, got nan or inf"):
        certify(constraints)


def test_a_model_in_training_mode_is_refused_wherever_it_hides():
    network = nn.Linear(2, 1)
    constraints, kinds = registry(from_statistics=rate), {"missed": Rates()}

    def measure(batch):
        return {"missed": torch.stack([(network(batch) > 9).sum(), torch.tensor(len(batch))]) * 1.0}

    class Measure(nn.Linear):
        def forward(self, batch):
            return {"missed": GOOD}

        def method(self, batch):
            return {"missed": GOOD}

    data, module = [torch.ones(4, 2)], Measure(1, 1)
    with pytest.raises(ValueError, match=r"network must be in evaluation mode \(call network.eval"):
        certify(constraints, measure, data, kinds=kinds)
    with pytest.raises(ValueError, match="model must be in evaluation mode"):
        certify(constraints, returning(GOOD), data, kinds=kinds, model=network)
    with pytest.raises(ValueError, match="measure must be in evaluation mode"):
        certify(constraints, module, data, kinds=kinds)
    with pytest.raises(ValueError, match=r"measure\.__self__ must be in evaluation mode"):
        certify(constraints, module.method, data, kinds=kinds)
    network.eval()
    assert certify(constraints, measure, data, kinds=kinds)["missed"][0].samples == 4


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    original = importlib.import_module

    def missing(name, *arguments):
        if name.startswith("scipy"):
            raise ImportError(name)
        return original(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        ImportError, match=r"certify needs scipy; pip install 'torch-powalm\[certify"
    ):
        certify(registry(from_statistics=rate), returning(GOOD), [0], kinds={"missed": Rates()})
