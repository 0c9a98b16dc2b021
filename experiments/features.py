"""Features of images: the outputs of a small network on n random test images.

    python -m experiments.features dataset=mnist|fashion_mnist [data.root=FOLDER] [n=1000]

Trains the network once for each combination of settings and stores it with its features, which
`experiments.solve` reads.
"""

import hashlib
import json
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

from experiments import hydra_cli
from experiments.atomic_files import replacing
from experiments.data.images import Source


@hydra.main(version_base="1.3", config_path=hydra_cli.CONFIGS, config_name="features")
@hydra_cli.one_line
def main(cfg: DictConfig) -> None:
    """Train or read, and print where the features are."""
    torch.set_num_threads(cfg.threads)
    features = instantiate(cfg.features)
    print(
        f"{cfg.dataset}: test accuracy {features.accuracy:.4f}, features of {len(features.labels)} "
        f"images in {features.path}"
    )


@dataclass(frozen=True)
class Training:
    """Training of the network: Adam, until the held-out loss stops falling.

    Args:
        hidden: width of the middle layer, at least 1.
        lr: step size of Adam, > 0.
        batch_size: images of a step, at least 1.
        max_epochs: bound on the epochs, at least 1.
        patience: epochs without a smaller held-out loss before training ends, at least 1.
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
    """Outputs of the network on some test images.

    Args:
        outputs: n × 10, before any softmax.
        labels: classes of the images.
        index: rows of the images in the test data.
        images: n × 28 × 28, bytes.
        accuracy: of the network on all test images.
        path: file of the features.
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
    """Train and apply the network, or read the result of an earlier call with these settings.

    Args:
        data: source of the images.
        training: of the network.
        cache: folder of stored features.
        n: number of random test images, at least 1 and at most all of them.
        seed: fixes the weights, the order of the batches and the choice of images.
        progress: draw a progress bar.
    """
    data.check_root()  # also if the features are stored already
    settings = {"dataset": data.dataset, "part": data.part, "n": n, "seed": seed}
    settings["training"] = asdict(training)
    folder = Path(cache) / f"{data.dataset}-{_digest(settings)}"
    path = folder / "features.npz"
    if not path.exists():
        images = data.load()
        if not 1 <= n <= len(images.test):
            raise ValueError(f"n must be in [1, {len(images.test)}], got {n!r}")
        from experiments import network  # Lightning takes seconds to import

        folder.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(seed)
        with replacing(folder / "network.ckpt") as checkpoint:
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
        with replacing(path) as temporary:
            np.savez_compressed(temporary, **arrays)
    return _read(path)


def _digest(settings: dict[str, Any]) -> str:
    """Eight characters that identify the settings."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _read(path: Path) -> Features:
    try:
        with np.load(path) as file:
            arrays: dict[str, Any] = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is corrupt; delete it to train again") from error
    return Features(**(arrays | {"accuracy": float(arrays["accuracy"])}), path=path)


if __name__ == "__main__":
    hydra_cli.run(main)
