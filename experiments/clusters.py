"""Clusters of a solution X and their quality."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from experiments.cluster_picture import Ints, shown
from experiments.features import Features


def cluster(points: NDArray[np.floating], s: int) -> Ints:
    """Cluster points into s groups by k-means, the best of 10 starts.

    The rows of X are clustered this way, too: rows of one cluster are equal at an ideal solution,
    but a cluster may occupy several of the r > s columns, so the largest entry of a row does not
    identify it.
    """
    labels: Ints = KMeans(s, n_init=10, random_state=0).fit_predict(points)
    return labels


def match(clusters: Ints, labels: Ints) -> Ints:
    """Renumber clusters so that as many points as possible have the number of their class."""
    size = max(clusters.max(), labels.max()) + 1
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (clusters, labels), 1)
    _, classes = linear_sum_assignment(table, maximize=True)
    renumbered: Ints = classes[clusters]
    return renumbered


def scores(clusters: Ints, labels: Ints) -> dict[str, float]:
    """Accuracy after matching, normalized mutual information, adjusted Rand index."""
    return {
        "accuracy": float((match(clusters, labels) == labels).mean()),
        "nmi": float(normalized_mutual_info_score(labels, clusters)),
        "ari": float(adjusted_rand_score(labels, clusters)),
    }


def evaluate(
    X: NDArray[np.float64], features: Features, s: int
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Score the clusters of X beside those of k-means on the features.

    Returns:
        The scores, and one row for each image: its index in the test data, class, cluster, cluster
        by k-means and, for the images that the picture shows, its pixels as hexadecimal digits.
    """
    labels = features.labels
    ours = match(cluster(X, s), labels)
    k_means = match(cluster(features.outputs, s), labels)
    pictured = {member for c in np.unique(ours) for member in shown(ours, c)}
    rows = [
        {
            "image": int(features.index[i]),
            "label": int(labels[i]),
            "cluster": int(ours[i]),
            "k_means": int(k_means[i]),
            "pixels": features.images[i].tobytes().hex() if i in pictured else "",
        }
        for i in range(len(labels))
    ]
    found = {
        "network_accuracy": features.accuracy,
        **scores(ours, labels),
        "k_means": scores(k_means, labels),
    }
    return found, rows
