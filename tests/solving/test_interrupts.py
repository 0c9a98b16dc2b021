"""Ctrl-C in every part of a solve: the run ends, and what it has reached is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.problems import vector
from torch_powalm import Problem, Status, power_alm, prox, solvers
from torch_powalm.result import OuterRecord, Solution
from torch_powalm.solving import outer_loop

F64 = torch.float64


class CtrlC:
    """A function that raises KeyboardInterrupt: once, or whenever it is called from then on.

    Args:
        function: the function.
        call: the call that raises, counted among those that `file` makes.
        file: count only calls below a function of this file; "" for all calls.
        always: raise at all later calls too.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], call: int, file: str = "", always: bool = False
    ) -> None:
        self.function, self.call, self.file, self.always = function, call, file, always
        self.calls = 0
        self.after = 0  # calls after the first interrupt

    def __call__(self, x: Tensor) -> Tensor:
        self.after += self.calls >= self.call
        if _is_below(self.file):
            self.calls += 1
            if self.calls == self.call or (self.always and self.calls > self.call):
                raise KeyboardInterrupt
        return self.function(x)


def _is_below(file: str) -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def assert_kept(problem: Problem, solution: Solution, records: int | None = None) -> None:
    """It ended by Ctrl-C, with a certificate of its point."""
    assert solution.status is Status.INTERRUPTED
    assert solution.residuals == pytest.approx(problem.residuals(solution.x, solution.y), rel=1e-12)
    if records is not None:
        assert len(solution.records) == records


def quartic(f: Callable[[Tensor], Tensor]) -> Problem:
    return Problem(f, equality=lambda x: x[:1] - 1)


def quartic_f(x: Tensor) -> Tensor:
    return 0.25 * (x**4).sum() + 0.5 * (x @ x)


INNER = {
    "panoc.py": solvers.PANOC(),
    "spectral.py": solvers.Spectral(),
    "upfag.py": solvers.UPFAG(),
    "adaptive_gradient.py": solvers.AdaptiveGradient(),
    "accelerated_gradient.py": solvers.AcceleratedGradient(),
    "from_torch.py": solvers.FromTorch(torch.optim.SGD, lr=1e-3),
}


@pytest.mark.parametrize("file", INNER)
def test_in_an_inner_solver_it_keeps_the_last_iterate(file: str) -> None:
    seen: list[Tensor] = []

    class Watched:
        def iterate(self, *args: Any) -> Any:
            for iterate in INNER[file].iterate(*args):
                seen.append(iterate.x.clone())
                yield iterate

    problem = quartic(CtrlC(quartic_f, 12, file))
    settings = {"beta_1": 1.0, "lam": 1e-9}  # a long first subproblem
    solution = power_alm(problem, vector(30, -10), solver=Watched(), **settings)
    assert_kept(problem, solution, records=1)
    assert solution.records[0].inner_status is Status.INTERRUPTED
    assert solution.records[0].inner_iterations == len(seen)
    assert torch.equal(solution.state["x"], seen[-1])
    rest = power_alm(quartic(quartic_f), solution.state["x"], state=solution.state)
    assert rest.converged


def test_before_the_first_iterate_it_changes_nothing() -> None:
    x_1 = vector(30, -10)
    problem = quartic(CtrlC(quartic_f, 1, "inner_tolerance.py"))
    solution = power_alm(problem, x_1, beta_1=1.0)
    assert_kept(problem, solution, records=0)
    assert torch.equal(solution.state["x"], x_1)
    whole, rest = (
        power_alm(quartic(quartic_f), x_1, beta_1=1.0, state=state)
        for state in (None, solution.state)
    )
    assert torch.equal(whole.x, rest.x)
    assert [record.beta for record in whole.records] == [record.beta for record in rest.records]


@pytest.mark.parametrize("iterates", [0, 2])
def test_nested_in_a_proximal_point_it_ends_the_run(iterates: int) -> None:
    seen: list[Tensor] = []

    class Watched(solvers.ProximalPoint):
        def iterate(self, *args: Any) -> Any:
            for iterate in super().iterate(*args):
                seen.append(iterate.x.clone())
                if len(seen) == iterates:
                    f.call = f.calls + 5  # in the midst of the next proximal point
                yield iterate

    f = CtrlC(quartic_f, 5 if iterates == 0 else sys.maxsize, "adaptive_gradient.py")
    problem, x_1 = quartic(f), vector(30, -10)
    solver = Watched(rho=10.0)
    solution = power_alm(problem, x_1, beta_1=1.0, lam=1e-9, solver=solver)
    assert_kept(problem, solution, records=min(iterates, 1))
    assert len(seen) == iterates
    assert f.after <= 6  # what it takes to measure the point
    expected = seen[-1] if iterates else x_1
    assert torch.equal(solution.state["x"], expected)


def ellipse(constraint: Callable[[Tensor], Tensor]) -> Problem:
    """Soon feasible and never stationary enough, so that every certificate tries least squares."""
    return Problem(lambda x: x @ (vector(1, 2, 3) * x), equality=constraint)


def sphere(x: Tensor) -> Tensor:
    return (x @ x - 1).reshape(1)


@pytest.mark.parametrize("file", ["kkt_certificate.py", "least_squares_multipliers.py"])
def test_in_the_certificate_it_keeps_the_point_of_the_subproblem(file: str) -> None:
    settings = {"beta_1": 1.0, "eps_phi": 1e-15, "eps_A": 1e-1, "active_set": False}
    constraint = CtrlC(sphere, 1, file)
    problem = ellipse(constraint)
    solution = power_alm(problem, vector(3, 1, 1), **settings)
    assert_kept(problem, solution)
    assert constraint.after <= 2  # least squares is not tried again
    assert solution.records[-1].inner_status is Status.CONVERGED
    assert solution.records[-1].multiplier == "weight"
    whole = power_alm(ellipse(sphere), vector(3, 1, 1), max_outer=len(solution.records), **settings)
    for name in ("x", "y"):
        assert torch.equal(solution.state[name], whole.state[name])


