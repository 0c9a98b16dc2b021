"""Convex terms g: their value, their proximal operator, and the distance to −∂g(x).

    g.value(x)        g(x); the indicator of a set is 0 inside, up to rounding, and inf outside
    g.prox(v, step)   argmin_u g(u) + ‖u − v‖² / (2 step)
    g.distance(x, v)  dist(−v, ∂g(x)) = min ‖v + s‖ over s ∈ ∂g(x), and inf where g(x) = inf

With v = ∇ψ(x), `distance` is the dual residual of min ψ + g. It recognizes a face by exact
comparison if the prox returns exact values (a bound, a zero), and up to rounding if it cannot (a
norm equal to the radius). Pass it results of the prox: a coordinate that is one rounding error
inside its bound counts as free.
"""

from torch_powalm.prox.affine import Affine
from torch_powalm.prox.ball import Ball
from torch_powalm.prox.box import Box
from torch_powalm.prox.l1 import L1
from torch_powalm.prox.l2_group import L2Group
from torch_powalm.prox.nonnegative import NonNegative
from torch_powalm.prox.nonnegative_ball import NonNegativeBall
from torch_powalm.prox.nuclear_norm import NuclearNorm
from torch_powalm.prox.proximable import Bounded, Elementwise, Proximable
from torch_powalm.prox.second_order_cone import SecondOrderCone
from torch_powalm.prox.separable import Separable
from torch_powalm.prox.simplex import Simplex
from torch_powalm.prox.spectral_norm_ball import SpectralNormBall
from torch_powalm.prox.zero import Zero

__all__ = [
    "L1",
    "Affine",
    "Ball",
    "Bounded",
    "Box",
    "Elementwise",
    "L2Group",
    "NonNegative",
    "NonNegativeBall",
    "NuclearNorm",
    "Proximable",
    "SecondOrderCone",
    "Separable",
    "Simplex",
    "SpectralNormBall",
    "Zero",
]
