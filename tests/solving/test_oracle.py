"""Hand-written and automatic derivatives, and what they cost."""

from __future__ import annotations

import pytest
import torch

from tests.problems import Affine, Quadratic, dual_state, random_data, vector
from torch_powalm.solving.power_alm import power_alm
from torch_powalm.solving.problem import Problem
from torch_powalm.solving.subproblem import Subproblem


@pytest.mark.parametrize("f_by_hand", [False, True])
@pytest.mark.parametrize("equality_by_hand", [False, True])
@pytest.mark.parametrize("inequality_by_hand", [False, True])
def test_hand_written_oracles_and_autograd_agree(
    f_by_hand: bool, equality_by_hand: bool, inequality_by_hand: bool
) -> None:
    c, M, b = random_data()
    f, A, B = Quadratic(c), Affine(M, b), Affine(-M, b - 1)
    plain = Problem(lambda x: f.value_and_grad(x)[0], equality=A.values, inequality=B.values)
    mixed = Problem(
        f if f_by_hand else lambda x: f.value_and_grad(x)[0],
        equality=A if equality_by_hand else A.values,
        inequality=B if inequality_by_hand else B.values,
    )
    x, w = torch.ones_like(c), vector(1, -2, 3, 0.5)
    expected, got = plain.oracle.at(x), mixed.oracle.at(x)
    for _ in range(2):  # the second call does without the graph of the first
        assert torch.allclose(got.gradient(w), expected.gradient(w), rtol=1e-12)
    assert got.f == pytest.approx(expected.f, rel=1e-12)
    assert torch.equal(got.r, expected.r)
    assert mixed.residuals(x, w) == pytest.approx(plain.residuals(x, w), rel=1e-12)


def test_value_and_gradient_at_one_point_cost_one_product() -> None:
    c, M, b = random_data()
    f = Quadratic(c)
    problem = Problem(f, equality=Affine(M, b))
    dual = dual_state(nu=0.8, omega=2.0, beta_max=1e9, y_max=1e9)
    x = torch.zeros_like(c)
    at = problem.oracle.at(x)
    dual.start(at.r)
    psi = Subproblem(problem, dual, at)
    value, grad = psi.value(x), psi.value_and_grad(x)[1]
    assert psi.value_and_grad(x)[0] == value
    assert f.calls == 1
    dual.update(at.r)
    assert not torch.equal(Subproblem(problem, dual, at).value_and_grad(x)[1], grad)
    assert f.calls == 1
    assert psi.value(x + 1) != value
    assert f.calls == 2
    assert problem.oracle.calls.function == problem.oracle.calls.gradient == 2


def test_solution_counts_the_calls_of_the_user() -> None:
    c, M, b = random_data()
    f = Quadratic(c)
    problem = Problem(f, equality=Affine(M, b))
    solution = power_alm(problem, torch.zeros_like(c))
    assert solution.converged
    assert solution.function_calls == solution.gradient_calls == f.calls - 1  # but for the check
    assert solution.records[-1].gradient_calls <= solution.gradient_calls


def test_float32_stays_float32_and_shapes_are_kept() -> None:
    C = torch.diag(torch.tensor([3.0, 1.0, -2.0, 0.5]))
    problem = Problem(
        lambda X: (X * (C @ X)).sum(), equality=lambda X: (X.T @ X - torch.eye(2)).reshape(-1)
    )
    x_1 = torch.ones(4, 2) + torch.arange(8.0).reshape(4, 2) / 8
    solution = power_alm(problem, x_1, eps_phi=1e-3, eps_A=1e-3)
    assert solution.converged
    assert solution.x.dtype == solution.y.dtype == torch.float32
    assert solution.x.shape == (4, 2)
    # The two smallest eigenvalues are −2 and 0.5.
    assert solution.objective == pytest.approx(-1.5, abs=1e-2)
