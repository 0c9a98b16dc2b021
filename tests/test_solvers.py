"""Inner solvers: solutions, gradient calls, twins, statuses, messages."""

import gc
import math
from itertools import islice

import pytest
import reference
import torch

from torch_powalm import prox
from torch_powalm.result import Status
from torch_powalm.solvers import (
    PANOC,
    UPFAG,
    AcceleratedGradient,
    AdaptiveGradient,
    FastGradient,
    FromTorch,
    Iterate,
    ProximalPoint,
    Spectral,
    run,
)
from torch_powalm.solvers.lbfgs import LBFGS

F64 = torch.float64


class Counted:
    """ψ from a value and a gradient, counting its calls."""

    def __init__(self, value, grad):
        self.f, self.grad = value, grad
        self.values = self.gradients = 0
        self.points = set()  # where it was asked for a gradient

    def value(self, x):
        self.values += 1
        return float(self.f(x))

    def value_and_grad(self, x):
        self.gradients += 1
        self.points.add(tuple(x.reshape(-1).tolist()))
        return float(self.f(x)), self.grad(x)

    @property
    def calls(self):
        return self.values + self.gradients


def separable(dtype=F64, n=30, condition=100.0):
    """½ Σ h_i (x_i − c_i)² with 1 ≤ h_i ≤ condition."""
    generator = torch.Generator().manual_seed(0)
    h = torch.logspace(0, math.log10(condition), n, dtype=dtype)
    c = torch.randn(n, dtype=dtype, generator=generator)
    return h, c, Counted(lambda x: 0.5 * (h * (x - c) ** 2).sum(), lambda x: h * (x - c))


def rosenbrock():
    def value(x):
        return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2

    def grad(x):
        u = x[1] - x[0] ** 2
        return torch.stack((-400 * x[0] * u - 2 * (1 - x[0]), 200 * u))

    return Counted(value, grad)


def power_term(beta, nu, n=10):
    """½‖x − c‖² + β/(1+ν) ‖x − b‖^(1+ν): a kink of the gradient at b.

    Solution x = b + t u, u = (c − b)/‖c − b‖, with t + β t^ν = ‖c − b‖.
    """
    generator = torch.Generator().manual_seed(1)
    b, c = torch.randn(2, n, dtype=F64, generator=generator)

    def grad(x):
        r = x - b
        norm = torch.linalg.vector_norm(r)
        return x - c + (beta * norm ** (nu - 1) * r if norm > 0 else 0.0)

    def value(x):
        norm = torch.linalg.vector_norm(x - b)
        return 0.5 * ((x - c) ** 2).sum() + beta / (1 + nu) * norm ** (1 + nu)

    length = float(torch.linalg.vector_norm(c - b))
    low, high = 0.0, length
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if t + beta * t**nu < length else (low, t)
    return Counted(value, grad), b + low * (c - b) / length


# g, and the minimiser of h/2 (x − c)² + g(x)
SEPARABLE = {
    "zero": (prox.Zero(), lambda h, c: c),
    "box": (prox.Box(-0.5, 0.5), lambda h, c: c.clamp(-0.5, 0.5)),
    "nonnegative": (prox.NonNegative(), lambda h, c: c.clamp(min=0)),
    "l1": (prox.L1(0.3), lambda h, c: c.sign() * (c.abs() - 0.3 / h).clamp(min=0)),
}

# solver, tolerance, and the calls of ψ (values and gradients) it may make on any row of SEPARABLE.
# UPFAG compares values of ψ + g, so that its residual has a floor near √(ε L |ψ|) = 1e-7.
SOLVERS = {
    "panoc": (PANOC(), 1e-8, 160),
    "spectral": (Spectral(), 1e-8, 220),
    "upfag": (UPFAG(), 1e-6, 950),
    "fast_gradient": (FastGradient(rho=1.0, holder=100.0), 1e-8, 290),
    "adaptive": (AdaptiveGradient(), 1e-8, 400),
    "accelerated": (AcceleratedGradient(), 1e-8, 560),
    "accelerated_fixed": (AcceleratedGradient(step=0.01), 1e-8, 340),
    "plain": (AcceleratedGradient(step=0.01, momentum=False), 1e-8, 2400),
    "proximal_point": (ProximalPoint(), 1e-8, 2100),
    "proximal_point_panoc": (ProximalPoint(rho=1.0, inner=PANOC()), 1e-8, 1700),
    "sgd": (FromTorch(torch.optim.SGD, lr=0.01), 1e-8, 2400),
}
NONCONVEX = ("panoc", "spectral", "upfag", "adaptive", "accelerated", "proximal_point")


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("row", SEPARABLE)
def test_known_solution_is_found_within_the_calls_stated(name, row):
    (solver, tol, calls), (g, solution) = SOLVERS[name], SEPARABLE[row]
    h, c, psi = separable()
    start = torch.full_like(c, 0.4)
    kept = start.clone()
    result = run(solver, psi, g, start, tol=tol, max_iter=5000)
    assert result.status is Status.CONVERGED
    assert psi.calls <= calls
    assert torch.equal(start, kept)
    # ψ is 1-strongly convex, so the distance is at most the residual
    assert torch.linalg.vector_norm(result.x - solution(h, c)) <= tol
    assert g.distance(result.x, psi.grad(result.x)) <= 1.01 * result.residual + 1e-12


