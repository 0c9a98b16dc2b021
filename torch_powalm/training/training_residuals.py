"""The certificate of a training point: norms of the augmented gradient and of the constraints."""

import math
from collections.abc import Mapping

from torch import Tensor

from torch_powalm.prox import Proximable
from torch_powalm.result import TrainingResiduals
from torch_powalm.training.augmented_gradient import AugmentedGradient
from torch_powalm.training.vector_jacobian import stationarity, vjp


def training_residuals(
    gradient: AugmentedGradient, terms: Mapping[Tensor, Proximable]
) -> TrainingResiduals:
    """Return the norms of the gradient and the constraints, given convex terms by parameter."""
    blocks, window = gradient.blocks.ready(), gradient.window
    A_static, r = gradient.residual(window.sums(blocks.batch)[0])
    if not gradient.dual.started:
        gradient.start(r)
    w = gradient.weigh(r)
    if w is None:
        gradient.finite.check(r)
        return TrainingResiduals(math.nan, math.nan)
    params = blocks.params
    extra: list[Tensor | None] = [None] * len(params)
    if A_static is not None and not window.is_injected:
        extra = vjp(A_static, params, w[: blocks.static_size])
    asked = blocks.margin.in_steps(r, blocks.sizes, -1)
    primal = math.hypot(*[v.norm for v in blocks.violations(asked).values()])
    return TrainingResiduals(stationarity(params, extra, terms), primal)
