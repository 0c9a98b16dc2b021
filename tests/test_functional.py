"""Formulas: gradients, ranges of floats, and the elimination of slacks."""

import math

import pytest
import torch

from torch_powalm import functional as fn

NUS = [0.1, 0.3, 0.5, 0.7, 1.0]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("nu", [0.1, 0.5, 1.0])
def test_grad_phi_is_the_gradient_of_phi(nu):
    r = torch.randn(5, dtype=torch.float64, generator=generator())
    found = fn.grad_phi(r, nu)
    for i in range(5):
        step = torch.zeros_like(r)
        step[i] = 1e-6
        slope = (fn.phi(r + step, nu) - fn.phi(r - step, nu)) / 2e-6
        assert found[i].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grad_phi_vanishes_at_zero(nu, dtype):
    assert torch.equal(fn.grad_phi(torch.zeros(3, dtype=dtype), nu), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-1.0, -0.9, -0.5, 0.0, 0.5, 0.9])
def test_grad_phi_is_right_over_the_whole_range_of_floats(nu, dtype, exponent):
    limits = torch.finfo(dtype)
    edge = limits.tiny if exponent < 0 else limits.max
    scale = 4 * edge ** abs(exponent) if exponent != 0 else 1.0
    unit = torch.tensor([0.6, -0.8, 0.0], dtype=torch.float64)
    found = fn.grad_phi((unit * scale).to(dtype), nu).double()
    assert torch.isfinite(found).all()
    # ∇φ(s·e) = s^ν e for a unit vector e; a power of s is known to |log s| · eps.
    torch.testing.assert_close(found, unit * scale**nu, rtol=1000 * limits.eps, atol=0.0)


