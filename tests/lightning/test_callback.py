"""What the callback logs, observes and stops."""

import pytest

pytest.importorskip("lightning")
import csv
from pathlib import Path

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger

from tests.lightning.small_module import Lit, assert_equal, fit, loader, plain, trainer
from tests.training.small_training import Net, batches, measure, registry
from torch_powalm.lightning import PowerALMCallback

# Records, progress bar, validation


def rows(folder):
    with (Path(folder) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def column(folder, name):
    return [float(row[name]) for row in rows(folder) if row.get(name)]


def test_records_are_logged_with_violations_and_multipliers_by_block(tmp_path):
    module = Lit()
    run = fit(module, logger=CSVLogger(tmp_path), enable_progress_bar=False)
    _, optimizer, records = plain()
    folder = run.logger.log_dir
    for name in ("primal_residual", "beta", "sigma", "y_norm", "k"):
        expected = [getattr(record, name) for record in records]
        assert column(folder, f"powalm/{name}") == pytest.approx(expected, rel=1e-6)
    for block in ("unit_rows", "budget", "balance", "class_loss"):
        expected = [record.violations[block].max for record in records]
        assert column(folder, f"powalm/violation/{block}") == pytest.approx(expected, rel=1e-6)
        y = optimizer.state_dict()["powalm"]["y"][block]
        assert column(folder, f"powalm/y/{block}")[-1] == pytest.approx(float(y.norm()), rel=1e-6)
    assert len(column(folder, "powalm/dual_residual")) == 3
    assert {"powalm/primal_residual", "powalm/beta"} <= run.progress_bar_metrics.keys()
    assert "powalm/sigma" not in run.progress_bar_metrics


def test_updates_by_steps_are_logged_at_every_update(tmp_path):
    run = trainer(PowerALMCallback(steps=2), logger=CSVLogger(tmp_path))
    run.fit(Lit(), loader())
    _, _, records = plain(steps=2)
    assert column(run.logger.log_dir, "powalm/primal_residual") == pytest.approx(
        [record.primal_residual for record in records], rel=1e-6
    )
    assert "powalm/primal_residual" in run.progress_bar_metrics


def test_validation_is_observed_without_touching_the_multipliers(tmp_path):
    module = Lit()
    run = trainer(PowerALMCallback(), logger=CSVLogger(tmp_path), num_sanity_val_steps=1)
    other = [(x * 0.5, target) for x, target in batches()]
    run.fit(module, loader(), loader(other))
    assert_equal(module, run, *plain()[:2])
    with torch.no_grad():
        values = [measure(module.net, *batch)[1] for batch in other]
    balance = sum(float(v["balance"]) for v in values) / 3
    seen = column(run.logger.log_dir, "powalm/val/violation/balance")
    assert len(seen) == 3  # the sanity check is not logged
    assert seen[-1] == pytest.approx(abs(balance), rel=1e-5)
    count = sum(v["class_loss"][1] for v in values)
    class_loss = sum(v["class_loss"][0] * v["class_loss"][1] for v in values) / count
    worst = column(run.logger.log_dir, "powalm/val/violation/class_loss")
    assert worst[-1] == pytest.approx(max(0.0, float(class_loss.max())), rel=1e-5)
    rows_now = float(module.net.unit_rows().detach().abs().max())
    unit = column(run.logger.log_dir, "powalm/val/violation/unit_rows")
    assert unit[-1] == pytest.approx(rows_now, rel=1e-5)
    largest = column(run.logger.log_dir, "powalm/val/max_violation")
    assert largest[-1] >= max(seen[-1], unit[-1])
    assert not module.constraints.take_observed()  # each validation takes its own


def test_a_validation_alone_is_observed_too():
    module = Lit()
    run = trainer(PowerALMCallback())
    (metrics,) = run.validate(module, loader(), verbose=False)
    assert metrics["powalm/val/violation/balance"] > 0
    assert metrics["powalm/val/max_violation"] == pytest.approx(
        max(v for name, v in metrics.items() if "violation/" in name)
    )


def test_a_test_is_observed_too():
    class Tested(Lit):
        test_step = Lit.validation_step

    module = Tested()
    run = fit(module)
    other = [(x * 0.5, target) for x, target in batches()]
    (metrics,) = run.test(module, loader(other), verbose=False)
    with torch.no_grad():
        balance = sum(float(measure(module.net, *batch)[1]["balance"]) for batch in other) / 3
    assert metrics["powalm/test/violation/balance"] == pytest.approx(abs(balance), rel=1e-5)
    unit_rows = float(module.net.unit_rows().detach().abs().max())
    assert metrics["powalm/test/violation/unit_rows"] == pytest.approx(unit_rows, rel=1e-5)
    assert metrics["powalm/test/max_violation"] == max(
        value for name, value in metrics.items() if "violation/" in name
    )


def test_observe_takes_batch_blocks_only():
    constraints = registry(Net())
    for name in ("unit_rows", "unknown"):
        with pytest.raises(KeyError, match=f"observe has no batch constraint '{name}'"):
            constraints.observe(**{name: torch.ones(5)})
    with pytest.raises(ValueError, match="samples must be positive and finite, got 0"):
        constraints.observe(balance=torch.ones(1), samples=0)
    assert constraints.take_observed() == {}


# Stopping


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_training_stops_when_an_update_sees_both_tolerances_hold(first):
    _, _, records = plain(epochs=12)
    eps = records[4].primal_residual * 1.0001
    enough = next(r.k for r in records if r.primal_residual <= eps)
    callback, other = PowerALMCallback(eps_A=eps), L.Callback()
    run = trainer(*((callback, other) if first else (other, callback)), max_epochs=12)
    run.fit(Lit(), loader())
    assert run.current_epoch == enough
    demanding = trainer(PowerALMCallback(eps_A=eps, eps_phi=1e-9), max_epochs=6)
    demanding.fit(Lit(), loader())
    assert demanding.current_epoch == 6
    easy = trainer(PowerALMCallback(eps_phi=1e9), max_epochs=6)
    easy.fit(Lit(), loader())
    assert easy.current_epoch == 1


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_stock_early_stopping_reads_the_logged_residual(first):
    _, _, records = plain(epochs=12)
    threshold = records[4].primal_residual * 1.0001
    enough = next(r.k for r in records if r.primal_residual <= threshold)
    stop = EarlyStopping(
        "powalm/primal_residual",
        stopping_threshold=threshold,
        check_on_train_epoch_end=True,
        patience=99,
    )
    callbacks = [PowerALMCallback(), stop]
    run = trainer(*(callbacks if first else callbacks[::-1]), max_epochs=12)
    run.fit(Lit(), loader())
    assert run.current_epoch == enough
