"""The formulas with tensors in place of numbers agree with those of functional.py."""

import math

import pytest
import torch

from torch_powalm import functional
from torch_powalm.training.on_device import tensor_formulas


@pytest.mark.parametrize("nu", [0.05, 0.2, 0.4, 0.5, 0.8, 0.95])
def test_the_stiffness_with_slacks_is_that_of_numbers(nu: float) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(m: int) -> torch.Tensor:
        sizes = 10 ** (8 * torch.rand(1, generator=generator, dtype=torch.float64) - 4)
        return torch.randn(m, generator=generator, dtype=torch.float64) * sizes

    for trial in range(60):
        m = 1 + trial % 9
        r, lower, beta = draw(m), -draw(m).abs(), float(draw(1).abs())
        lower[torch.rand(m, generator=generator) < 0.3] = 0.0
        lower[torch.rand(m, generator=generator) < 0.2] = -math.inf
        expected = functional.slack_stiffness(r, functional.norm(r), lower, beta, nu)
        found = tensor_formulas.slack_stiffness(r, lower, torch.tensor(beta, dtype=r.dtype), nu)
        weights = [
            torch.where(lower.isinf(), c * r, (c * r - lower).clamp(min=0))
            for c in (expected, found)
        ]
        scale = float(weights[0].abs().max())
        torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-10 * scale)


def test_nothing_pulls_where_nothing_is_violated() -> None:
    lower = torch.tensor([-0.0, -1.0, -math.inf])
    found = tensor_formulas.slack_stiffness(torch.zeros(3), lower, torch.tensor(2.0), 0.5)
    assert float(found) == 0.0
