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
    assert not math.isfinite(fn.total_norm([torch.ones(2, 2), torch.tensor([[bad]])]))


def test_total_norm_is_that_of_one_long_vector():
    parts = [torch.randn(3, 4, generator=generator()), torch.randn(5, generator=generator(1))]
    whole = torch.cat([p.reshape(-1) for p in parts])
    assert fn.total_norm(parts) == pytest.approx(float(whole.norm()), rel=1e-6)
    assert fn.total_norm([p.T for p in parts[:1]]) == pytest.approx(
        float(parts[0].norm()), rel=1e-6
    )
    assert fn.total_norm([]) == 0.0


def test_total_norm_of_a_sparse_gradient_counts_duplicates_once_summed():
    sparse = torch.sparse_coo_tensor([[1, 1, 2]], [3.0, 1.0, 3.0], (4,), check_invariants=True)
    assert fn.total_norm([sparse]) == pytest.approx(5.0)


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


@pytest.mark.parametrize("few", [64, 0], ids=["on the host", "as tensors"])
@pytest.mark.parametrize("nu", NUS)
def test_eliminated_slack_meets_the_optimality_conditions(nu, few, monkeypatch):
    monkeypatch.setattr(fn, "_FEW", few)
    for seed in range(300):
        r, y, inequality, beta = random_case(seed)
        lower = torch.where(inequality, -y, -math.inf)
        c = fn.slack_stiffness(r, fn.norm(r), lower, beta, nu)
        u = fn.eliminate_slack(r, lower, 1 / c if c > 0 else 1.0)
        assert torch.equal(u[~inequality], r[~inequality])
        # s = u − B ≥ 0 minimises ⟨y, r⟩ + βφ(r): w = y + β∇φ(r) ≥ 0 and ⟨w, s⟩ = 0.
        w = y + beta * fn.grad_phi(u, nu)
        slack = (u - r)[inequality]
        scale = y.norm() + w.norm()
        assert (slack >= 0).all()
        assert (w[inequality] >= -1e-12 * scale).all()
        assert (
            (w[inequality] * slack).abs().max() <= 1e-12 * scale * r.norm() if len(slack) else True
        )


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
@pytest.mark.parametrize("few", [64, 0], ids=["on the host", "as tensors"])
def test_slack_of_inactive_inequalities_is_finite(beta, nu, dtype, few, monkeypatch):
    monkeypatch.setattr(fn, "_FEW", few)
    r = torch.tensor([0.0, -3.0, -1e-20, -1e4], dtype=dtype)
    y = torch.tensor([0.5, 2.0, 1e-10, 0.0], dtype=dtype)
    inequality = torch.tensor([False, True, True, True])
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


def test_dual_step_is_the_papers():
    # σ_1 min(1, ‖A_1‖^ν log²2 / (‖A‖^ν (k+1) log²(k+2))) by hand, k = 3, ν = 0.5
    expected = 10 * 4**0.5 * math.log(2) ** 2 / (1**0.5 * 4 * math.log(5) ** 2)
    assert fn.dual_step(10.0, 4**0.5, 1.0, 3) == pytest.approx(expected, rel=1e-12)
    assert fn.dual_step(10.0, 4.0, 1e-9, 3) == 10.0
    assert fn.dual_step(10.0, 4.0, 0.0, 3) == 10.0
    assert fn.dual_step(10.0, 0.0, 1.0, 3) == 0.0
