"""Draw the sample from the complete data.

    python -m experiments.data.make_sample FOLDER

FOLDER contains both data sets in torchvision's layout. 5,000 training and 1,000 test images of each
are drawn without replacement and stored in the order of the draw. Writes mnist.npz and
fashion_mnist.npz to this folder and their checksums to SHA256SUMS.
"""

import argparse
import hashlib

import numpy as np
import torch

from experiments.data.images import FOLDER, NAMES, SUMS, Images, Source

TRAIN, TEST = 5000, 1000


def draw(images: Images, generator: torch.Generator) -> Images:
    """The sample of one data set."""
    train = torch.randperm(len(images.train), generator=generator)[:TRAIN]
    test = torch.randperm(len(images.test), generator=generator)[:TEST]
    return Images(
        images.train[train],
        images.train_labels[train].byte(),
        images.test[test],
        images.test_labels[test].byte(),
    )


def main() -> None:
    """Draw, and write the images and the checksums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    root = parser.parse_args().folder
    for dataset in NAMES:
        sample = draw(Source(dataset, root).load(), torch.Generator().manual_seed(0))
        path = FOLDER / f"{dataset}.npz"
        arrays = {name: value.numpy() for name, value in sample._asdict().items()}
        np.savez_compressed(path, **arrays)
        SUMS[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    lines = [f"{value}  {name}\n" for name, value in sorted(SUMS.items())]
    (FOLDER / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main()
