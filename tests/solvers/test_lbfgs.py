"""The quasi-Newton direction against the two-loop recursion."""

import math

import pytest
import torch

from tests import reference
from tests.solvers.smooth_functions import F64
from torch_powalm.solvers.lbfgs import LBFGS


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
