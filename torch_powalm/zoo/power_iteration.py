"""Spectral norms by power iteration that starts where the last one ended."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Read = Callable[[], Tensor]


class SpectralNorms:
    """Largest singular values of matrices that change slowly, without an SVD at every step.

    The first call computes an SVD. Later calls improve the last singular vectors by two iterations
    each, which costs four products of the matrix with a vector. The estimate uᵀWv is at most
    the true norm; `exact` computes it. Asking twice for the same weights gives the same value.

    Args:
        reads: functions that return the matrices.
    """

    def __init__(self, reads: Sequence[Read]) -> None:
        self.reads = reads
        self._seen: list[Tensor | None] = [None] * len(reads)
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def __call__(self) -> Tensor:
        """Return the estimates, with gradients u vᵀ."""
        return torch.stack([self._norm(i, read()) for i, read in enumerate(self.reads)])

    @torch.no_grad()
    def exact(self) -> Tensor:
        """Return the spectral norms by SVD."""
        return torch.stack([torch.linalg.matrix_norm(read().detach(), 2) for read in self.reads])

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return the singular vectors; needed to resume a training bit for bit."""
        seen = [w.clone() for w in self._seen if w is not None]
        return {
            "weights": seen,
            "left": [u.clone() for u, _ in self._pairs],
            "right": [v.clone() for _, v in self._pairs],
        }

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Continue from what `state_dict` returned."""
        if len(state["weights"]) not in (0, len(self.reads)):
            raise ValueError(
                f"state must have {len(self.reads)} matrices, got {len(state['weights'])}"
            )
        self._seen = [w.clone() for w in state["weights"]] or [None] * len(self.reads)
        pairs = zip(state["left"], state["right"], strict=True)
        self._pairs = [(u.clone(), v.clone()) for u, v in pairs]

    def _norm(self, i: int, weight: Tensor) -> Tensor:
        weight = weight.float() if weight.element_size() < 4 else weight
        u, v = self._vectors(i, weight.detach())
        return u @ (weight @ v)

    @torch.no_grad()
    def _vectors(self, i: int, weight: Tensor) -> tuple[Tensor, Tensor]:
        seen = self._seen[i]
        if seen is None or seen.dtype != weight.dtype or seen.device != weight.device:
            u, _, vh = torch.linalg.svd(weight, full_matrices=False)
            pair = u[:, 0].clone(), vh[0].clone()
            self._pairs[i : i + 1] = [pair]
        elif torch.equal(seen, weight):
            return self._pairs[i]
        else:
            u, v = self._pairs[i]
            for _ in range(2):
                u = _normalized(weight @ v, u)
                v = _normalized(u @ weight, v)
            self._pairs[i] = u, v
        self._seen[i] = weight.clone()
        return self._pairs[i]


def _normalized(x: Tensor, fallback: Tensor) -> Tensor:
    """Return x / ‖x‖, or the last vector where the matrix maps it to zero."""
    norm = torch.linalg.vector_norm(x)
    return torch.where(norm > 0, x / norm, fallback)
