"""What a user reads off the optimizer: residuals, violations, records, rules, prox and averages."""

import functools
import gc
import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, Violation, prox


def parameter(*entries):
    return nn.Parameter(torch.tensor(entries, dtype=torch.float64))


def wrapped(params, constraints, lr=0.1, **settings):
    return PowerALMOptimizer(torch.optim.SGD(params, lr), constraints, **settings)


def test_functions_may_be_lambdas_methods_partials_or_decorated():
    class Sphere(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = parameter(1.0, 2.0)

        def excess(self):
            return self.p.square().sum() - 1

    sphere = Sphere()
    constraints = ConstraintRegistry()
    constraints.equality("method", sphere.excess)
    constraints.equality("partial", functools.partial(torch.mul, sphere.p, 2.0))
    constraints.inequality("lambda_", lambda: sphere.p - 1)

    @constraints.inequality("decorated")
    def decorated():
        return sphere.p.sum() - 5

    assert decorated().item() == -2.0  # the decorator hands the function back
    optimizer = wrapped(sphere.parameters(), constraints)
    optimizer.step()
    found = constraints.violations()
    p = sphere.p.detach()
    assert found["method"].max == pytest.approx(abs(p.square().sum().item() - 1))
    assert found["partial"].norm == pytest.approx((2 * p).norm().item())
    assert found["lambda_"].max == pytest.approx(max(0.0, p.max().item() - 1))
    assert found["decorated"] == Violation(0.0, 0.0)


def test_violations_name_max_and_norm_and_records_carry_them():
    p = parameter(3.0, -4.0)
    constraints = ConstraintRegistry()
    constraints.equality("both", lambda: p)
    constraints.inequality("below", lambda: p - 1)
    assert constraints.violations() == {"both": Violation(4.0, 5.0), "below": Violation(2.0, 2.0)}
    record = wrapped([p], constraints, nu=1.0, beta_1=2.0, omega=3.0).update_multipliers()
    assert record.violations == {"both": Violation(4.0, 5.0), "below": Violation(2.0, 2.0)}
    assert record.primal_residual == pytest.approx(math.sqrt(29))
    assert (record.k, record.beta, record.sigma) == (1, 2.0, 2.0)
    assert record.y_norm == pytest.approx(2 * math.sqrt(9 + 16 + 4))  # y = β (A, max(B, 0))
    assert "both 4.00e+00, below 2.00e+00" in str(record)


def test_residuals_are_those_of_the_augmented_lagrangian():
    p, q = parameter(0.5, -2.0), parameter(1.5)
    constraints = ConstraintRegistry()
    constraints.equality("norm", lambda: p.square().sum() - 1)
    constraints.inequality("sum", lambda: p.sum() + q - 1)
    optimizer = wrapped([p, q], constraints, nu=0.6, beta_1=3.0)
    optimizer.update_multipliers()
    optimizer.zero_grad()
    (p.sum() * q).sum().backward()
    before = [p.grad.clone(), q.grad.clone()]
    found = optimizer.residuals()
    assert torch.equal(p.grad, before[0])
    assert torch.equal(q.grad, before[1])
    A, B = p.square().sum() - 1, p.sum() + q - 1
    y, beta = optimizer.dual.y, optimizer.dual.beta
    assert B.item() < 0 == y[1].item()  # inactive: only the equality is in r
    loss = p.sum() * q + y[0] * A + beta / 1.6 * A.abs() ** 1.6
    grads = torch.autograd.grad(loss.sum(), (p, q))
    expected = math.sqrt(sum(g.square().sum().item() for g in grads))
    assert found.dual_residual == pytest.approx(expected, rel=1e-12)
    assert found.primal_residual == pytest.approx(A.abs().item(), rel=1e-12)
    optimizer.backward_constraints()
    assert optimizer.residuals() == pytest.approx(found, rel=1e-12)


def test_residuals_measure_the_distance_to_the_subdifferential_of_a_prox_term():
    p = parameter(0.0, 2.0)
    constraints = ConstraintRegistry()
    constraints.equality("second", lambda: p[1:] - 2)
    optimizer = wrapped([p], constraints, prox={p: prox.NonNegative()})
    p.sum().backward()
    # The gradient (1, 1) is optimal at the bound x_1 = 0 and not at x_2 = 2.
    assert optimizer.residuals() == (pytest.approx(1.0), 0.0)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (prox.NonNegative(), [0.0, 1.9]),
        (prox.Box(-0.5, 1.0), [-0.5, 1.0]),
        (prox.L1(2.0), [-0.9, 1.7]),  # soft threshold by lr · weight = 0.2
        (prox.Ball(1.0), [-1.1 / math.hypot(1.1, 1.9), 1.9 / math.hypot(1.1, 1.9)]),
        (prox.Simplex(), [0.0, 1.0]),
    ],
)
def test_the_prox_follows_the_step_with_the_groups_learning_rate(term, expected):
    p, q = parameter(-1.0, 2.0), parameter(5.0)
    constraints = ConstraintRegistry()
    constraints.equality("free", lambda: q - 5)
    base = torch.optim.SGD([{"params": [p], "lr": 0.1}, {"params": [q], "lr": 7.0}])
    optimizer = PowerALMOptimizer(base, constraints, prox={p: term})
    p.grad = torch.ones(2, dtype=torch.float64)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor(expected, dtype=torch.float64))


