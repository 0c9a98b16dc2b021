"""Draw the samples of Adult and COMPAS from the complete files.

    python -m experiments.data.make_tabular_sample FOLDER

FOLDER contains adult/ and compas/. At most 4,000 training and 2,000 test rows of each are drawn
without replacement. Writes adult.npz and compas.npz to this folder and their checksums to
SHA256SUMS.
"""

import argparse
import hashlib

import numpy as np
import torch

from experiments.data.images import FOLDER, SUMS
from experiments.data.tabular import Table, TableSource

TRAIN, TEST = 4000, 2000


def draw(table: Table, generator: torch.Generator) -> dict[str, np.ndarray]:
    """The arrays of one sample."""
    train = torch.randperm(len(table.train), generator=generator)[:TRAIN]
    test = torch.randperm(len(table.test), generator=generator)[:TEST]
    arrays = {
        "train": table.train[train],
        "train_labels": table.train_labels[train].byte(),
        "train_groups": table.train_groups[train].byte(),
        "test": table.test[test],
        "test_labels": table.test_labels[test].byte(),
        "test_groups": table.test_groups[test].byte(),
    }
    return {name: value.numpy() for name, value in arrays.items()}


def main() -> None:
    """Draw, and write the tables and the checksums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    root = parser.parse_args().folder
    for dataset in ("adult", "compas"):
        table = TableSource(dataset, root).load()
        arrays = draw(table, torch.Generator().manual_seed(0))
        path = FOLDER / f"{dataset}.npz"
        np.savez_compressed(path, features=np.array(table.features), **arrays)
        SUMS[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.name}: {len(arrays['train'])} rows, {path.stat().st_size / 1e6:.2f} MB")
    lines = [f"{value}  {name}\n" for name, value in sorted(SUMS.items())]
    (FOLDER / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main()
