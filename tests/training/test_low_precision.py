"""Autocast and parameters in low precision."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from tests.training.small_training import constrained, multipliers
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

# Low precision


class Half(nn.Module):
    """Two matrices, and a constraint with a product, which autocast would round."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.4 * torch.randn(p.shape, generator=generator))
        self.x = torch.randn(8, 6, generator=generator).to(dtype)
        self.target = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
        self.to(dtype)

    def loss(self) -> tuple[Tensor, Tensor]:
        logits = self.second(torch.tanh(self.first(self.x)))
        losses = nn.functional.cross_entropy(logits, self.target, reduction="none")
        return losses.mean(), logits.square().mean() - 0.1

    def orthogonal(self) -> Tensor:
        W = self.first.weight
        return W @ W.T - torch.eye(6, dtype=W.dtype)


def half(model: Half, base: Any = None, **settings: Any) -> PowerALMOptimizer:
    constraints = ConstraintRegistry()
    constraints.equality("orthogonal", lambda: model.orthogonal())
    constraints.inequality("energy", size=1)
    base = optim.SGD(model.parameters(), lr=0.05) if base is None else base(model.parameters())
    return constrained(base, constraints, **{"nu": 0.7, **settings})


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def test_a_step_inside_autocast_equals_one_outside():
    """Neither the constraint nor its gradient is rounded to bfloat16."""
    results = []
    for inside in (False, True):
        model = Half()
        optimizer = half(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss, energy = model.loss()
            optimizer.augment(loss, energy=energy).backward()
            with autocast(inside):
                optimizer.step()
        with autocast(inside):
            optimizer.update_multipliers()
        results.append((model.first.weight.detach(), multipliers(optimizer)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_backward_constraints_inside_autocast_equals_outside():
    grads = []
    for inside in (False, True):
        model = Half()
        optimizer = half(model)
        loss, energy = model.loss()
        optimizer.augment(loss, energy=energy).backward()
        with autocast(inside):
            optimizer.backward_constraints()
        grads.append(model.first.weight.grad)
    assert torch.equal(grads[0], grads[1])


def test_augment_inside_autocast_evaluates_the_other_blocks_in_full_precision():
    class Watched(Half):
        def orthogonal(self):
            value = super().orthogonal()
            seen.append(value.dtype)
            return value

    seen, model = [], Watched()
    optimizer = half(model)
    with autocast():
        loss, energy = model.loss()
        assert model.second(model.x).dtype == torch.bfloat16
        augmented = optimizer.augment(loss, energy=energy)
    augmented.backward()
    optimizer.step()
    assert set(seen) == {torch.float32}


def test_an_autocast_run_stays_near_the_full_precision_one():
    results = []
    for enabled in (False, True):
        model = Half()
        optimizer = half(model)
        for _ in range(5):
            optimizer.zero_grad()
            with autocast(enabled):
                loss, energy = model.loss()
                loss = optimizer.augment(loss, energy=energy)
            loss.backward()
            optimizer.step()
        optimizer.update_multipliers()
        results.append((model.first.weight.detach(), multipliers(optimizer)))
        assert multipliers(optimizer).dtype == torch.float32
    # The forward pass has eight bits, so this is a check of magnitudes.
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nu", [0.3, 1.0])
@pytest.mark.parametrize(
    "base",
    [
        lambda params: optim.SGD(params, lr=0.05),
        lambda params: optim.Adam(params, lr=0.02, eps=1e-3),  # 1e-8 is 0 in float16
    ],
    ids=["SGD", "Adam"],
)
def test_low_precision_parameters_have_float32_multipliers(base, nu, dtype):
    results = []
    for of in (dtype, torch.float32):
        model = Half(of)
        optimizer = half(model, base, nu=nu)
        for _ in range(2):
            for _ in range(5):
                optimizer.zero_grad()
                loss, energy = model.loss()
                optimizer.augment(loss, energy=energy).backward()
                optimizer.step()
            before_update = optimizer.state_dict()["powalm"]["epoch"]
            optimizer.update_multipliers()
        assert {y.dtype for y in optimizer.state_dict()["powalm"]["y"].values()} == {torch.float32}
        assert before_update["energy"][0].dtype == torch.float32
        assert all(p.dtype == of for p in model.parameters())
        results.append((model.first.weight.detach().float(), multipliers(optimizer)))
    # Eight bits of mantissa, ten steps, and moments of Adam that underflow: a check of magnitudes.
    for low, full in zip(*results, strict=True):
        assert low.isfinite().all()
        assert (low - full).norm() < 0.1 * full.norm()


def test_float16_gradients_whose_squares_overflow_are_finite():
    p = nn.Parameter(torch.ones(3, dtype=torch.float16))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.sum() - 3)
    optimizer = constrained(optim.SGD([p], lr=0.001), constraints)
    (300 * p).sum().backward()
    optimizer.step()
    assert optimizer.epoch.gradient_norm == pytest.approx(300 * math.sqrt(3), rel=1e-3)
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.7, dtype=torch.float16))


def test_parameters_of_several_types_share_one_constraint():
    p, q = nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), nn.Parameter(torch.ones(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p + q)
    constraints.equality("low", lambda: p - 1)
    optimizer = constrained(optim.SGD([p, q], lr=0.25), constraints, nu=1.0)
    optimizer.step()
    assert (p.dtype, q.dtype) == (torch.bfloat16, torch.float32)
    assert p.tolist() == q.tolist() == [0.5, 0.5]
    optimizer.update_multipliers()
    assert multipliers(optimizer).dtype == torch.float32
    assert multipliers(optimizer).tolist() == [1.0, 1.0, -0.5, -0.5]


def test_training_in_float32_keeps_its_type():
    model = Half()
    optimizer = half(model)
    loss, energy = model.loss()
    optimizer.augment(loss, energy=energy).backward()
    optimizer.step()
    optimizer.update_multipliers()
    assert multipliers(optimizer).dtype == torch.float32
