"""Adult and COMPAS as standardized tables: a sample in this folder, or the complete files."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data.images import FOLDER, verify

ADULT = (
    *("age", "workclass", "weight", "education", "education_years", "marital", "occupation"),
    *("relationship", "race", "sex", "gain", "loss", "hours", "country", "income"),
)
COMPAS_NUMBERS = ("age", "priors_count", "juv_fel_count", "juv_misd_count", "juv_other_count")
LARGEST = 4.0  # absolute value of a standardized feature; rare categories reach 58
TEST_SHARE = 0.3  # of COMPAS, which has no test file


class Table(NamedTuple):
    """Rows for training and testing.

    Args:
        train: features of mean 0 and deviation 1 on all training rows, then clipped at ±4.
        train_labels: 0 or 1; income above 50K, or recidivism within two years.
        train_groups: 0 or 1; women (Adult), African-American defendants (COMPAS).
        test: features of the test rows, scaled like those for training.
        test_labels: as for training.
        test_groups: as for training.
        features: names of the columns.
    """

    train: Tensor
    train_labels: Tensor
    train_groups: Tensor
    test: Tensor
    test_labels: Tensor
    test_groups: Tensor
    features: tuple[str, ...]


@dataclass(frozen=True)
class TableSource:
    """Source of a table; the checksum of a sample is verified.

    Args:
        dataset: "adult" or "compas".
        root: folder with adult/adult.data, adult/adult.test and compas/compas-scores-two-years.csv;
            None for the sample.
    """

    dataset: str
    root: str | None = None

    def __post_init__(self) -> None:
        if self.dataset not in ("adult", "compas"):
            raise ValueError(f"dataset must be adult or compas, got {self.dataset!r}")

    def load(self) -> Table:
        """The table; repeated calls return the same tensors."""
        return _load(self.dataset, self.root)


@cache
def _load(dataset: str, root: str | None) -> Table:
    if root is not None:
        folder = Path(root) / dataset
        return adult(folder) if dataset == "adult" else compas(folder)
    path = FOLDER / f"{dataset}.npz"
    verify(path, path.name)
    with np.load(path) as arrays:
        columns = [torch.from_numpy(arrays[name]).float() for name in Table._fields[:-1]]
        return Table(*columns, features=tuple(arrays["features"].tolist()))


def adult(folder: Path) -> Table:
    """Adult without rows that have missing entries; sex is a group, not a feature."""
    parts = [_adult_rows(folder / name) for name in ("adult.data", "adult.test")]
    rows = parts[0] + parts[1]
    features = {
        "age": [float(row["age"]) for row in rows],
        "education_years": [float(row["education_years"]) for row in rows],
        "gain": np.log1p([float(row["gain"]) for row in rows]),
        "loss": np.log1p([float(row["loss"]) for row in rows]),
        "hours": [float(row["hours"]) for row in rows],
        "from_us": [row["country"] == "United-States" for row in rows],
    }
    for column in ("workclass", "marital", "occupation", "relationship", "race"):
        for value in sorted({row[column] for row in rows}):
            features[f"{column}={value}"] = [row[column] == value for row in rows]
    labels = [row["income"].startswith(">50K") for row in rows]
    groups = [row["sex"] == "Female" for row in rows]
    return _table(features, labels, groups, np.arange(len(rows)) < len(parts[0]))


def compas(folder: Path) -> Table:
    """COMPAS with ProPublica's filter; race is a group, not a feature."""
    with (folder / "compas-scores-two-years.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if _kept(row)]
    features = {name: [float(row[name]) for row in rows] for name in COMPAS_NUMBERS}
    features["felony"] = [row["c_charge_degree"] == "F" for row in rows]
    features["male"] = [row["sex"] == "Male" for row in rows]
    labels = [row["two_year_recid"] == "1" for row in rows]
    groups = [row["race"] == "African-American" for row in rows]
    train = np.random.default_rng(0).random(len(rows)) >= TEST_SHARE
    return _table(features, labels, groups, train)


def _adult_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        lines = [line for line in csv.reader(file, skipinitialspace=True)]
    return [
        dict(zip(ADULT, line, strict=True))
        for line in lines
        if len(line) == len(ADULT) and "?" not in line
    ]


def _kept(row: dict[str, str]) -> bool:
    days = row["days_b_screening_arrest"]
    return (
        days != ""
        and abs(float(days)) <= 30
        and row["is_recid"] != "-1"
        and row["c_charge_degree"] != "O"
        and row["score_text"] != "N/A"
    )


def _table(
    features: dict[str, Sequence[float]],
    labels: Sequence[bool],
    groups: Sequence[bool],
    train: np.ndarray,
) -> Table:
    x = np.stack([np.asarray(column, dtype=np.float64) for column in features.values()], axis=1)
    x = ((x - x[train].mean(0)) / x[train].std(0)).clip(-LARGEST, LARGEST)
    columns = [x.astype(np.float32), np.float32(labels), np.float32(groups)]
    parts = [torch.from_numpy(c[rows]) for rows in (train, ~train) for c in columns]
    return Table(*parts, features=tuple(features))
