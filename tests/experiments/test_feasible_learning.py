"""Feasible learning in small: bounds on the loss of every sample."""

import sys

import pytest

from experiments.data.images import Source
from experiments.feasible_learning import run_feasible_learning
from experiments.feasible_learning.sample_training import samples, train

pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")


def test_bounds_on_every_sample_lower_the_largest_loss():
    data = samples(Source("fashion_mnist").load(), 200)
    plain, ours = (train(method, data, 0.3, 40, 0) for method in ("plain", "ours, nothing set"))
    assert ours.maximum < 0.7 * plain.maximum
    assert ours.quantile < plain.quantile


def test_the_report_has_a_row_for_every_method(tmp_path, monkeypatch):
    output = tmp_path / "report.md"
    arguments = ["--first", "64", "--epochs", "1", "--seeds", "1", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["feasible", *arguments])
    run_feasible_learning.main()
    rows = [line for line in output.read_text().splitlines() if "MNIST |" in line]
    assert len(rows) == 2 * len(run_feasible_learning.methods())
