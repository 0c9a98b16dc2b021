"""A picture of a clustering: the first images of each cluster, in red if their class differs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray

from experiments.atomic_files import replacing

Ints = NDArray[np.int64]
SHOWN = 14  # images of each cluster


def write_picture(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the picture of a clustering as PNG."""
    with replacing(path) as temporary:
        imsave(temporary, picture(rows), format="png")


def picture(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.uint8]:
    """The picture of a clustering from its rows, as `clusters.evaluate` returns them."""
    seen = [row for row in rows if row["pixels"]]
    pixels = b"".join(bytes.fromhex(row["pixels"]) for row in seen)
    size = 1 + max(max(int(row["cluster"]), int(row["label"])) for row in rows)
    return mosaic(
        np.array([int(row["cluster"]) for row in seen]),
        np.array([int(row["label"]) for row in seen]),
        np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 28, 28),
        size,
    )


def mosaic(clusters: Ints, labels: Ints, images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """One row of images for each of the clusters 0, …, size − 1, images of other classes in red."""
    rows = []
    for c in range(size):
        row = np.full((28, 28 * SHOWN, 3), 255, dtype=np.uint8)
        for i, member in enumerate(shown(clusters, c)):
            tile = np.repeat(255 - images[member][:, :, None], 3, axis=2)
            if labels[member] != c:
                tile[:, :, 0] = np.maximum(tile[:, :, 0], 220)
            row[:, 28 * i : 28 * (i + 1)] = tile
        rows.append(row)
    return np.concatenate(rows)


def shown(clusters: Ints, c: int) -> list[int]:
    """The first members in the order of the data, so that errors show as often as they occur."""
    return [int(member) for member in np.flatnonzero(clusters == c)[:SHOWN]]
