"""optimizer.history: rows, tables, files and pictures."""

import copy
import csv
import math

import pytest
import torch
from torch import nn

from torch_powalm import ConstraintRegistry, PowerALMOptimizer


def trained(updates=3, loss=False, **settings):
    x = nn.Parameter(torch.tensor([2.0, -1.0]))
    constraints = ConstraintRegistry()
    constraints.equality("sphere", lambda: x.square().sum() - 1)
    constraints.inequality("half", lambda: x.sum() - 0.5)
    optimizer = PowerALMOptimizer(torch.optim.SGD([x], 0.01), constraints, **settings)
    records = []
    for _ in range(updates):
        for _ in range(4):
            optimizer.zero_grad()
            value = x.sum()
            value.backward()
            optimizer.step()
            if loss:
                optimizer.history.log_loss(value)
        records.append(optimizer.update_multipliers())
    return optimizer, records


def test_every_update_adds_one_row():
    optimizer, records = trained(beta_1=1.0)
    history = optimizer.history
    assert [row.record for row in history] == records
    assert [row.step for row in history] == [4, 8, 12]
    assert len(history) == 3
    y = optimizer.blocks.split(optimizer.dual.y)
    assert history[-1].multipliers == {n: pytest.approx(v.norm().item()) for n, v in y.items()}
    assert str(history).splitlines() == [str(record) for record in records]


def test_an_update_that_is_too_soon_adds_no_row():
    optimizer, _ = trained(updates=2)  # still measuring
    assert len(optimizer.history) == 0
    assert str(optimizer.history) == "no update yet"


def test_the_table_has_the_columns_of_the_log():
    pytest.importorskip("pandas")
    optimizer, records = trained(beta_1=1.0)
    row = optimizer.history.to_dicts()[1]
    assert row["violation/sphere"] == records[1].violations["sphere"].max
    assert row["max_violation"] == max(v.max for v in records[1].violations.values())
    assert (row["k"], row["step"], row["signals"]) == (2, 8, "")
    assert math.isnan(row["loss"])
    frame = optimizer.history.to_dataframe()
    assert list(frame.columns) == list(row)
    assert frame["y/sphere"].iloc[-1] == optimizer.history[-1].multipliers["sphere"]


def test_the_file_has_one_line_per_update(tmp_path):
    optimizer, _ = trained(beta_1=1.0)
    optimizer.history.to_csv(tmp_path / "history.csv")
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["k"]) for row in rows] == [1, 2, 3]
    assert float(rows[0]["beta"]) == 1.0


def test_losses_are_averaged_between_updates():
    optimizer, _ = trained(updates=1, beta_1=1.0)
    history = optimizer.history
    history.log_loss(5.0)  # right after the update: it belongs to that row
    assert history[0].loss == 5.0
    for value in (1.0, torch.tensor(2.0)):
        optimizer.zero_grad()
        optimizer.step()
        history.log_loss(value)
    optimizer.update_multipliers()
    assert [row.loss for row in history] == [5.0, 1.5]


@pytest.mark.parametrize("loss", [True, False])
def test_a_picture_shows_violations_multipliers_and_loss(tmp_path, loss, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "agg")
    optimizer, _ = trained(beta_1=1.0, loss=loss)
    path = tmp_path / "history.png"
    figure = optimizer.history.plot(path, tolerance={"sphere": 1e-2})
    assert path.stat().st_size > 1000
    labels = [axis.get_ylabel() for axis in figure.axes]
    assert labels == ["largest violation", "norm of multipliers", "loss"][: 3 if loss else 2]
    assert len(figure.axes[0].lines) == 3  # two blocks and one tolerance
    with pytest.raises(KeyError, match="tolerance has no constraint 'cube'"):
        optimizer.history.plot(tolerance={"cube": 1.0})


def test_an_empty_history_is_an_empty_table_and_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    monkeypatch.setenv("MPLBACKEND", "agg")
    optimizer, _ = trained(updates=0)
    optimizer.history.to_csv(tmp_path / "history.csv")
    optimizer.history.plot(tmp_path / "history.png")
    assert len(optimizer.history.to_dataframe()) == 0


def test_a_copy_has_its_own_history():
    optimizer, _ = trained(beta_1=1.0)
    other = copy.deepcopy(optimizer)
    other.update_multipliers()
    assert (len(other.history), len(optimizer.history)) == (4, 3)


def test_a_checkpoint_holds_no_history():
    optimizer, _ = trained(beta_1=1.0)
    other, _ = trained(updates=0, beta_1=1.0)
    other.load_state_dict(optimizer.state_dict())
    assert len(other.history) == 0
    other.step()
    assert other.update_multipliers().k == 4
    assert [row.step for row in other.history] == [13]
