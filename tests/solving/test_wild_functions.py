"""Functions that are nan, huge or constant somewhere: a part of `make attack`, and its findings."""

import math
import random

import pytest
from torch import Tensor

from experiments.attacks.wild_solves import attack_wild
from tests.problems import vector
from torch_powalm import Problem, Status, power_alm


@pytest.mark.parametrize("seed", range(4))
def test_random_wild_functions_end_in_an_honest_status(seed: int) -> None:
    outcomes = [attack_wild(random.Random(f"{seed} {i}")) for i in range(12)]
    assert len(set(outcomes)) > 2


def test_a_nan_now_and_then_does_not_reach_the_multipliers() -> None:
    calls = [0]

    def product(x: Tensor) -> Tensor:
        calls[0] += 1
        bad = calls[0] > 3 and calls[0] % 5 == 0
        return (x[0] * x[1] - 1).reshape(1) * (math.nan if bad else 1.0)

    problem = Problem(lambda x: x @ x + x[0], equality=product)
    solution = power_alm(problem, vector(3, -2), nu=0.2, max_gradients=300)
    assert solution.y.isfinite().all()
    assert all(math.isfinite(record.y_norm) for record in solution.records)


def test_huge_values_are_not_taken_for_an_unbounded_objective() -> None:
    problem = Problem(lambda x: 1e30 * x.sin().sum(), equality=lambda x: 0 * x[:1])
    solution = power_alm(problem, vector(0.0), beta_1=1.0, max_gradients=200)
    assert solution.status is not Status.UNBOUNDED


def test_an_objective_without_a_lower_bound_is_still_found() -> None:
    problem = Problem(lambda x: 1e3 * (x[0] - x @ x), equality=lambda x: x[:1] - x[1:])
    assert power_alm(problem, vector(1, 1)).status is Status.UNBOUNDED


def test_constraints_too_small_to_multiply_have_a_first_penalty() -> None:
    problem = Problem(lambda x: x @ x, equality=lambda x: 1e-200 * x.sin())
    assert power_alm(problem, vector(0.5), scale=False, max_gradients=50).x.isfinite().all()
