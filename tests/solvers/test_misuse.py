"""Arguments of the solvers that raise."""

import math

import pytest
import torch

from tests.solvers.smooth_functions import separable
from torch_powalm import prox
from torch_powalm.solvers import (
    PANOC,
    UPFAG,
    AcceleratedGradient,
    AdaptiveGradient,
    FastGradient,
    FromTorch,
    ProximalPoint,
    Spectral,
    run,
)


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
        (lambda: UPFAG(trial="newton"), "trial must be 'bb', 'last' or 'first', got 'newton'"),
        (lambda: UPFAG(point="x_md"), "point must be 'best' or 'x_bar', got 'x_md'"),
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
