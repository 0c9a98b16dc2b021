"""No sample is used twice: data of two loaders that overlap are refused, also when wrapped."""

import copy

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from torch_powalm import ConstraintRegistry, Rates, certify
from torch_powalm.certification.held_out_data import check_apart, check_once


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return torch.tensor([float(i)])


class Doubled(Numbers):
    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)


class Prefetched:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


DATA, ROWS = Numbers(), torch.arange(20.0).reshape(10, 2)
FIRST = DataLoader(Subset(DATA, range(5)))
PAIRS = [(row, 1) for row in ROWS]
TABLE = ROWS.numpy()


def sampled(positions):
    return DataLoader(DATA, sampler=positions)


@pytest.mark.parametrize(
    ("one", "other", "got"),
    [
        (FIRST, FIRST, "the same loader"),
        (FIRST, DataLoader(DATA), "5 samples in common"),
        (FIRST, DataLoader(Subset(DATA, [4, 5])), "1 samples in common"),
        (FIRST, DataLoader(Subset(Subset(DATA, range(3, 9)), [0])), "1 samples in common"),
        (DataLoader(DATA, sampler=SubsetRandomSampler([9])), DataLoader(DATA), "1 samples"),
        (DataLoader(TensorDataset(ROWS)), DataLoader(TensorDataset(ROWS[8:])), "2 samples"),
        ([(ROWS[:4], 0)], [{"x": ROWS[3:6]}], "1 samples in common"),
        ([ROWS[:4]], DataLoader(TensorDataset(ROWS)), "4 samples in common"),
        (FIRST, copy.copy(FIRST), "5 samples in common"),
        (FIRST, Prefetched(DataLoader(DATA, shuffle=True)), "5 samples in common"),
        (FIRST, DataLoader(Doubled(DATA)), "5 samples in common"),
        (DataLoader(Doubled(Subset(DATA, [7, 8]))), sampled([8]), "1 samples in common"),
        (DataLoader(StackDataset(x=DATA, y=ROWS)), FIRST, "5 samples in common"),
        (sampled([1, 2]), DataLoader(DATA, batch_sampler=[[0], [1, 2]]), "2 samples in common"),
        (DataLoader(PAIRS[:6]), DataLoader(PAIRS[4:]), "2 samples in common"),
        ([torch.from_numpy(TABLE[:5])], [torch.from_numpy(TABLE[4:])], "1 samples in common"),
    ],
)
def test_overlapping_data_are_refused(one, other, got):
    with pytest.raises(ValueError, match=f"loader must have no samples of the training, got {got}"):
        check_apart("loader", one, [("the training", other)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FIRST, DataLoader(Subset(DATA, range(5, 10)))),
        (FIRST, DataLoader(Numbers())),
        ([ROWS[:4]], [ROWS[4:]]),
        (DataLoader(TensorDataset(ROWS[:8])), DataLoader(TensorDataset(ROWS[8:]))),
        ([torch.tensor(1.0)], [1]),
        (iter([1]), iter([2])),
        (sampled([0, 1]), sampled(range(2, 10))),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2]]), sampled(torch.tensor([3, 4]))),
        (DataLoader(Doubled(Subset(DATA, [0, 1]))), DataLoader(Doubled(Subset(DATA, [2])))),
        (DataLoader(PAIRS[:5]), DataLoader(PAIRS[5:])),
        (DataLoader([1, 2]), DataLoader([1, 2])),
    ],
)
def test_data_that_do_not_overlap_pass(one, other):
    assert check_apart("loader", one, [("the training", other)]) is None


def test_samples_that_are_drawn_by_weight_are_refused():
    weights = torch.arange(1.0, 11.0)
    some, everything = (WeightedRandomSampler(weights, n, replacement=False) for n in (5, 10))
    with pytest.raises(ValueError, match="must draw every sample once, got WeightedRandomSampler"):
        check_once("loader", sampled(some))
    assert check_once("loader", sampled(everything)) is None


def test_certify_refuses_data_of_the_training():
    constraints, loader = ConstraintRegistry(), DataLoader(DATA)
    constraints.inequality("missed", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.05)
    with pytest.raises(ValueError, match=r"loader must have no samples of seen\[1\], got 5"):
        certify(
            *(constraints, lambda batch: {}, FIRST),
            kinds={"missed": Rates()},
            seen=[DataLoader(Numbers()), loader],
        )
