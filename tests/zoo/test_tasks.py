"""Every entry becomes feasible on a small real task, with nothing set, in two unit systems."""

import pytest

from experiments.zoo_tasks.all_tasks import TASKS
from experiments.zoo_tasks.zoo_task import UNIT_SYSTEMS, run
from torch_powalm import zoo

OTHERS = {"Entry", "HardConcrete", "frozen_copy"}


def runs():
    """Both unit systems; where points can be fixed or sampled, one each."""
    for name in TASKS:
        if "(sampled)" not in name:
            yield name, "natural"
        if "(points)" not in name:
            yield name, "other"


@pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")
@pytest.mark.parametrize(("name", "units"), list(runs()))
def test_an_entry_becomes_feasible(name, units):
    ending = run(TASKS[name], UNIT_SYSTEMS[units])
    assert ending.after <= ending.tolerance


def test_every_entry_has_a_task():
    assert {name.split(" ")[0] for name in TASKS} == set(zoo.__all__) - OTHERS
