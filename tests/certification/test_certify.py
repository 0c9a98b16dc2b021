"""certify: verdicts, simultaneous bounds, sample sizes, files and figures."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from torch_powalm import Certificate, ConstraintRegistry, Mean, Rates, certify
from torch_powalm.certification.binomial_bounds import Counts, upper_rate
from torch_powalm.certification.quantity import Quantity
from torch_powalm.certification.simultaneous import holm_bounds


def missed(bound=0.05):
    constraints = ConstraintRegistry()
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - bound)
    return constraints


def counts(*sums):
    return lambda batch: {"missed": torch.tensor(sums, dtype=torch.float32)}


def test_a_rate_below_its_bound_holds_with_the_exact_bound():
    certificate = certify(missed(), counts(10, 500), range(2), kinds={"missed": Rates()})
    (entry,) = certificate["missed"]
    assert (entry.verdict, entry.samples, entry.enough) == ("holds", 1000, None)
    assert entry.estimate == pytest.approx(0.02)
    assert entry.asked == pytest.approx(0.05)
    assert entry.upper == pytest.approx(upper_rate(Counts(20, 1000), 0.05), rel=1e-9)
    assert certificate.holds
    assert certificate.excess < 0


def test_a_rate_above_its_bound_does_not_hold():
    certificate = certify(missed(), counts(60, 1000), [0], kinds={"missed": Rates()})
    assert certificate["missed"][0].verdict == "does not hold"
    assert not certificate.holds
    assert certificate.excess > 0


@pytest.mark.parametrize("errors", [0, 1, 2])
def test_fifty_positives_are_not_enough_for_two_percent(errors):
    certificate = certify(missed(0.02), counts(errors, 50), [0], kinds={"missed": Rates()})
    (entry,) = certificate["missed"]
    assert entry.verdict == "not enough data"
    needed = math.ceil(math.log(0.05) / math.log(0.98))
    assert entry.enough == needed == 149  # without a single error


def test_the_stated_number_of_samples_is_enough_and_half_of_it_is_not():
    entry = certify(missed(), counts(6, 200), [0], kinds={"missed": Rates()})["missed"][0]
    assert entry.verdict == "not enough data"
    for samples, verdict in ((entry.enough, "holds"), (entry.enough // 2, "not enough data")):
        errors = math.ceil(0.03 * samples)
        again = certify(missed(), counts(errors, samples), [0], kinds={"missed": Rates()})
        assert again["missed"][0].verdict == verdict


@pytest.mark.parametrize("form", ["ones", "pairs", "statistics", "interleaved"])
def test_every_form_of_a_rate_gives_the_same_certificate(form):
    generator = torch.Generator().manual_seed(0)
    wrong = [(torch.rand(100, generator=generator) < 0.02).float() for _ in range(5)]
    constraints, kind = ConstraintRegistry(), Rates(bound=0.05)
    if form == "statistics":
        constraints = missed()
    elif form == "interleaved":
        kind = Rates(pairs=[(1, 0)])
        constraints.inequality("missed", size=1, from_statistics=lambda s: s[1:] / s[:1] - 0.05)
    else:
        constraints.inequality("missed", size=1)
    measure = {
        "ones": lambda batch: {"missed": batch},
        "pairs": lambda batch: {"missed": (batch.mean() - 0.05, torch.tensor(100.0))},
        "statistics": lambda batch: {"missed": torch.stack([batch.sum(), torch.tensor(100.0)])},
        "interleaved": lambda batch: {"missed": torch.stack([torch.tensor(100.0), batch.sum()])},
    }[form]
    (entry,) = certify(constraints, measure, wrong, kinds={"missed": kind})["missed"]
    errors = int(torch.cat(wrong).sum())
    assert entry.samples == 500
    assert entry.estimate == pytest.approx(errors / 500)
    assert entry.upper == pytest.approx(upper_rate(Counts(errors, 500), 0.05), rel=1e-9)


def parity(limit=0.1):
    constraints = ConstraintRegistry()

    def value(s):
        (a, b), (n, m) = s.chunk(2)
        return torch.stack([a / n - b / m, b / m - a / n]) - limit

    constraints.inequality("parity", size=2, from_statistics=value)
    return constraints


def test_parity_is_bounded_in_both_directions_and_tighter_for_disjoint_groups():
    measure = lambda batch: {"parity": torch.tensor([150.0, 290.0, 500.0, 1000.0])}  # noqa: E731
    wide = certify(parity(), measure, [0], kinds={"parity": Rates()})
    tight = certify(parity(), measure, [0], kinds={"parity": Rates(disjoint=True)})
    for entry, sign in zip(tight, (1, -1), strict=True):
        assert entry.estimate == pytest.approx(0.01 * sign)
        assert entry.asked == pytest.approx(0.1)
        assert entry.samples == 1500
    assert all(a.upper <= b.upper for a, b in zip(tight, wide, strict=True))
    assert tight.holds


@pytest.mark.parametrize(("successes", "verdict"), [(480, "holds"), (390, "does not hold")])
def test_a_ratio_of_rates_is_judged(successes, verdict):
    constraints = ConstraintRegistry()
    ratio = lambda s: 0.8 - (s[:1] / s[2:3]) / (s[1:2] / s[3:])  # noqa: E731
    constraints.inequality("ratio", size=1, from_statistics=ratio)
    measure = lambda batch: {"ratio": torch.tensor([successes, 500.0, 900.0, 900.0])}  # noqa: E731
    (entry,) = certify(constraints, measure, [0], kinds={"ratio": Rates(disjoint=True)})["ratio"]
    assert entry.verdict == verdict
    assert entry.estimate == pytest.approx(0.8 - successes / 500)


def class_losses():
    constraints = ConstraintRegistry()
    constraints.inequality("class_loss", size=2)
    return constraints


def test_means_of_two_groups_are_bounded_together():
    generator = torch.Generator().manual_seed(0)
    data = [[torch.rand(n, generator=generator) for n in (40, 60)] for _ in range(10)]
    kinds = {"class_loss": Mean(0.0, 1.0, bound=0.58)}
    certificate = certify(class_losses(), lambda batch: {"class_loss": batch}, data, kinds=kinds)
    assert [e.samples for e in certificate] == [400, 600]
    assert certificate.holds
    assert all(0.5 < e.upper < 0.58 for e in certificate)


def test_an_equality_of_the_batch_holds_within_its_tolerance():
    constraints = ConstraintRegistry()
    constraints.equality("quota", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.12)
    measure = lambda batch: {"quota": torch.tensor([480.0, 4000.0])}  # noqa: E731
    for tolerance, holds in ((0.02, True), (0.005, False)):
        certificate = certify(
            constraints, measure, [0], kinds={"quota": Rates()}, tolerance=tolerance
        )
        assert certificate.holds == holds
        assert [e.estimate for e in certificate] == pytest.approx([0.12, -0.12])
        assert [e.asked for e in certificate] == pytest.approx([0.12 + tolerance, tolerance - 0.12])


def test_functions_of_the_parameters_are_checked_exactly_and_cost_no_confidence():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    constraints = missed()
    constraints.equality("unit_rows", lambda: layer.weight.norm(dim=1) - 1)
    constraints.inequality("budget", lambda: layer.weight.abs().sum() - 2.0)
    kinds = {"missed": Rates()}
    certificate = certify(
        constraints, counts(20, 1000), [0], kinds=kinds, tolerance={"unit_rows": 1e-6}
    )
    assert certificate["missed"][0].upper == pytest.approx(upper_rate(Counts(20, 1000), 0.05))
    assert certificate["unit_rows"][0].verdict == "holds"
    budget = certificate["budget"][0]
    assert (budget.verdict, budget.samples) == ("does not hold", None)
    assert budget.estimate == pytest.approx(0.4, rel=1e-6)


def normal(estimate, asked):
    """A quantity with deviation 1."""
    from scipy.special import ndtri

    upper = lambda alpha: estimate - ndtri(alpha)  # noqa: E731
    return Quantity(estimate, asked, 1, upper, lambda alpha: 1, lambda alpha: False, max)


def test_holm_settles_more_than_bonferroni_and_covers():
    """Three true violations and one constraint that is met by far; errors of any kind ≤ 10 %."""
    generator, wrong, settled = np.random.default_rng(0), 0, 0
    truth, asked = np.array([0.0, 0.0, 0.0, -3.2]), np.array([-0.01, -0.01, -0.01, 0.0])
    for _ in range(2000):
        estimates = truth + generator.standard_normal(4)
        quantities = [normal(e, a) for e, a in zip(estimates, asked, strict=True)]
        bounds, _ = holm_bounds(quantities, 0.1)
        wrong += bool((np.array(bounds) < truth).any())
        settled += bounds[3] <= 0
    assert 0.05 < wrong / 2000 <= 0.1
    assert settled / 2000 > 0.8


def test_bounds_agree_with_verdicts_in_every_case_of_holm():
    assert holm_bounds([], 0.05) == ([], 0.05)
    bounds, level = holm_bounds([normal(-5.0, 0.0), normal(-1.8, 0.0)], 0.05)  # 1.96, then 1.645
    assert level == 0.025
    assert bounds == pytest.approx([-5.0 + 1.96, 0.0], abs=1e-3)
    bounds, level = holm_bounds([normal(-5.0, 0.0), normal(-1.0, 0.0)], 0.05)
    assert level == 0.05
    assert bounds == pytest.approx([0.0, 0.645], abs=1e-3)
    bounds, level = holm_bounds([normal(-1.0, 0.0), normal(-1.0, 0.0)], 0.05)
    assert bounds == pytest.approx([0.96, 0.96], abs=1e-3)


def test_a_certificate_is_saved_loaded_printed_and_plotted(tmp_path):
    constraints = missed()
    constraints.inequality("budget", lambda: torch.ones(1))
    certificate = certify(constraints, counts(6, 200), [0], kinds={"missed": Rates()})
    certificate.save(tmp_path / "certificate.json")
    assert Certificate.load(tmp_path / "certificate.json") == certificate
    assert json.loads((tmp_path / "certificate.json").read_text())["confidence"] == 0.95
    certificate.plot(tmp_path / "certificate.png")
    assert (tmp_path / "certificate.png").stat().st_size > 0
    lines = str(certificate).splitlines()
    assert (
        lines[0].split() == "constraint estimate upper bound asked verdict samples enough".split()
    )
    upper, enough = certificate["missed"][0].upper, certificate["missed"][0].enough
    assert lines[1].split()[:4] == ["missed[0]", "0.03", f"{upper:.4g}", "0.05"]
    assert lines[1].split()[4:] == ["not", "enough", "data", "200", str(enough)]
    assert "exact" in lines[2]
    assert lines[-1] == "not all constraints hold, at 0.95 simultaneous confidence"
    with pytest.raises(KeyError, match="certificate has no constraint 'misst'"):
        certificate["misst"]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"path must be a certificate of format 1, got '.*other"):
        Certificate.load(tmp_path / "other.json")
