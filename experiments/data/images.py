"""MNIST and Fashion-MNIST: a sample in this folder, a local copy, or a download."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

NAMES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}  # ours, torchvision's
FOLDER = Path(__file__).parent
SUMS = dict(line.split()[::-1] for line in (FOLDER / "SHA256SUMS").read_text().splitlines())


class Images(NamedTuple):
    """Gray images (n × 28 × 28, bytes) with their classes, 0 to 9, for training and for testing."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Source:
    """Source of the images of a data set; `load` verifies their checksums.

    Args:
        dataset: "mnist" or "fashion_mnist".
        root: folder of the complete data in torchvision's layout; None for the sample.
        download: download the complete data to root if they are missing.
    """

    dataset: str
    root: str | None = None
    download: bool = False

    def __post_init__(self) -> None:
        if self.dataset not in NAMES:
            raise ValueError(f"dataset must be one of {', '.join(NAMES)}, got {self.dataset!r}")
        if self.root is None and self.download:
            raise ValueError("data.root must be a folder to download to, got None")

    @property
    def part(self) -> str:
        """Which images these are, independent of their folder."""
        return "sample" if self.root is None else "complete"

    def check_root(self) -> None:
        """Raise if there is no folder to read from."""
        name = NAMES[self.dataset]
        if self.root is None or self.download or (Path(self.root) / name / "raw").is_dir():
            return
        raise FileNotFoundError(
            f"data.root must hold {name}/raw, got {self.root!r}; data.download=true fetches it, "
            "data.root=null uses the sample in the repository"
        )

    def load(self) -> Images:
        """The images."""
        self.check_root()
        if self.root is None:
            return _sample(self.dataset)
        return _complete(NAMES[self.dataset], Path(self.root), self.download)


def verify(path: Path, name: str) -> None:
    """Raise if the checksum of a file differs from that of the name in SHA256SUMS."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != SUMS[name]:
        raise ValueError(f"{path} is corrupt: its checksum differs from {name} in SHA256SUMS")


def _sample(dataset: str) -> Images:
    path = FOLDER / f"{dataset}.npz"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; it belongs to the repository")
    verify(path, path.name)
    with np.load(path) as arrays:
        train, train_labels, test, test_labels = (
            torch.from_numpy(arrays[name]) for name in Images._fields
        )
    return Images(train, train_labels.long(), test, test_labels.long())


def _complete(name: str, root: Path, download: bool) -> Images:
    from torchvision import datasets  # takes seconds to import, and the sample does not need it

    kind = getattr(datasets, name)
    folder = root / name / "raw"
    if download:
        _fetch(kind, root)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        path = folder / f"{part}-ubyte"
        if not path.is_file():
            raise FileNotFoundError(f"data.root lacks {path}; data.download=true fetches it")
        verify(path, f"{name}/{path.name}")
    train, test = (kind(root, train=part) for part in (True, False))
    return Images(train.data, train.targets, test.data, test.targets)


def _fetch(kind: Callable[..., object], root: Path) -> None:
    try:
        kind(root, download=True)
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConnectionError(
            f"the data cannot be downloaded to {root} ({reason}); give data.root of a local copy, "
            "or data.root=null for the sample in the repository"
        ) from error