def test_norm_of_one_huge_entry_among_tiny_ones():
    r = torch.full((100,), 1e-30)
    r[7] = 1e30
    assert fn.norm(r) == pytest.approx(1e30, rel=1e-6)
    assert fn.norm(torch.full((4,), 1e-40)) == pytest.approx(2e-40, rel=1e-4)  # denormal in float32
    assert fn.norm(torch.full((4,), 1e300, dtype=torch.float64)) == pytest.approx(2e300, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_norm_shows_what_is_not_finite(bad):
    assert not math.isfinite(fn.norm(torch.tensor([1.0, bad])))
    assert not math.isfinite(fn.norm(torch.ones(2, 2), torch.tensor([[bad]])))


def test_norm_of_several_tensors_is_that_of_one_long_vector():
    parts = [torch.randn(3, 4, generator=generator()), torch.randn(5, generator=generator(1))]
    whole = torch.cat([p.reshape(-1) for p in parts])
    assert fn.norm(*parts) == pytest.approx(float(whole.norm()), rel=1e-6)
    assert fn.norm(*[p.T for p in parts[:1]]) == pytest.approx(float(parts[0].norm()), rel=1e-6)
    assert fn.norm() == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_norm_takes_tensors_of_any_shape_and_kind(scale):
    nothing = torch.empty(0, dtype=torch.float64)
    number = torch.tensor(3.0 * scale, dtype=torch.float64)
    complex_number = torch.tensor([3 + 4j], dtype=torch.complex128)
    assert fn.norm(nothing) == 0.0
    assert fn.norm(nothing, -2 / 3 * number) == pytest.approx(2 * scale)
    assert fn.norm(number) == pytest.approx(3 * scale)
    assert fn.norm(scale * complex_number.conj()) == pytest.approx(5 * scale)


class Accelerated(torch.Tensor):
    """A tensor that says it is not on the CPU, and counts how often a number is read from one."""

    is_cpu = property(lambda self: False)
    reads = 0

    def item(self):
        Accelerated.reads += 1
        return super().item()

    def __float__(self):
        Accelerated.reads += 1
        return super().__float__()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_norm_of_tensors_on_an_accelerator_reads_one_number(count):
    parts = [torch.randn(4, generator=generator(i)) for i in range(count)]
    Accelerated.reads = 0
    found = fn.norm(*(part.as_subclass(Accelerated) for part in parts))
    assert found == pytest.approx(float(torch.cat(parts).norm()), rel=1e-6)
    assert Accelerated.reads == 1


def test_norm_on_the_cpu_or_of_one_tensor_keeps_the_precision_of_doubles():
    parts = [torch.tensor([1.0], dtype=torch.float64), torch.tensor([1e-6], dtype=torch.float64)]
    assert fn.norm(*parts) - 1.0 == pytest.approx(0.5e-12, rel=1e-3)
    alone = torch.cat(parts).as_subclass(Accelerated)  # one number is read for one tensor anyway
    assert fn.norm(alone) - 1.0 == pytest.approx(0.5e-12, rel=1e-3)


def test_norm_of_ordinary_vectors_is_the_root_of_their_square():
    for seed in range(50):
        v = 0.1 * torch.randn(7, dtype=torch.float64, generator=generator(seed))
        assert fn.norm(v) == math.sqrt(torch.dot(v, v).item())


def test_norm_of_a_sparse_gradient_counts_duplicates_once_summed():
    sparse = torch.sparse_coo_tensor([[1, 1, 2]], [3.0, 1.0, 3.0], (4,), check_invariants=True)
    assert fn.norm(sparse) == pytest.approx(5.0)


def random_case(seed, dtype=torch.float64):
    g = generator(seed)
    m = int(torch.randint(1, 9, (1,), generator=g))
    inequality = torch.rand(m, generator=g) < 0.6
    scale = 10 ** (4 * torch.rand(1, generator=g).item() - 2)
    r = scale * torch.randn(m, dtype=dtype, generator=g)
    if seed % 3 == 0:
        r[~inequality] = 0  # so that t = 0 is a false root
    y = torch.randn(m, dtype=dtype, generator=g)
    y = torch.where(inequality, y.clamp(min=0), y)
    beta = 10 ** (6 * torch.rand(1, generator=g).item() - 3)
    return r, y, inequality, beta


# With few entries the norms are those of floats, with many those of tensors.
ZEROS = pytest.mark.parametrize("zeros", [0, 100], ids=["on the host", "as tensors"])


def with_zeros(r, y, inequality, zeros):
    """The same constraints, after equalities that hold and have no multiplier."""
    return (
        torch.cat((torch.zeros(zeros, dtype=r.dtype), r)),
        torch.cat((torch.zeros(zeros, dtype=y.dtype), y)),
        torch.cat((torch.zeros(zeros, dtype=torch.bool), inequality)),
    )


@ZEROS
@pytest.mark.parametrize("nu", NUS)
def test_eliminated_slack_meets_the_optimality_conditions(nu, zeros):
    for seed in range(300):
        r, y, inequality, beta = random_case(seed)
        r, y, inequality = with_zeros(r, y, inequality, zeros)
        lower = torch.where(inequality, -y, -math.inf)
        c = fn.slack_stiffness(r, fn.norm(r), lower, beta, nu)
        u = fn.eliminate_slack(r, lower, 1 / c if c > 0 else 1.0)
        assert torch.equal(u[~inequality], r[~inequality])
        # s = u − B ≥ 0 minimizes ⟨y, r⟩ + βφ(r): w = y + β∇φ(r) ≥ 0 and ⟨w, s⟩ = 0.
        w = y + beta * fn.grad_phi(u, nu)
        slack = (u - r)[inequality]
        scale = y.norm() + w.norm()
        assert (slack >= 0).all()
        assert (w[inequality] >= -1e-12 * scale).all()
        assert ((w[inequality] * slack).abs() <= 1e-12 * scale * r.norm()).all()


@pytest.mark.parametrize("nu", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_the_search_for_the_stiffness_needs_a_handful_of_norms(nu, monkeypatch):
    counts = []
    norm = fn.norm

    def counted(*tensors):
        counts[-1] += 1
        return norm(*tensors)

    for seed in range(300):
        r, y, inequality, beta = random_case(seed)
        r, y, inequality = with_zeros(r, y, inequality, 100)  # as tensors
        lower = torch.where(inequality, -y, -math.inf)
        counts.append(0)
        with monkeypatch.context() as patch:
            patch.setattr(fn, "norm", counted)
            fn.slack_stiffness(r, norm(r), lower, beta, nu)
    assert max(counts) <= 8
    assert sum(counts) <= 2.5 * len(counts)


def test_the_number_of_constraints_does_not_change_the_stiffness():
    """It decides whether norms are computed with floats or with tensors."""
    r, y, inequality, beta = random_case(1)
    found = []
    for zeros in range(100):
        r_0, y_0, inequality_0 = with_zeros(r, y, inequality, zeros)
        lower = torch.where(inequality_0, -y_0, -math.inf)
        found.append(fn.slack_stiffness(r_0, fn.norm(r_0), lower, beta, 0.3))
    assert found == pytest.approx([found[0]] * 100, rel=1e-12)


@pytest.mark.parametrize("removed", [0.5, 3.0])
@pytest.mark.parametrize("copies", [1, 40])
def test_entries_given_by_their_squares_count_like_those_in_the_vector(removed, copies):
    r = torch.tensor([-3.0, 0.4, -0.2] * copies + [removed], dtype=torch.float64)
    lower = torch.tensor([-1.5, -0.7, -2.0] * copies + [-math.inf], dtype=torch.float64)
    expected = fn.slack_stiffness(r, fn.norm(r), lower, 2.0, 0.5)
    rest = removed**2
    assert fn.slack_stiffness(r[:-1], fn.norm(r), lower[:-1], 2.0, 0.5, rest) == pytest.approx(
        expected, rel=1e-12
    )
    assert fn.slack_stiffness(r[:-1], fn.norm(r), lower[:-1], 2.0, 0.5) > (1 + 1e-5) * expected


@pytest.mark.parametrize(("size", "by_tensors"), [(64, False), (65, True)])
def test_a_few_constraints_are_handled_with_floats(size, by_tensors, monkeypatch):
    r, y, inequality, beta = random_case(1)
    r, y, inequality = with_zeros(r, y, inequality, size - len(r))
    lower = torch.where(inequality, -y, -math.inf)
    calls = []
    eliminate = fn.eliminate_slack
    monkeypatch.setattr(fn, "eliminate_slack", lambda *a: calls.append(a) or eliminate(*a))
    fn.slack_stiffness(r, fn.norm(r), lower, beta, 0.3)
    assert len(r) == size
    assert bool(calls) == by_tensors


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.9])
def test_the_search_ends_when_t_is_close_to_one(nu, monkeypatch):
    """There log t is close to 0, and its rounding error is not relative to it."""
    counts = []
    hypot = math.hypot
    for k in range(50):
        r = torch.tensor([0.6 + 1e-3 * k, -5.0], dtype=torch.float64)
        lower = torch.tensor([-math.inf, -0.8], dtype=torch.float64)
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(math, "hypot", lambda *a, calls=calls: calls.append(a) or hypot(*a))
            fn.slack_stiffness(r, fn.norm(r), lower, 1.0, nu)
        counts.append(len(calls))
    assert max(counts) <= 12


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.9])
def test_the_stiffness_of_inactive_inequalities_stays_finite_at_a_huge_penalty(nu):
    c = fn.slack_stiffness(torch.tensor([-1.0]), 1.0, torch.tensor([-0.0]), 1e200, nu)
    assert 1e200 <= c < math.inf


