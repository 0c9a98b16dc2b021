"""Spectral norms: exact for small matrices, else by warm-started power iteration."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Read = Callable[[], Tensor]
SMALL = 64  # sides up to which eigenvalues on the CPU cost at most 0.2 ms


class SpectralNorms:
    """Largest singular values of matrices that change at every step.

    A matrix on the CPU with a side of at most 64 gets exact values, from the eigenvalues of W Wᵀ or
    Wᵀ W. For a larger one the first call computes an SVD, and later calls improve the last singular
    vectors by two iterations each: four products of the matrix with a vector. The estimate uᵀWv is
    at most the true norm, and below it while weights move fast; `exact` computes the norm.
    Asking twice for the same weights gives the same value.

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
        elif weight.device.type == "cpu" and min(weight.shape) <= SMALL:
            self._pairs[i] = _leading_pair(weight)
        else:
            u, v = self._pairs[i]
            for _ in range(2):
                u = _normalized(weight @ v, u)
                v = _normalized(u @ weight, v)
            self._pairs[i] = u, v
        self._seen[i] = weight.clone()
        return self._pairs[i]


def _leading_pair(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular vectors of the largest singular value."""
    if W.shape[0] > W.shape[1]:
        v, u = _leading_pair(W.T)
        return u, v
    u = torch.linalg.eigh(W @ W.T).eigenvectors[:, -1]
    return u, _normalized(u @ W, torch.eye(1, W.shape[1], dtype=W.dtype)[0])


def _normalized(x: Tensor, fallback: Tensor) -> Tensor:
    """Return x / ‖x‖, or the last vector where the matrix maps it to zero."""
    norm = torch.linalg.vector_norm(x)
    return torch.where(norm > 0, x / norm, fallback)
