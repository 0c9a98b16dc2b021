"""margin="auto": as strict as a certificate needs, from data that the certificate may not use."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_powalm import (
    ConstraintRegistry,
    ConstraintWarning,
    HeldOut,
    Mean,
    PowerALMOptimizer,
    Rates,
    certify,
)
from torch_powalm.certification.binomial_bounds import (
    Counts,
    disjoint_bound,
    union_bound,
    upper_rate,
)
from torch_powalm.certification.quantity import RateQuantity, mean_quantity


def rate_quantity(k, n, asked):
    return RateQuantity(union_bound, lambda r: r[..., 0], [1], [Counts(k, n)], asked).quantity()


@pytest.mark.parametrize(("asked", "n", "ratio"), [(0.05, 1000, 1.0), (0.1, 400, 3.0)])
def test_a_certificate_holds_about_as_often_as_the_power_says(asked, n, ratio):
    """The estimate of the margin data is at the target; certificates come from new samples."""
    generator, power = np.random.default_rng(0), 0.9
    allowance = rate_quantity(0.8 * asked * n, n, asked).allowance(0.05, 1 - power, ratio)
    target, holds = asked - allowance, 0
    for _ in range(2000):
        truth = generator.normal(target, math.sqrt(target * (1 - target) / n))
        new = round(ratio * n)
        errors = generator.binomial(new, max(truth, 0.0))
        holds += upper_rate(Counts(errors, new), 0.05) <= asked
    assert power - 0.04 <= holds / 2000 <= power + 0.06


def test_the_allowance_of_a_rate_does_not_depend_on_where_the_model_is():
    found = [rate_quantity(k, 1000, 0.1).allowance(0.05, 0.05, 1.0) for k in (0, 30, 500, 1000)]
    assert found == pytest.approx([found[0]] * 4, rel=1e-4)
    assert 0.02 < found[0] < 0.05


def test_the_allowance_of_a_difference_is_finite_where_too_few_samples_leave_no_target():
    gap = lambda r: r[..., 0] - r[..., 1]  # noqa: E731
    groups = [Counts(1, 4), Counts(2, 5)]
    few = RateQuantity(disjoint_bound, gap, [1, -1], groups, -0.9).quantity()
    assert 0 < few.allowance(0.05, 0.05, 1.0) < 2


def test_the_allowance_of_a_mean_shrinks_with_the_size_of_the_certificate():
    x = np.random.default_rng(0).random(500)
    one, four = (mean_quantity(x, 0.0, 1.0, 0.6).allowance(0.05, 0.05, r) for r in (1.0, 4.0))
    normal = 1.645 * x.std() / math.sqrt(500)
    assert normal * (1 + math.sqrt(2)) < one < 1.6 * normal * (1 + math.sqrt(2))
    assert 0.5 * one < four < 0.75 * one


def classifier(bound=0.2, positives=400):
    """A registry, a model that scores by its bias alone, and (score, label) data."""
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    model.weight.requires_grad_(False)
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - bound)

    def measure(batch):
        missed = model(batch[0]).squeeze(1) <= 0
        return {"missed": torch.stack([missed.sum(), torch.tensor(len(missed))]).float()}

    def data(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(positives, 1, generator=generator)
        return DataLoader(TensorDataset(x), 100)

    return model, constraints, measure, data


def train(model, constraints, data, steps=400, **settings):
    base = torch.optim.SGD([model.bias], lr=0.5)
    optimizer = PowerALMOptimizer(base, constraints, total_steps=steps, **settings)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = [batch for _ in range(steps // len(data)) for batch in data]
    for (x,) in batches:
        optimizer.zero_grad()
        scores = model(x).squeeze(1)
        count = torch.tensor(float(len(x)))
        smooth, missed = torch.sigmoid(-2 * scores).sum(), (scores <= 0).float().sum()
        loss = nn.functional.softplus(scores).mean()
        strict = {"missed": torch.stack([missed, count])}
        missed = torch.stack([smooth, count])
        optimizer.augment(loss, missed=missed, strict=strict).backward()
        optimizer.step()
        scheduler.step()
    return optimizer


def test_a_training_with_margin_ends_where_its_held_out_data_ask_for():
    model, constraints, measure, data = classifier()
    margin_data, kinds = data(1), {"missed": Rates()}
    held_out = HeldOut(measure, margin_data, kinds=kinds)
    optimizer = train(model, constraints, data(0), margin="auto", held_out=held_out)
    target = 0.2 - rate_quantity(40, 400, 0.2).allowance(0.05, 0.05, 1.0)
    with torch.no_grad():
        found = sum(measure(batch)["missed"] for batch in margin_data)
    assert float(found[0] / found[1]) == pytest.approx(target, abs=0.03)
    assert float(optimizer.margins()["missed"]) > 0.03
    assert constraints.violations()["missed"].max == 0  # of what was asked for
    model.eval()
    assert certify(constraints, measure, data(2), kinds=kinds).holds
    with pytest.raises(ValueError, match="must have no samples of the margins' held-out data, got"):
        certify(constraints, measure, margin_data, kinds=kinds)
    part = DataLoader(TensorDataset(margin_data.dataset.tensors[0][390:]))
    with pytest.raises(ValueError, match="of the margins' held-out data, got 10 samples in common"):
        certify(constraints, measure, part, kinds=kinds)


def test_measuring_margins_leaves_modes_and_random_numbers_alone():
    model, constraints, measure, data = classifier()
    layers = nn.Sequential(model, nn.Dropout(0.5).eval())
    shuffled = DataLoader(data(1).dataset, 100, shuffle=True)
    modes = []

    def watched(batch):
        modes.append((layers.training, model.training, layers[1].training))
        return measure(batch)

    held_out = HeldOut(watched, shuffled, kinds={"missed": Rates()}, model=layers)
    before = torch.get_rng_state()
    held_out.margins(constraints, {"missed": torch.zeros(1)}, {"missed": torch.zeros(1)})
    assert torch.equal(torch.get_rng_state(), before)
    assert set(modes) == {(False, False, False)}
    assert (layers.training, model.training, layers[1].training) == (True, True, False)


def test_margins_are_never_negative_and_share_the_error_among_constraints_at_work():
    constraints = ConstraintRegistry()
    constraints.inequality("rates", size=2, from_statistics=lambda s: s[:2] / s[2:] - 0.1)
    measure = lambda batch: {"rates": torch.tensor([50.0, 50.0, 1000.0, 1000.0])}  # noqa: E731
    held_out = HeldOut(measure, [0], kinds={"rates": Rates()})
    values, needed = {"rates": torch.tensor([-0.05, 0.5])}, []
    for y in ([1.0, 0.0], [1.0, 1.0]):
        found = held_out.margins(constraints, values, {"rates": torch.tensor(y)})["rates"]
        assert found[1] == 0  # the training data are worse than the held-out data
        needed.append(float(found[0]))
    assert needed[0] == pytest.approx(rate_quantity(50, 1000, 0.1).allowance(0.05, 0.05, 1.0))
    assert needed[1] == pytest.approx(rate_quantity(50, 1000, 0.1).allowance(0.025, 0.025, 1.0))


def test_a_resumed_training_has_the_same_margins():
    def parts(state=None):
        model, constraints, measure, data = classifier()
        held_out = HeldOut(measure, data(1), kinds={"missed": Rates()})
        return model, constraints, data(0), {"margin": "auto", "held_out": held_out}

    model, constraints, data, settings = parts()
    optimizer = train(model, constraints, data, 60, **settings)
    state = copy.deepcopy(optimizer.state_dict())
    assert float(optimizer.margins()["missed"]) > 0
    model, constraints, data, settings = parts()
    base = torch.optim.SGD([model.bias], lr=0.5)
    again = PowerALMOptimizer(base, constraints, **settings)
    again.load_state_dict(state)
    assert torch.equal(again.margins()["missed"], optimizer.margins()["missed"])
    assert again.state_dict()["powalm"]["margin"] == state["powalm"]["margin"]
    old = {**state, "powalm": {k: v for k, v in state["powalm"].items() if k != "margin"}}
    again.load_state_dict(old, strict=False)  # a checkpoint from before margins
    for wrong in (-1, math.nan, None, torch.zeros(3), torch.zeros(3, device="meta")):
        state["powalm"]["margin"]["measured_at"] = wrong
        with pytest.raises(ValueError, match="'measured_at'"):
            again.load_state_dict(state)


def test_a_certificate_among_candidates_divides_its_error():
    _, constraints, measure, data = classifier()
    held_out = HeldOut(measure, data(1), kinds={"missed": Rates()})
    certificate = held_out.certificate(constraints, candidates=10)
    assert certificate.confidence == pytest.approx(0.995)
    with pytest.raises(ValueError, match="candidates must be a positive integer, got 0"):
        held_out.certificate(constraints, candidates=0)


def test_too_few_samples_for_any_certificate_are_said_once():
    _, constraints, measure, data = classifier(bound=0.02, positives=50)
    held_out = HeldOut(measure, data(1), kinds={"missed": Rates()})
    zeros = {"missed": torch.zeros(1)}
    said = r"certificate of 'missed', entry 0, from 50 samples cannot hold: it needs at least 149"
    with pytest.warns(ConstraintWarning, match=said):
        held_out.margins(constraints, zeros, zeros)
    held_out.margins(constraints, zeros, zeros)


def constant(batch):
    return {"missed": torch.tensor([1.0, 9.0])}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"measure": None}, TypeError, "measure must be a function of a batch, got NoneType"),
        ({"confidence": 0.0}, ValueError, r"confidence must be in \(0, 1\), got 0.0"),
        ({"power": 1.0}, ValueError, r"power must be in \(0, 1\), got 1.0"),
        ({"relative_size": 0}, ValueError, "relative_size must be positive and finite, got 0"),
        ({"loader": iter([0])}, TypeError, "loader must be iterable more than once, got"),
        ({"loader": None}, TypeError, "loader must be iterable more than once, got NoneType"),
    ],
)
def test_arguments_of_held_out_are_checked(changes, error, message):
    arguments = {"measure": constant, "loader": [0], "kinds": {"missed": Rates()}, **changes}
    with pytest.raises(error, match=message):
        HeldOut(**arguments)


def test_held_out_data_of_the_training_are_refused():
    rows = torch.zeros(8, 2)
    with pytest.raises(ValueError, match=r"loader must have no samples of seen\[0\], got 2"):
        HeldOut(constant, [rows[6:]], kinds={"missed": Mean(0, 1)}, seen=[[rows]])