def batch_optimizer(p, **kwargs):
    constraints = ConstraintRegistry()
    constraints.equality("mean", size=2)
    return constraints, wrapped([p], constraints, lr=0.0, nu=1.0, beta_1=1.0, omega=1.0)


def observe(optimizer, p, value, **kwargs):
    optimizer.zero_grad()
    value = value if isinstance(value, tuple) else (value, None)
    tensor = p * 0 + torch.tensor(value[0], dtype=torch.float64)
    given = tensor if value[1] is None else (tensor, torch.tensor(value[1]))
    optimizer.augment(p.sum(), mean=given, **kwargs).backward()
    optimizer.step()


def test_the_epoch_averages_weigh_samples():
    p = parameter(0.0, 0.0)
    constraints, optimizer = batch_optimizer(p)
    observe(optimizer, p, [1.0, 0.0], samples=30)
    observe(optimizer, p, [5.0, 2.0], samples=10)
    assert constraints.violations()["mean"].max == pytest.approx(2.0)
    optimizer.update_multipliers()
    assert optimizer.dual.y.tolist() == pytest.approx([2.0, 0.5])
    assert constraints.violations()["mean"].max == pytest.approx(2.0)  # of the last epoch


def test_the_epoch_averages_count_each_entry():
    p = parameter(0.0, 0.0)
    _, optimizer = batch_optimizer(p)
    observe(optimizer, p, ([1.0, math.nan], [3.0, 0.0]))
    observe(optimizer, p, ([5.0, 2.0], [1.0, 4.0]))
    optimizer.update_multipliers()
    assert optimizer.dual.y.tolist() == pytest.approx([2.0, 2.0])


def test_an_entry_that_no_batch_has_seen_keeps_its_multiplier():
    p = parameter(0.0, 0.0)
    _, optimizer = batch_optimizer(p)
    observe(optimizer, p, ([1.0, 3.0], [1.0, 1.0]))
    optimizer.update_multipliers()
    observe(optimizer, p, ([1.0, 7.0], [1.0, 0.0]))
    record = optimizer.update_multipliers()
    assert optimizer.dual.y.tolist() == pytest.approx([2.0, 3.0])
    assert record.primal_residual == pytest.approx(1.0)


def test_an_exact_value_takes_the_place_of_the_average():
    p = parameter(0.0, 0.0)
    _, optimizer = batch_optimizer(p)
    observe(optimizer, p, [1.0, 0.0])
    optimizer.update_multipliers(mean=torch.tensor([-1.0, 4.0], dtype=torch.float64))
    assert optimizer.dual.y.tolist() == [-1.0, 4.0]
    observe(optimizer, p, [1.0, 1.0])
    optimizer.update_multipliers()
    assert optimizer.dual.y.tolist() == [0.0, 5.0]


def test_should_update_by_steps_epochs_and_inexactness():
    p = parameter(1.0, 1.0)
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.sum() - 2)
    optimizer = wrapped([p], constraints, lr=0.5, nu=1.0, beta_1=1.0, omega=2.0)
    assert not optimizer.should_update(lam=1e9)  # no gradient yet
    for k in range(1, 5):
        optimizer.zero_grad()
        (0.5 * (p - 1).square().sum() + 0.001 * p[0]).backward()
        optimizer.step()
        assert optimizer.should_update(steps=3) == (k >= 3)
        assert optimizer.should_update(epochs=2, steps_per_epoch=2) == (k >= 4)
    assert 1e-5 < optimizer.epoch.gradient_norm < 1e-2
    assert optimizer.should_update(lam=1e-2)
    assert not optimizer.should_update(lam=1e-5)
    optimizer.update_multipliers()
    assert not optimizer.should_update(steps=1)
    assert not optimizer.should_update(lam=1e-2)


