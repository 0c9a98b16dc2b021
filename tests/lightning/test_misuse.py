"""Misuse of the callback, and installations without Lightning."""

import pytest

pytest.importorskip("lightning")
import importlib
import sys

import lightning as L  # noqa: N812
import pytorch_lightning
import torch

import torch_powalm
from tests.lightning.small_module import (
    Lit,
    Manual,
    Scaled,
    assert_equal,
    fit,
    loader,
    plain,
    trainer,
)
from tests.training.small_training import batches
from torch_powalm.lightning import FeasibleCheckpoint, PowerALMCallback

# Misuse


def test_a_callback_without_a_wrapped_optimizer_raises():
    class Plain(Lit):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    with pytest.raises(ValueError, match=r"must return a PowerALMOptimizer .*, got Adam"):
        fit(Plain(batch=False))


@pytest.mark.parametrize("batch", [True, False], ids=["batch", "static"])
@pytest.mark.parametrize("kind", ["plain", "scaler", "manual", "scheduler", "other name"])
def test_a_wrapped_optimizer_without_the_callback_warns_once(kind, batch):
    settings = dict(plugins=[Scaled()]) if kind == "scaler" else {}
    module = {"manual": Manual, "other name": OtherLit}.get(kind, Lit)(batch=batch)
    module.scheduler = kind == "scheduler"
    flavor = pytorch_lightning if kind == "other name" else L
    with pytest.warns(UserWarning, match="has no PowerALMCallback") as caught:
        trainer(flavor=flavor, **settings).fit(module, loader())
    ours = [w for w in caught if "has no PowerALMCallback" in str(w.message)]
    assert len(ours) == 1
    assert "update_multipliers()" in str(ours[0].message)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_step_that_the_module_makes_by_itself_does_not_warn():
    class Own(Manual):
        def configure_optimizers(self):
            self.own = super().configure_optimizers()
            return torch.optim.SGD(self.parameters(), lr=0.0)

        def optimizers(self):
            return self.own

    module = Own()
    trainer(max_epochs=1).fit(module, loader())  # warnings are errors
    assert module.own.epoch.steps == len(batches())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(steps=2, lam=1.0), "takes at most one of epochs, steps and lam, got None, 2 and 1.0"),
        (dict(steps=0), "steps must be a positive integer, got 0"),
        (dict(epochs=0.5), "epochs must be a positive integer, got 0.5"),
        (dict(lam=-1.0), "lam must be positive, got -1.0"),
        (dict(eps_A=0.0), "eps_A must be positive, got 0.0"),
        (dict(eps_phi=-2), "eps_phi must be positive, got -2"),
    ],
)
def test_a_setting_of_the_callback_out_of_range_raises(settings, message):
    with pytest.raises(ValueError, match=message):
        PowerALMCallback(**settings)


def import_without(monkeypatch, *missing):
    """Import torch_powalm.lightning anew, as if some names of Lightning were not installed."""
    for name in list(sys.modules):
        if name.split(".")[0] in missing:
            monkeypatch.setitem(sys.modules, name, None)  # its import raises ModuleNotFoundError
        elif name.startswith("torch_powalm.lightning"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(torch_powalm, "lightning")
    return importlib.import_module("torch_powalm.lightning")


def test_without_lightning_the_import_names_the_extra(monkeypatch):
    with pytest.raises(ImportError, match=r"pip install 'torch-powalm\[lightning\]'"):
        import_without(monkeypatch, "lightning", "pytorch_lightning")


@pytest.mark.parametrize("missing", ["lightning", "pytorch_lightning"])
def test_one_of_the_names_of_lightning_is_enough(missing, monkeypatch):
    package = import_without(monkeypatch, missing)
    other = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}[missing]
    for kind in (package.FeasibleCheckpoint, package.PowerALMCallback):
        assert [base.__module__.split(".")[0] for base in kind.__bases__] == [other]
    assert package.PowerALMCallback is not PowerALMCallback


@pytest.mark.parametrize("callback", [PowerALMCallback, FeasibleCheckpoint])
@pytest.mark.parametrize("flavor", [L.pytorch, pytorch_lightning])
def test_a_callback_is_one_of_both_import_names(callback, flavor):
    # Lightning 2.3 to 2.5 reject a callback of the other name.
    assert issubclass(callback, flavor.Callback)


class OtherLit(pytorch_lightning.LightningModule):
    """The other name of Lightning has classes of its own."""

    configure_optimizers = Lit.configure_optimizers
    training_step = Lit.training_step
    validation_step = Lit.validation_step

    def __init__(self, batch=True):
        pytorch_lightning.LightningModule.__init__(self)
        twin = Lit(batch=batch)
        self.net, self.constraints = twin.net, twin.constraints
        self.base, self.settings, self.skip = twin.base, twin.settings, None
        self.scheduler, self.batch = False, batch


def test_both_import_names_of_lightning_work(tmp_path):
    module = OtherLit()
    checkpoint = FeasibleCheckpoint(1e-3, dirpath=tmp_path, save_last=True)
    run = trainer(PowerALMCallback(), checkpoint, flavor=pytorch_lightning)
    run.fit(module, loader(), loader())
    assert_equal(module, run, *plain()[:2])
    assert checkpoint.best_model_path
    assert len(run.checkpoint_callbacks) == 1  # the trainer has not added its own
    again = OtherLit()
    run = trainer(PowerALMCallback(), flavor=pytorch_lightning, max_epochs=5)
    run.fit(again, loader(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert_equal(again, run, *plain(epochs=5)[:2])
