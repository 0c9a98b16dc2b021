"""Inner solvers for min ψ(x) + g(x), and the function that runs them."""

from torch_powalm.solvers.accelerated_gradient import AcceleratedGradient
from torch_powalm.solvers.adaptive_gradient import AdaptiveGradient
from torch_powalm.solvers.base import Iterate, Smooth, Solver, run
from torch_powalm.solvers.fast_gradient import FastGradient
from torch_powalm.solvers.from_torch import FromTorch
from torch_powalm.solvers.panoc import PANOC
from torch_powalm.solvers.proximal_point import ProximalPoint
from torch_powalm.solvers.spectral import Spectral
from torch_powalm.solvers.upfag import UPFAG

__all__ = [
    "PANOC",
    "UPFAG",
    "AcceleratedGradient",
    "AdaptiveGradient",
    "FastGradient",
    "FromTorch",
    "Iterate",
    "ProximalPoint",
    "Smooth",
    "Solver",
    "Spectral",
    "run",
]
