"""Constraints by name: each function registers one and returns an entry that measures batches.

parity = zoo.demographic_parity(constraints, "parity", bound=0.02)
…
loss = optimizer.augment(loss, parity=parity(logits, group=group))
"""

from torch_powalm.zoo.fidelity import (
    feature_distance,
    forgetting,
    frozen_copy,
    output_distance,
    target_kl,
)
from torch_powalm.zoo.hard_concrete import HardConcrete
from torch_powalm.zoo.losses import (
    class_loss,
    group_loss,
    loss_quantile,
    sample_loss,
    worst_group_loss,
)
from torch_powalm.zoo.physics import (
    boundary,
    conservation,
    initial,
    normal_derivative,
    pde_residual,
)
from torch_powalm.zoo.rates import (
    coverage,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_negative_rate,
    false_positive_rate,
    precision,
)
from torch_powalm.zoo.shapes import bounded, convex, equivariant, invariant, monotone
from torch_powalm.zoo.weights import (
    doubly_stochastic,
    l0_budget,
    l1_budget,
    lipschitz,
    orthonormal,
    positive_definite,
    spectral_norm,
    symmetric,
    unit_norm,
)
from torch_powalm.zoo.zoo_entry import Entry

__all__ = [
    "Entry",
    "HardConcrete",
    "boundary",
    "bounded",
    "class_loss",
    "conservation",
    "convex",
    "coverage",
    "demographic_parity",
    "doubly_stochastic",
    "equal_opportunity",
    "equalized_odds",
    "equivariant",
    "false_negative_rate",
    "false_positive_rate",
    "feature_distance",
    "forgetting",
    "frozen_copy",
    "group_loss",
    "initial",
    "invariant",
    "l0_budget",
    "l1_budget",
    "lipschitz",
    "loss_quantile",
    "monotone",
    "normal_derivative",
    "orthonormal",
    "output_distance",
    "pde_residual",
    "positive_definite",
    "precision",
    "sample_loss",
    "spectral_norm",
    "symmetric",
    "target_kl",
    "unit_norm",
    "worst_group_loss",
]