@pytest.mark.parametrize("name", SOLVERS)
def test_float32_and_the_shape_are_kept(name):
    h, c, psi = separable(torch.float32)
    psi = Counted(lambda x: psi_flat(x.view(-1)), lambda x: (h * (x.view(-1) - c)).view(5, 6))

    def psi_flat(x):
        return 0.5 * (h * (x - c) ** 2).sum()

    start = torch.zeros(5, 6)
    result = run(SOLVERS[name][0], psi, prox.Box(-0.5, 0.5), start, tol=1e-3, max_iter=3000)
    assert result.status is Status.CONVERGED
    assert result.x.dtype is torch.float32
    assert torch.linalg.vector_norm(result.x.view(-1) - c.clamp(-0.5, 0.5)) <= 1e-3 + 1e-5


# In the box x_1 ≤ ½ the valley x_2 = x_1² ends at (½, ¼), where ∂_2 ψ = 0 and ∂_1 ψ = −1 < 0.
@pytest.mark.parametrize("name", NONCONVEX)
def test_nonconvex_valley_with_an_active_bound(name):
    psi = rosenbrock()
    start = torch.tensor([-1.2, 1.0], dtype=F64)
    result = run(SOLVERS[name][0], psi, prox.Box(-2.0, 0.5), start, tol=1e-6, max_iter=20000)
    assert result.status is Status.CONVERGED
    # λ_min of the Hessian on the free coordinate is 200
    assert (result.x - torch.tensor([0.5, 0.25], dtype=F64)).abs().max() <= 1e-6


@pytest.mark.parametrize("nu", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("beta", [1.0, 1e2, 1e4])
def test_panoc_reaches_a_solution_beside_the_kink(nu, beta):
    psi, solution = power_term(beta, nu)
    start = torch.zeros_like(solution)
    result = run(PANOC(), psi, prox.Zero(), start, tol=1e-4, max_iter=500)
    assert result.status is Status.CONVERGED
    # ψ is 1-strongly convex
    assert torch.linalg.vector_norm(result.x - solution) <= 1e-4
    assert psi.calls <= 60


@pytest.mark.parametrize("name", ["panoc", "spectral", "upfag", "accelerated", "adaptive"])
def test_start_on_the_kink_ends_without_nan(name):
    psi, solution = power_term(1e4, 0.4)
    b = solution  # closer to b than rounding
    result = run(SOLVERS[name][0], psi, prox.Zero(), b, tol=1e-10, max_iter=300)
    assert result.x.isfinite().all()
    assert psi.calls <= 40 * 300


def wells():
    """Σ h_i (x_i² − 1)²/4 with 1 ≤ h_i ≤ 100: concave around 0, two minima in every coordinate."""
    h = torch.logspace(0, 2, 6, dtype=F64)
    return Counted(lambda x: (h * (x * x - 1) ** 2).sum() / 4, lambda x: h * (x * x - 1) * x)


@pytest.mark.parametrize(
    ("psi", "start"),
    [(separable()[2], torch.ones(30, dtype=F64)), (wells(), torch.full((6,), 0.02, dtype=F64))],
    ids=["convex", "concave at the start"],
)
def test_upfag_equals_the_textbook(psi, start):
    g = prox.L1(0.3 if len(start) == 30 else 1e-3)
    settings = {"gamma_1": 0.4, "gamma_2": 0.3, "gamma_3": 0.6, "delta": 1e-2, "step_1": 1.0}
    twin = reference.upfag(
        psi.f, psi.grad, lambda x: psi.f(x) + g.value(x), g.prox, start, iterations=20, **settings
    )
    ours = islice(UPFAG(**settings).iterate(psi, g, start, 1e-8), 20)
    for iterate, pair in zip(ours, twin, strict=True):
        point = min(pair, key=lambda x: g.distance(x, psi.grad(x)))
        torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)
        assert iterate.residual == pytest.approx(g.distance(point, psi.grad(point)), rel=1e-6)


