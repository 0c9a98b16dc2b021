"""The order of the gallery: decisions, weights, physics, data points, solving."""

from pathlib import Path

NAMES = (
    "adult_parity",
    "compas_certificate",
    "neyman_pearson",
    "finetune_kl",
    "monotone_regression",
    "lipschitz_robustness",
    "orthogonal_rnn",
    "sparse_budget",
    "heat_pinn",
    "burgers_pinn",
    "per_sample_bounds",
    "clustering_images",
    "portfolio_certificate",
)


class GalleryOrder:
    """Sort key of a script; one that is not in the list stops the build."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, filename: str) -> int:
        """Return the place of a script."""
        return NAMES.index(Path(filename).stem.removeprefix("plot_"))
