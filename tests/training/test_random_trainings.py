"""Random trainings against a loop written by hand: a part of `make attack`."""

import random

import pytest

from experiments.attacks import trainings
from experiments.attacks.findings import FindingError
from experiments.attacks.random_case import BASES, Case
from experiments.attacks.trainings import attack_by_hand


@pytest.mark.parametrize("seed", range(8))
def test_a_random_training_agrees_with_a_loop_written_by_hand(seed):
    outcomes = [attack_by_hand(random.Random(f"{seed} {i}")) for i in range(3)]
    assert all("units" in outcome for outcome in outcomes)


def test_random_trainings_have_all_bases_and_precisions():
    cases = [Case(random.Random(i)) for i in range(400)]
    assert {case.base for case in cases} == set(BASES)
    assert {case.dtype for case in cases} == set(trainings.TOLERANCE)
    assert {block.kind for case in cases for block in case.blocks} == {
        *("static", "value", "counts", "statistics")
    }


def test_a_wrong_multiplier_is_found(monkeypatch):
    update = trainings.ByHand.update

    def wrong(self, part, beta):
        told = update(self, part, beta)
        self.dual.y = self.dual.y * (1 + 1e-6)
        return told

    monkeypatch.setattr(trainings.ByHand, "update", wrong)
    found = 0
    for seed in range(12):
        try:
            attack_by_hand(random.Random(f"wrong {seed}"))
        except FindingError as error:
            found += "differ by" in str(error)
    assert found >= 4
