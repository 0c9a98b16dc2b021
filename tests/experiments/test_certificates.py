"""The experiments on certificates: one row of each table, and a report that follows from them."""

from pathlib import Path

import pytest
import torch

from experiments.certificates import (
    certificates_report,
    coverage,
    held_out_feasibility,
    trade_off_curve,
)
from experiments.certificates.certified_tasks import TASKS

ROOT = Path(__file__).parent.parent.parent / "experiments"


@pytest.mark.filterwarnings("ignore")  # so short a run has few updates
def test_a_small_training_is_certified_in_both_ways():
    row = coverage.row("compas", 0, None)
    assert row["wrong"] == 0
    assert row["least_favorable_wrong"] in (0, 1)  # 1 in at most 5 % of all trainings
    assert 1 < float(row["missed_width"]) < 2


def test_every_method_has_settings_and_a_case_has_four_parts_of_one_population():
    task = TASKS["compas_missed"]
    names = [name for name, *_ in held_out_feasibility.settings(task)]
    assert {"ours, auto", "ours, by hand", "penalty", "unconstrained"} <= set(names)
    case = task.build(task, 0, 0.1, None)
    sizes = [len(part[0]) for part in case.parts.values()]
    assert max(sizes) - min(sizes) <= 1
    sums = torch.tensor([30.0, 100.0])
    assert float(case.asked(sums)) == pytest.approx(0.05)
    (block,) = case.training.constraints
    assert float(block.from_statistics(sums)) == pytest.approx(0.15)


def test_the_report_follows_from_the_tables():
    tables = [
        held_out_feasibility.read(m.KEPT) for m in (coverage, held_out_feasibility, trade_off_curve)
    ]
    assert all(tables)
    assert certificates_report.text(*tables) == (ROOT / "CERTIFICATES.md").read_text()
