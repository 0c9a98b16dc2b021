"""A training under Lightning resumes from its checkpoints bit for bit."""

import math

import pytest

pytest.importorskip("lightning")
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

from tests.lightning.small_module import Lit, Stop, assert_equal, fit, loader, plain, trainer
from tests.lightning.test_trainer import momentum
from tests.training.small_training import batches, measure, multipliers
from torch_powalm.lightning import PowerALMCallback
from torch_powalm.training.checkpoint_io import last_checkpoint

# Resuming


class Resumable:
    """A loader that knows where it was."""

    def __init__(self):
        self.first = self.done = 0

    def __len__(self):
        return len(batches())

    def __iter__(self):
        self.done, self.first = self.first, 0
        for batch in batches()[self.done :]:
            self.done += 1
            yield batch

    def state_dict(self):
        return {"done": self.done % len(self)}

    def load_state_dict(self, state):
        self.first = state["done"]


RESUME = {
    "train end": (dict(save_on_train_epoch_end=True), {}),
    "validation end": (dict(save_on_train_epoch_end=False), {}),
    "mid-epoch": (dict(every_n_train_steps=2), {}),
    "last batch": (dict(every_n_train_steps=3), {}),  # Lightning leaves the epoch's end out
    "last batch, two epochs": (dict(every_n_train_steps=3), dict(epochs=2)),
    "by steps, mid-epoch": (dict(every_n_train_steps=2), dict(steps=2)),
}


@pytest.mark.parametrize("name", RESUME)
def test_a_crashed_training_resumes_to_the_same_bits(name, tmp_path):
    saving, rule = RESUME[name]

    def run(folder, *callbacks, **settings):
        module = Lit(scheduler=True, base=momentum)
        saver = ModelCheckpoint(tmp_path / folder, save_top_k=-1, **saving)
        it = trainer(PowerALMCallback(**rule), saver, *callbacks, max_epochs=5)
        it.fit(module, Resumable(), loader(), **settings)
        return module, it

    straight, reference = run(tmp_path / "straight")
    with pytest.raises(KeyError, match="crash"):
        run(tmp_path / "crashed", Stop(3, 1 if "mid" in name else None))
    path = last_checkpoint(tmp_path / "crashed")
    resumed, it = run(tmp_path / "resumed", ckpt_path=path)
    for p, q in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(multipliers(reference.optimizers[0]), multipliers(it.optimizers[0]))
    assert it.optimizers[0].dual.k == reference.optimizers[0].dual.k
    for metric, value in reference.callback_metrics.items():
        assert float(value) == float(it.callback_metrics[metric]), metric


class PerSample(Lit):
    """The same with a bound on the loss of every sample."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.constraints.inequality("sample", size=12, indexed=True)

    def training_step(self, batch, index):
        losses = cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        sample = losses - 0.5, 4 * index + torch.arange(4)
        values = measure(self.net, *batch)[1]
        return self.optimizers().augment(losses.mean(), sample=sample, **values)

    def validation_step(self, batch, index):
        pass


def test_one_constraint_for_each_sample_resumes_to_the_same_bits(tmp_path):
    def run(folder, *callbacks, **settings):
        module = PerSample(base=momentum)
        saver = ModelCheckpoint(tmp_path / folder, save_top_k=-1, every_n_train_steps=2)
        it = trainer(PowerALMCallback(), saver, *callbacks, max_epochs=5)
        it.fit(module, Resumable(), **settings)
        return it

    straight = run("straight")
    with pytest.raises(KeyError, match="crash"):
        run("crashed", Stop(3, 1))
    resumed = run("resumed", ckpt_path=last_checkpoint(tmp_path / "crashed"))
    states = [it.optimizers[0].state_dict() for it in (straight, resumed)]
    assert float(states[0]["powalm"]["indexed"]["sample"]["y"].max()) > 0
    torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
    found = straight.callback_metrics
    assert float(found["powalm/violation/sample"]) == float(
        resumed.callback_metrics["powalm/violation/sample"]
    )


def test_a_checkpoint_needs_no_pickle_and_carries_the_multipliers_twice(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="one")
    run = fit(Lit(), saver)
    saved = torch.load(tmp_path / "one.ckpt", weights_only=True)
    y = multipliers(run.optimizers[0])
    own = saved["optimizer_states"][0]["powalm"]["y"]
    ours = saved["callbacks"]["PowerALMCallback"]["optimizers"][0]["y"]
    assert torch.equal(torch.cat(list(own.values())), y)
    assert torch.equal(torch.cat(list(ours.values())), y)


def test_a_checkpoint_made_without_the_callback_is_resumed_with_it(tmp_path):
    class Updating(Lit):
        def on_train_epoch_end(self):
            self.optimizers().update_multipliers()

    saver = ModelCheckpoint(tmp_path, filename="one", save_on_train_epoch_end=True)
    with pytest.warns(UserWarning, match="has no PowerALMCallback"):
        trainer(saver, max_epochs=2).fit(Updating(), loader())
    module = Lit()
    run = trainer(PowerALMCallback(), max_epochs=4)
    run.fit(module, loader(), ckpt_path=tmp_path / "one.ckpt")
    assert_equal(module, run, *plain(epochs=4)[:2])


def test_a_checkpoint_without_multipliers_is_said(tmp_path):
    class Plain(Lit):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02)

    saver = ModelCheckpoint(tmp_path, filename="one")
    trainer(saver, max_epochs=1).fit(Plain(batch=False), loader())
    run = trainer(PowerALMCallback(), max_epochs=2)
    with pytest.warns(UserWarning, match="checkpoint has no multipliers; they start from 0"):
        run.fit(Lit(batch=False), loader(), ckpt_path=tmp_path / "one.ckpt")


def test_a_checkpoint_of_another_number_of_optimizers_raises(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="one")
    fit(Lit(), saver, max_epochs=1)
    callback = PowerALMCallback()
    callback.load_state_dict({"optimizers": [{}, {}]})
    with pytest.raises(ValueError, match="must have multipliers of 1 optimizers, got 2"):
        trainer(callback).fit(Lit(), loader())


@pytest.mark.parametrize("epoch", [None, "two", math.nan, -1, torch.tensor([1, 2])])
def test_a_damaged_epoch_is_named(epoch):
    with pytest.raises(ValueError, match=r"checkpoint\['epoch'\] must be"):
        PowerALMCallback().on_load_checkpoint(None, None, {"epoch": epoch})