@pytest.mark.parametrize("nu", [0.6, 1.0])
def test_fast_gradient_equals_the_textbook(nu):
    _, c, psi = separable()
    g = prox.Box(-0.5, 0.5)
    settings = {"rho": 1.0, "holder": 120.0, "nu": nu, "delta": 1e-3}
    start = torch.full_like(c, 0.4)
    twin = reference.fast_gradient(
        psi.grad, lambda v: g.prox(v, 1.0), start, iterations=20, **settings
    )
    ours = islice(FastGradient(**settings).iterate(psi, g, start, 1e-8), 20)
    for iterate, point in zip(ours, twin, strict=True):
        torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)


def test_fast_gradient_weights_do_not_overflow():
    # S_k grows like (1 + √(ρ/L))^k: 2^k here, past the largest float after 1100 iterations
    _, c, psi = separable(condition=1.0)
    iterates = FastGradient(rho=1.0, holder=1.0).iterate(psi, prox.Zero(), torch.zeros_like(c), 1.0)
    *_, iterate = islice(iterates, 2000)
    assert math.isfinite(iterate.residual)
    torch.testing.assert_close(iterate.x, c, rtol=1e-12, atol=1e-12)


def test_acceleration_off_is_proximal_gradient_and_on_is_fista():
    _, c, psi = separable()
    g = prox.L1(0.3)
    start = torch.ones_like(c)
    plain = reference.proximal_gradient(psi.grad, g.prox, start, step=0.01, iterations=10)
    fista = reference.accelerated_gradient(psi.grad, g.prox, start, step=0.01, iterations=10)
    off = AcceleratedGradient(step=0.01, momentum=False).iterate(psi, g, start, 1e-8)
    on = AcceleratedGradient(step=0.01, restart=False).iterate(psi, g, start, 1e-8)
    for ours, twin in ((off, plain), (on, fista)):
        for iterate, point in zip(islice(ours, 10), twin, strict=True):
            torch.testing.assert_close(iterate.x, point, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("memory", [1, 2, 3, 5])
@pytest.mark.parametrize(("shape", "rtol"), [((12,), 1e-8), ((3, 4), 1e-8), ((70, 60), 1e-3)])
def test_lbfgs_equals_the_two_loop_recursion(memory, shape, rtol):
    generator = torch.Generator().manual_seed(2)

    def normal():
        return torch.randn(shape, dtype=F64, generator=generator)

    h = 0.5 + torch.rand(shape, dtype=F64, generator=generator)
    lbfgs, pairs, x = LBFGS(h, memory), [], normal()
    for k in range(40):
        if k == 20:  # what was stored before leaves no trace
            lbfgs.reset()
            pairs = []
        x_next = normal()
        r, r_next = h * x, h * x_next
        lbfgs.update(x_next - x, r, r_next)
        if k % 4 == 0:  # refused: ⟨s, y⟩ < 0, or not finite
            lbfgs.update(x, r_next, r_next - x)
            lbfgs.update(x, r_next, r_next + math.nan)
        pairs = [*pairs, (x_next - x, r_next - r)][-memory:]
        at = r_next if k % 3 else r_next - r  # another r, as after a change of the step
        expected = reference.lbfgs_direction(
            [(s.flatten(), y.flatten()) for s, y in pairs], at.flatten()
        )
        torch.testing.assert_close(lbfgs.direction(at), expected.view(shape), rtol=rtol, atol=rtol)
        x = x_next


def test_lbfgs_refuses_a_pair_whose_squares_vanish():
    lbfgs = LBFGS(torch.zeros(3), 4)
    lbfgs.update(torch.ones(3), torch.zeros(3), torch.full((3,), 1e-25))
    assert lbfgs.size == 0


# Backtracks included: UPFAG makes 3 calls per iteration without them, and with them 3.7 or 3.8 as
# the rounding of the processor has it.
@pytest.mark.parametrize(
    ("name", "per_iteration"),
    [("panoc", 1.3), ("spectral", 1.3), ("fast_gradient", 1.1), ("adaptive", 1.2), ("upfag", 4.2)],
)
def test_gradients_are_passed_on(name, per_iteration):
    _, c, psi = separable()
    result = run(SOLVERS[name][0], psi, prox.L1(0.3), torch.ones_like(c), tol=1e-6, max_iter=500)
    assert psi.calls <= per_iteration * result.iterations + 2
    # Whatever the backtracks: no gradient is asked for twice, but where two trials coincide.
    assert psi.gradients <= len(psi.points) + 2


def test_certificate_costs_one_gradient_when_it_holds():
    _, c, psi = separable(condition=1.0)
    result = run(
        AcceleratedGradient(step=0.5), psi, prox.Zero(), torch.zeros_like(c), tol=1e-6, max_iter=99
    )
    assert psi.gradients == result.iterations + 1


def test_proximal_point_bounds_the_residual_of_psi():
    psi = rosenbrock()
    g = prox.Box(-2.0, 0.5)
    start = torch.tensor([-1.2, 1.0], dtype=F64)
    seen = 0
    for iterate in islice(ProximalPoint().iterate(psi, g, start, 1e-3), 200):
        if iterate.certified:
            seen += 1
            exact = g.distance(iterate.x, psi.grad(iterate.x))
            assert exact <= iterate.residual * (1 + 1e-9) + 1e-12
    assert seen > 0


def test_proximal_point_raises_rho_past_the_concavity():
    # ψ = −x²/2 is 1-weakly convex; ρ = 0.1 at first, for which F is concave
    psi = Counted(lambda x: -0.5 * (x * x).sum(), lambda x: -x)
    result = run(
        ProximalPoint(),
        psi,
        prox.Box(-1.0, 2.0),
        torch.tensor([0.5], dtype=F64),
        tol=1e-8,
        max_iter=1000,
    )
    assert result.status is Status.CONVERGED
    assert result.x.item() == 2.0


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "LBFGS"])
def test_torch_optimizers_descend(optimizer):
    _, c, psi = separable(condition=4.0)
    solver = FromTorch(getattr(torch.optim, optimizer), lr=0.1)
    result = run(solver, psi, prox.Zero(), torch.zeros_like(c), tol=1e-3, max_iter=2000)
    assert psi.f(result.x) < 1e-3 * psi.f(torch.zeros_like(c))