def test_a_slack_multiplier_of_zero_stays_zero_where_t_overflows():
    r, lower = torch.tensor([-1.0, -1.0]), torch.tensor([-0.0, -1e-30])
    u = fn.eliminate_slack(r, lower, 1e300)
    assert u.tolist() == [0.0, -1.0]
    assert fn.eliminate_slack(r, lower, 0.0).tolist() == [0.0, 0.0]


def test_the_stiffness_at_nu_one_is_the_penalty():
    assert fn.stiffness(0.0, 3.0, 1.0) == 3.0
    assert fn.stiffness(0.0, 3.0, 0.5) == 0.0
    assert fn.stiffness(4.0, 3.0, 0.5) == 1.5
    for seed in range(20):
        r, y, inequality, beta = random_case(seed)
        lower = torch.where(inequality, -y, -math.inf)
        assert fn.slack_stiffness(r, fn.norm(r), lower, beta, 1.0) == beta


def test_eliminated_slack_at_nu_one_is_the_classical_formula():
    for seed in range(50):
        r, y, inequality, beta = random_case(seed)
        lower = torch.where(inequality, -y, -math.inf)
        u = fn.eliminate_slack(r, lower, 1 / fn.slack_stiffness(r, fn.norm(r), lower, beta, 1.0))
        classical = torch.where(inequality, torch.maximum(r, -y / beta), r)
        torch.testing.assert_close(u, classical, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("beta", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("nu", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@ZEROS
def test_slack_of_inactive_inequalities_is_finite(beta, nu, dtype, zeros):
    r = torch.tensor([0.0, -3.0, -1e-20, -1e4], dtype=dtype)
    y = torch.tensor([0.5, 2.0, 1e-10, 0.0], dtype=dtype)
    inequality = torch.tensor([False, True, True, True])
    r, y, inequality = with_zeros(r, y, inequality, zeros)
    lower = torch.where(inequality, -y, -math.inf)
    c = fn.slack_stiffness(r, fn.norm(r), lower, beta, nu)
    u = fn.eliminate_slack(r, lower, 1 / c if c > 0 else 1.0)
    assert math.isfinite(c)
    assert torch.isfinite(u).all()
    assert torch.isfinite(fn.scaled_add(y, r, c)[~inequality]).all()


def test_augmented_lagrangian_is_written_out():
    r, y = torch.tensor([3.0, 4.0]), torch.tensor([1.0, -2.0])
    expected = 7.0 + (3 - 8) + 2.0 * 5**1.5 / 1.5
    assert fn.augmented_lagrangian(7.0, r, y, beta=2.0, nu=0.5) == pytest.approx(expected)


def test_violation_clips_inequalities_and_leaves_equalities():
    r = torch.tensor([-2.0, 3.0, -1.0, 4.0])
    mask = torch.tensor([False, False, True, True])
    assert fn.violation(r, mask).tolist() == [-2.0, 3.0, 0.0, 4.0]
    assert fn.violation(r, True).tolist() == [0.0, 3.0, 0.0, 4.0]
    for none in (None, False):
        assert fn.violation(r, none) is r


def test_dual_step_is_the_papers():
    # σ_1 min(1, ‖A_1‖^ν log²2 / (‖A‖^ν (k+1) log²(k+2))) by hand, k = 3, ν = 0.5
    expected = 10 * 4**0.5 * math.log(2) ** 2 / (1**0.5 * 4 * math.log(5) ** 2)
    assert fn.dual_step(10.0, 4**0.5, 1.0, 3) == pytest.approx(expected, rel=1e-12)
    assert fn.dual_step(10.0, 4.0, 1e-9, 3) == 10.0
    assert fn.dual_step(10.0, 4.0, 0.0, 3) == 10.0
    assert fn.dual_step(10.0, 0.0, 1.0, 3) == 0.0


def test_the_power_term_of_a_huge_norm_is_infinite():
    assert fn.power(1e150, 0.5) == math.inf
    assert fn.power(0.9e150, 0.5) == pytest.approx(0.9**1.5 * 1e225 / 1.5)
