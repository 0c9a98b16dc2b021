"""How much of its move y makes."""

import pytest

from tests.problems import vector
from torch_powalm.training.integral_gain import integral_part


@pytest.mark.parametrize(("left", "part"), [(40.0, 0.0), (10.0, 1.0)])
def test_y_waits_for_a_far_block_only_if_it_arrives_in_time(left, part):
    before, r, far = vector(10.0), vector(9.0), vector(20.0)  # nine more such updates
    assert integral_part(r, before, far, 0.5, 20, 0.9, left).item() == pytest.approx(part)


def test_y_waits_for_a_near_block_that_the_penalty_halves():
    found = integral_part(vector(0.5), vector(1.0), vector(0.5), 0.5, 20, 0.9, 1.0)
    assert found.item() == 0.0
