"""What a person who clusters wants: the clusters of X, their quality, the images in them."""

import csv
from pathlib import Path

import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from experiments.features import Features
from experiments.records import replacing

Ints = NDArray[np.int64]
SHOWN = 14  # images of each cluster in the picture


def cluster(points: NDArray[np.floating], s: int) -> Ints:
    """Cluster points into s groups by k-means, the best of 10 starts.

    For the rows of X, too: rows of one cluster are equal at an ideal solution, but a cluster may
    lie on several of the r > s columns, so that the largest entry of a row does not name it.
    """
    labels: Ints = KMeans(s, n_init=10, random_state=0).fit_predict(points)
    return labels


def match(clusters: Ints, labels: Ints) -> Ints:
    """Clusters renumbered such that as many points as possible have the number of their class."""
    size = max(clusters.max(), labels.max()) + 1
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (clusters, labels), 1)
    _, classes = linear_sum_assignment(table, maximize=True)
    renumbered: Ints = classes[clusters]
    return renumbered


def scores(clusters: Ints, labels: Ints) -> dict[str, float]:
    """Accuracy after matching, normalised mutual information, adjusted Rand index."""
    return {
        "accuracy": float((match(clusters, labels) == labels).mean()),
        "nmi": float(normalized_mutual_info_score(labels, clusters)),
        "ari": float(adjusted_rand_score(labels, clusters)),
    }


def write(folder: Path, X: NDArray[np.float64], features: Features, s: int) -> dict[str, object]:
    """Write clusters.csv and clusters.png; return the scores, with those of k-means beside."""
    labels = features.labels
    ours = match(cluster(X, s), labels)
    k_means = match(cluster(features.outputs, s), labels)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "clusters.csv") as path, path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", "label", "cluster", "k_means"])
        writer.writerows(np.stack([features.index, labels, ours, k_means], 1).tolist())
    with replacing(folder / "clusters.png") as path:
        imsave(path, mosaic(ours, labels, features.images), format="png")
    return {
        "network_accuracy": features.accuracy,
        **scores(ours, labels),
        "k_means": scores(k_means, labels),
    }


def mosaic(clusters: Ints, labels: Ints, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One row of images for each cluster, those of another class than the cluster's in red."""
    rows = []
    for c in range(max(clusters.max(), labels.max()) + 1):
        row = np.full((28, 28 * SHOWN, 3), 255, dtype=np.uint8)
        # In the order of the data, so that errors show as often as they occur.
        for i, member in enumerate(np.flatnonzero(clusters == c)[:SHOWN]):
            tile = np.repeat(255 - images[member][:, :, None], 3, axis=2)
            if labels[member] != c:
                tile[:, :, 0] = np.maximum(tile[:, :, 0], 220)
            row[:, 28 * i : 28 * (i + 1)] = tile
        rows.append(row)
    return np.concatenate(rows)