def test_while_the_point_of_a_subproblem_is_evaluated_it_is_evaluated_again() -> None:
    class OneStep:
        def iterate(self, psi: Any, g: Any, x: Tensor, tol: float) -> Any:
            z = x - 0.01 * psi.value_and_grad(x)[1]
            f.call = f.calls + 1  # the next evaluation is that of the point found
            yield solvers.Iterate(z, tol, 0.0)

    f = CtrlC(quartic_f, sys.maxsize, "outer_loop.py")
    problem, x_1 = quartic(f), vector(30, -10)
    solution = power_alm(problem, x_1, beta_1=1.0, solver=OneStep())
    assert_kept(problem, solution, records=1)
    assert not torch.equal(solution.state["x"], x_1)
    assert solution.records[0].inner_status is Status.CONVERGED


def box_qp(f: Callable[[Tensor], Tensor]) -> Problem:
    return Problem(f, equality=lambda x: x.sum().reshape(1) - 1, g=prox.Box(-1.0, 1.0))


def box_f(x: Tensor) -> Tensor:
    weights = torch.linspace(1, 30, len(x), dtype=F64)
    return 0.5 * (x * weights) @ x - weights.sqrt() @ x


@pytest.mark.parametrize("call", [1, 3])
def test_in_the_active_set_method_it_keeps_the_point_before(call: int) -> None:
    f = CtrlC(box_f, call, "active_set.py")
    problem, x_1 = box_qp(f), torch.zeros(6, dtype=F64)
    solution = power_alm(problem, x_1, solver=solvers.PANOC())
    assert_kept(problem, solution, records=2)
    assert f.after <= 1  # the certificate above
    assert solution.records[-1].multiplier != "active set"
    settings = {"solver": solvers.PANOC(), "active_set": False, "max_outer": 2}
    plain = power_alm(box_qp(box_f), x_1, **settings)
    assert torch.equal(solution.state["x"], plain.state["x"])
    assert torch.equal(solution.state["y"], plain.state["y"])


def test_in_the_restoration_it_keeps_the_point_before() -> None:
    # Every gradient vanishes at 0: the run leaves it by a restoration.
    constraint = CtrlC(sphere, 4, "feasibility_restoration.py")
    problem = Problem(lambda x: 0.5 * x[0] ** 2 + x[1] ** 2, equality=constraint)
    solution = power_alm(problem, vector(0, 0))
    assert_kept(problem, solution)
    assert len(solution.records) >= 1
    assert constraint.after <= 1
    rest = power_alm(
        Problem(lambda x: 0.5 * x[0] ** 2 + x[1] ** 2, equality=sphere),
        solution.state["x"],
        state=solution.state,
    )
    assert rest.converged


def test_in_a_callback_it_keeps_the_record() -> None:
    def callback(record: OuterRecord, x: Tensor) -> None:
        raise KeyboardInterrupt

    problem = quartic(quartic_f)
    settings = {"eps_phi": 1e-12, "eps_A": 1e-12, "active_set": False}
    solution = power_alm(problem, vector(30, -10), callback=callback, **settings)
    assert_kept(problem, solution, records=1)
    assert solution.records[0].inner_status is Status.CONVERGED


@pytest.mark.parametrize("call", [2, 12, 40])
def test_again_and_again_it_still_returns_a_solution(call: int) -> None:
    f = CtrlC(quartic_f, call, "outer_loop.py", always=True)
    settings = {"eps_phi": 1e-12, "eps_A": 1e-12, "active_set": False}
    solution = power_alm(quartic(f), vector(30, -10), beta_1=1.0, **settings)
    assert solution.status is Status.INTERRUPTED
    assert solution.x.isfinite().all()


def test_before_the_first_point_is_known_it_passes_to_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        power_alm(quartic(CtrlC(quartic_f, 1)), vector(30, -10))


def test_in_a_run_of_a_solver_alone_it_passes_to_the_caller() -> None:
    class Interrupted:
        def value(self, x: Tensor) -> float:
            raise KeyboardInterrupt

        def value_and_grad(self, x: Tensor) -> tuple[float, Tensor]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solvers.run(solvers.PANOC(), Interrupted(), prox.Zero(), vector(1, 2), tol=1e-3, max_iter=9)


class CtrlCInBackward(torch.autograd.Function):
    """The identity; backward has done its work when Ctrl-C comes."""

    armed = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        if CtrlCInBackward.armed:
            CtrlCInBackward.armed = False
            raise KeyboardInterrupt
        return grad


def test_a_point_whose_gradient_was_cut_short_can_be_asked_again() -> None:
    f = lambda x: (CtrlCInBackward.apply(x) ** 3).sum()  # noqa: E731
    at = Problem(f).oracle.at(vector(1, 2))
    CtrlCInBackward.armed = True
    with pytest.raises(KeyboardInterrupt):
        at.gradient(vector())
    assert at.gradient(vector()).tolist() == [3.0, 12.0]


def test_while_the_solution_is_certified_it_is_certified_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solution, calls = outer_loop.OuterLoop.solution, [0]

    def interrupted(self: outer_loop.OuterLoop) -> Solution:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return solution(self)

    monkeypatch.setattr(outer_loop.OuterLoop, "solution", interrupted)
    assert power_alm(quartic(quartic_f), vector(3, -1)).converged