def test_the_gradient_norm_remembers_nine_tenths():
    p = parameter(0.0)
    constraints = ConstraintRegistry()
    constraints.equality("held", lambda: p * 1.0)  # A = 0 and y = 0: the loss alone has a gradient
    optimizer = wrapped([p], constraints, lr=0.0, beta_1=0.1)
    expected = None
    for slope in (3.0, 5.0, 0.5):
        optimizer.zero_grad()
        (slope * p.sum()).backward()
        optimizer.step()
        expected = slope if expected is None else 0.9 * expected + 0.1 * slope
        assert optimizer.epoch.gradient_norm == pytest.approx(expected, rel=1e-12)
    optimizer.update_multipliers()
    assert optimizer.epoch.gradient_norm == math.inf  # a new epoch has seen no gradient


def test_block_coupling_gives_each_block_its_own_norm():
    p, q = parameter(3.0, 4.0), parameter(0.25)
    constraints = ConstraintRegistry()
    constraints.equality("first", lambda: p)
    constraints.equality("second", lambda: q)
    optimizer = wrapped([p, q], constraints, lr=1.0, nu=0.5, beta_1=1.0, coupling="block")
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([3.0, 4.0]).double() * (1 - 5**-0.5))
    torch.testing.assert_close(q.detach(), torch.tensor([0.25 - 0.5]).double())


def test_two_optimizers_own_their_blocks_of_one_registry():
    p, q = parameter(2.0), parameter(3.0)
    constraints = ConstraintRegistry()
    constraints.equality("first", lambda: p - 1)
    constraints.equality("second", lambda: q - 1)
    one = wrapped([p], constraints, lr=1.0, nu=1.0, beta_1=0.5, owns=["first"])
    two = wrapped([q], constraints, lr=1.0, nu=1.0, beta_1=0.25, owns=["second"])
    one.step()
    two.step()
    assert (p.item(), q.item()) == (1.5, 2.5)
    assert list(one.update_multipliers().violations) == ["first"]
    assert list(two.update_multipliers().violations) == ["second"]
    assert list(constraints.violations()) == ["first", "second"]
    assert "owns first and 1 parameters" in repr(one)


def test_a_minimum_with_multipliers_is_reached():
    # min (x − 3)² + (y − 1)²  s.t.  x + y = 2, x ≤ 1.25:  x = 1.25, y = 0.75,
    # stationarity 2(x − 3) + λ + μ = 0, 2(y − 1) + λ = 0: λ = 0.5, μ = 3.
    p = parameter(0.0, 0.0)
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.sum() - 2)
    constraints.inequality("cap", lambda: p[0] - 1.25)
    for nu in (0.7, 1.0):
        with torch.no_grad():
            p.zero_()
        optimizer = wrapped([p], constraints, lr=0.02, nu=nu, beta_1=1.0, omega=1.0)
        for _ in range(60):
            for _ in range(50):
                optimizer.zero_grad()
                ((p[0] - 3) ** 2 + (p[1] - 1) ** 2).backward()
                optimizer.step()
            optimizer.update_multipliers()
        assert p.tolist() == pytest.approx([1.25, 0.75], abs=1e-3)
        assert optimizer.dual.y.tolist() == pytest.approx([0.5, 3.0], abs=1e-2)


@pytest.mark.filterwarnings("ignore:constraints in 'norm', 'batch' contradict")  # near this start
def test_nothing_grows_with_the_number_of_steps():
    p = parameter(0.5, 0.5)
    constraints = ConstraintRegistry()
    constraints.equality("norm", lambda: p.square().sum() - 1)
    constraints.inequality("batch", size=2)
    optimizer = PowerALMOptimizer(torch.optim.Adam([p], 1e-3), constraints, nu=0.7)

    def live():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    counts = []
    for k in range(300):
        optimizer.zero_grad()
        optimizer.augment(p.sum(), batch=p - 0.1).backward()
        optimizer.step()
        if k % 10 == 9:
            optimizer.update_multipliers()
        if k in (99, 299):
            counts.append(live())
    assert counts[1] <= counts[0]  # what other tests have left may go in between
    held = sum(v.numel() for v in vars(optimizer.dual).values() if isinstance(v, torch.Tensor))
    assert held <= 6 * 3  # y, y / scale, scale, the kinds, and two bounds for 3 constraints
