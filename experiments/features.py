"""Features of images: the outputs of a small network on n random test images.

    python -m experiments.features dataset=mnist|fashion_mnist [data.root=FOLDER] [n=1000]

Trains the network once for each setting and keeps it with the features, for `solve` to read.
"""

import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig

from experiments import entry, records
from experiments.data.images import Source


@hydra.main(version_base="1.3", config_path=entry.CONFIGS, config_name="features")
@entry.one_line
def main(cfg: DictConfig) -> None:
    """Train or read, and say where the features are."""
    torch.set_num_threads(cfg.threads)
    features = instantiate(cfg.features)
    print(
        f"{cfg.dataset}: test accuracy {features.accuracy:.4f}, features of {len(features.labels)} "
        f"images in {features.path}"
    )


@dataclass(frozen=True)
class Training:
    """How the network is trained: Adam, until the held-out loss has stopped falling.

    Args:
        hidden: width of the middle layer, at least 1.
        lr: step size of Adam, > 0.
        batch_size: images of a step, at least 1.
        max_epochs: bound on the epochs, at least 1.
        patience: epochs without a smaller held-out loss until it ends, at least 1.
    """

    hidden: int = 128
    lr: float = 1e-3
    batch_size: int = 100
    max_epochs: int = 20
    patience: int = 3

    def __post_init__(self) -> None:
        for name in ("hidden", "batch_size", "max_epochs", "patience"):
            if not (value := getattr(self, name)) >= 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr!r}")


@dataclass(frozen=True)
class Features:
    """Outputs of the network with what they belong to.

    Args:
        outputs: n × 10, before any softmax.
        labels: classes of the images.
        index: rows of the images in the test data.
        images: n × 28 × 28, bytes.
        accuracy: of the network on all test images.
        path: where they are kept.
    """

    outputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    index: NDArray[np.int64]
    images: NDArray[np.uint8]
    accuracy: float
    path: Path


def extract(
    data: Source, training: Training, cache: str, n: int, seed: int, progress: bool
) -> Features:
    """Train the network and apply it, or read what an earlier call with the same settings kept.

    Args:
        data: source of the images.
        training: of the network.
        cache: folder in which features are kept.
        n: random test images, at least 1 and at most as many as there are.
        seed: fixes the weights, the order of the batches and the choice of images.
        progress: draw a progress bar.
    """
    data.check_root()  # also where the features are there already
    settings = {"dataset": data.dataset, "part": data.part, "n": n, "seed": seed}
    settings["training"] = asdict(training)
    folder = Path(cache) / f"{data.dataset}-{records.digest(settings)}"
    path = folder / "features.npz"
    if not path.exists():
        images = data.load()
        if not 1 <= n <= len(images.test):
            raise ValueError(f"n must be in [1, {len(images.test)}], got {n!r}")
        from experiments import network  # Lightning takes seconds to import

        folder.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(seed)
        with records.replacing(folder / "network.ckpt") as checkpoint:
            model = network.fit(training, images, generator, checkpoint, progress)
        index = torch.randperm(len(images.test), generator=generator)[:n]
        with torch.no_grad():
            outputs = model(images.test)
        arrays = {
            "outputs": outputs[index].numpy(),
            "labels": images.test_labels[index].numpy(),
            "index": index.numpy(),
            "images": images.test[index].numpy(),
            "accuracy": np.array(network.accuracy(outputs, images.test_labels)),
        }
        with records.replacing(path) as temporary:
            np.savez_compressed(temporary, **arrays)
    return _read(path)


def _read(path: Path) -> Features:
    try:
        with np.load(path) as file:
            arrays: dict[str, Any] = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is corrupt; delete it to train again") from error
    return Features(**(arrays | {"accuracy": float(arrays["accuracy"])}), path=path)


if __name__ == "__main__":
    entry.run(main)