def test_fixed_step_that_diverges_ends_not_finite_with_a_point_no_worse_than_the_start():
    _, c, psi = separable()
    start = torch.zeros_like(c)
    result = run(AcceleratedGradient(step=1.0), psi, prox.Zero(), start, tol=1e-8, max_iter=5000)
    assert result.status is Status.NOT_FINITE
    assert psi.f(result.x) <= psi.f(start)


@pytest.mark.parametrize("name", SOLVERS)
def test_nan_everywhere_ends_not_finite_or_stalled(name):
    psi = Counted(lambda x: math.nan, lambda x: torch.full_like(x, math.nan))
    start = torch.ones(3, dtype=F64)
    result = run(SOLVERS[name][0], psi, prox.Zero(), start, tol=1e-8, max_iter=50)
    assert result.status in (Status.NOT_FINITE, Status.STALLED)
    assert result.x.isfinite().all()


@pytest.mark.parametrize("name", NONCONVEX)
def test_infinite_values_beyond_a_wall_are_backed_off(name):
    # −log x: inf or nan for x ≤ 0; minimiser of −log x + x is 1
    def value(x):
        return (x - x.log()).sum() if (x > 0).all() else math.inf

    psi = Counted(value, lambda x: torch.where(x > 0, 1 - 1 / x, math.nan))
    start = torch.tensor([1e-2, 30.0], dtype=F64)
    result = run(SOLVERS[name][0], psi, prox.Zero(), start, tol=1e-7, max_iter=20000)
    assert result.status is Status.CONVERGED
    assert (result.x - 1).abs().max() <= 1e-6


def test_statuses_of_the_driver():
    _, c, psi = separable()
    start = torch.zeros_like(c)
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 3

    out = run(PANOC(), psi, prox.Zero(), start, tol=1e-8, max_iter=2)
    assert (out.status, out.iterations) == (Status.MAX_ITER, 2)
    assert out.residual == pytest.approx(float(torch.linalg.vector_norm(psi.grad(out.x))))
    out = run(PANOC(), psi, prox.Zero(), start, tol=1e-8, max_iter=99, stop=stop)
    assert (out.status, out.iterations) == (Status.BUDGET, 3)
    # below the rounding of ∇ψ: no progress possible
    out = run(PANOC(), psi, prox.Box(-0.5, 0.5), start, tol=1e-300, max_iter=100000)
    assert out.status in (Status.STALLED, Status.CONVERGED)
    assert out.iterations < 500


class Scripted:
    """A solver that shows given iterates."""

    def __init__(self, *iterates):
        self.iterates = iterates

    def iterate(self, psi, g, x, tol):
        yield from self.iterates


