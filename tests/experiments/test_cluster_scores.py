"""Clusters of a solution: matching, scores, picture."""

import numpy as np
import pytest

from experiments import cluster_picture, clusters


def test_clusters_of_an_ideal_solution_are_its_classes():
    labels = np.repeat(np.arange(3), 10)
    X = np.zeros((30, 5))
    X[labels == 0, 3] = X[labels == 1, 0] = 1 / np.sqrt(10)
    X[labels == 2, 1] = X[labels == 2, 4] = 1 / np.sqrt(20)  # a cluster on two columns
    found = clusters.match(clusters.cluster(X, 3), labels)
    assert found.tolist() == labels.tolist()
    assert clusters.scores(found, labels) == pytest.approx({"accuracy": 1, "nmi": 1, "ari": 1})


def test_accuracy_counts_points_outside_the_class_of_their_cluster():
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert clusters.scores(np.array([1, 1, 0, 0, 0, 0]), labels)["accuracy"] == pytest.approx(5 / 6)


def test_the_picture_marks_images_of_another_class():
    pixels = np.full((3, 28, 28), 255, dtype=np.uint8)
    picture = cluster_picture.mosaic(np.array([0, 0, 1]), np.array([0, 1, 1]), pixels, 2)
    assert picture.shape == (56, 28 * cluster_picture.SHOWN, 3)
    assert picture[10, 10].tolist() == [0, 0, 0]
    assert picture[10, 38].tolist() == [220, 0, 0]
    assert picture[10, 66].tolist() == [255, 255, 255]