def test_only_a_certified_residual_ends_a_run():
    _, c, psi = separable()
    estimate = Iterate(c, 1e-12, 0.0, certified=False)
    out = run(Scripted(estimate), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9)
    assert (out.status, out.iterations) == (Status.STALLED, 1)
    out = run(
        Scripted(estimate, Iterate(c, 1e-9, 0.0)), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9
    )
    assert (out.status, out.iterations) == (Status.CONVERGED, 2)


def test_last_finite_iterate_is_kept_unless_the_start_is_better():
    _, c, psi = separable()
    good, bad = Iterate(c + 0.1, 1.0, 0.0), Iterate(c + 9, 1.0, 0.0)
    lost = Iterate(c * math.nan, math.nan, 0.0)
    out = run(Scripted(good, lost), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9)
    assert out.status is Status.NOT_FINITE
    assert torch.equal(out.x, c + 0.1)
    out = run(Scripted(bad, lost), psi, prox.Zero(), c + 1, tol=1e-8, max_iter=9)
    assert torch.equal(out.x, c + 1)


@pytest.mark.parametrize("name", SOLVERS)
def test_tensors_alive_do_not_grow_over_iterations(name):
    def alive():
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    _, c, psi = separable(condition=1e4)
    iterates = SOLVERS[name][0].iterate(psi, prox.Box(-0.5, 0.5), torch.zeros_like(c), 1e-14)
    # a proximal point takes hundreds of inner iterations
    first, more = (5, 10) if name.startswith("proximal_point") else (50, 200)
    assert len(list(zip(range(first), (None for _ in iterates), strict=False))) == first
    before = alive()
    for _ in islice(iterates, more):
        pass
    assert alive() <= before + 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PANOC(memory=0), "memory must be at least 1, got 0"),
        (lambda: PANOC(step_1=0.0), "step_1 must be positive, got 0.0"),
        (lambda: Spectral(history=0), "history must be at least 1, got 0"),
        (lambda: Spectral(step_1=-1.0), "step_1 must be positive, got -1.0"),
        (lambda: UPFAG(gamma_1=1.0), r"gamma_1 must be in \(0, 1\), got 1.0"),
        (lambda: UPFAG(gamma_2=0.0), r"gamma_2 must be in \(0, 1\), got 0.0"),
        (lambda: UPFAG(gamma_3=2.0), r"gamma_3 must be in \(0, 1\), got 2.0"),
        (lambda: UPFAG(delta=0.0), "delta must be positive, got 0.0"),
        (lambda: UPFAG(step_1=-1.0), "step_1 must be positive, got -1.0"),
        (lambda: FastGradient(rho=0.0, holder=1.0), "rho must be positive, got 0.0"),
        (lambda: FastGradient(rho=1.0, holder=-1.0), "holder must be positive, got -1.0"),
        (lambda: FastGradient(rho=1.0, holder=1.0, delta=0.0), "delta must be positive, got 0.0"),
        (lambda: FastGradient(rho=1.0, holder=1.0, nu=1.5), r"nu must be in \(0, 1\], got 1.5"),
        (lambda: AdaptiveGradient(history=0), "history must be at least 1, got 0"),
        (lambda: AdaptiveGradient(step_1=0.0), "step_1 must be positive, got 0.0"),
        (lambda: AcceleratedGradient(step=-1.0), "step must be positive, got -1.0"),
        (lambda: AcceleratedGradient(shrink=1.0), r"shrink must be in \(0, 1\), got 1.0"),
        (lambda: ProximalPoint(rho=0.0), "rho must be positive, got 0.0"),
        (lambda: ProximalPoint(max_inner=0), "max_inner must be at least 1, got 0"),
        (lambda: FromTorch(torch.nn.Linear), "optimizer must be a subclass of Optimizer, got .*L"),
        (lambda: _run(tol=0.0), "tol must be positive, got 0.0"),
        (lambda: _run(tol=math.nan), "tol must be positive, got nan"),
        (lambda: _run(max_iter=0), "max_iter must be at least 1, got 0"),
    ],
)
def test_misuse_raises_with_the_argument_and_its_value(make, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        make()


def _run(**settings):
    _, c, psi = separable()
    return run(PANOC(), psi, prox.Zero(), c, **{"tol": 1e-8, "max_iter": 9, **settings})


def test_an_optimizer_without_lr_is_refused():
    class Unmoved(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    with pytest.raises(ValueError, match=r"^optimizer must have an lr, got Unmoved"):
        FromTorch(Unmoved)
    assert repr(FromTorch(torch.optim.SGD, lr=0.1)) == "FromTorch(SGD, lr=0.1)"
