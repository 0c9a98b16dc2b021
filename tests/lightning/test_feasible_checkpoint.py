"""FeasibleCheckpoint under a trainer: which model it keeps, and after a crash the same one."""

import pytest

pytest.importorskip("lightning")
import math

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.lightning.small_module import Stop, trainer
from torch_powalm import Certificate, ConstraintRegistry, HeldOut, PowerALMOptimizer, Rates
from torch_powalm.lightning import FeasibleCheckpoint, PowerALMCallback, feasible_loss
from torch_powalm.training.checkpoint_io import last_checkpoint

ONE = torch.utils.data.DataLoader([0], batch_size=None)


class Scripted(L.LightningModule):
    """A parameter that visits given values; its violation and loss are what the script says."""

    def __init__(self, script, *, validate):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(1))
        self.script, self.validate = script, validate
        self.constraints = ConstraintRegistry()
        self.constraints.inequality("bound", size=1)

    def configure_optimizers(self):
        return PowerALMOptimizer(torch.optim.SGD([self.p], lr=0.0), self.constraints, beta_1=0.1)

    def now(self):
        loss, violation = self.script[self.current_epoch]
        return loss + 0 * self.p.sum(), violation + 0 * self.p

    def training_step(self, batch, index):
        with torch.no_grad():
            self.p.fill_(float(self.current_epoch))
        loss, violation = self.now()
        if not self.validate:
            self.log("train_loss", loss.detach(), on_step=False, on_epoch=True, batch_size=1)
        return self.optimizers().augment(loss, bound=violation)

    def validation_step(self, batch, index):
        loss, violation = self.now()
        self.constraints.observe(bound=violation)
        self.log("val_loss", loss, batch_size=1)


@pytest.mark.parametrize("validate", [True, False], ids=["validation", "training"])
@pytest.mark.parametrize(
    ("script", "best"),
    [
        ([(0.1, 0.5), (0.9, 0.0), (0.7, 1e-4), (0.8, 0.0), (0.2, 0.01)], 2),  # feasible, least loss
        ([(0.1, 0.5), (0.9, 0.02), (0.7, 0.03), (0.2, 0.3)], 1),  # none: least violation
        ([(0.1, 3e-3), (0.9, 2e-3), (0.7, 2.5e-3)], 1),  # close to each other
    ],
)
def test_the_best_model_is_feasible_or_the_least_infeasible(script, best, validate, tmp_path):
    monitor = {} if validate else {"monitor": "train_loss"}
    checkpoint = FeasibleCheckpoint(tolerance=1e-3, dirpath=tmp_path, **monitor)
    run = trainer(checkpoint, PowerALMCallback(), max_epochs=len(script))
    module = Scripted(script, validate=validate)
    run.fit(module, ONE, ONE if validate else None)
    saved = torch.load(checkpoint.best_model_path, weights_only=True)
    assert float(saved["state_dict"]["p"]) == best
    assert len(list(tmp_path.glob("*.ckpt"))) == 1


def test_the_score_orders_feasible_models_before_all_others():
    scores = [
        feasible_loss(*entry, 1e-3)
        for entry in [(-5.0, 0.0), (0.2, 1e-3), (1e6, 0.0), (0.0, 1.1e-3), (0.0, 1.2e-3), (-9, 7)]
    ]
    assert scores == sorted(scores)
    single = torch.tensor(scores)  # as Lightning holds them
    assert bool((single[1:] > single[:-1]).all())
    assert feasible_loss(0.0, math.inf, 1e-3) == math.inf
    assert feasible_loss(3.0, 1e-30, 0.0) > 1e9


def test_feasible_checkpoint_says_what_is_missing(tmp_path):
    module = Scripted([(0.1, 0.5)], validate=False)
    run = trainer(FeasibleCheckpoint(1e-3, dirpath=tmp_path), PowerALMCallback(), max_epochs=1)
    with pytest.raises(ValueError, match=r"monitor must be logged .* 'val_loss' is not among"):
        run.fit(module, ONE)
    with pytest.raises(ValueError, match="tolerance must be nonnegative and finite, got -1"):
        FeasibleCheckpoint(-1)
    with pytest.raises(ValueError, match="mode must be 'min', got 'max'"):
        FeasibleCheckpoint(1e-3, mode="max")
    for name in ("every_n_train_steps", "train_time_interval"):
        with pytest.raises(ValueError, match=rf"{name} must be None \(models are .*, got 2"):
            FeasibleCheckpoint(1e-3, **{name: 2})
    run = trainer(FeasibleCheckpoint(1e-3, dirpath=tmp_path))
    with pytest.raises(ValueError, match=r"callbacks must have a PowerALMCallback .*, got .*Feas"):
        run.fit(module, ONE)


def best_of(module, *, validate, rule=None, checkpoint=None, dirpath, **settings):
    """The epoch whose model is kept."""
    monitor = {} if validate else {"monitor": "train_loss"}
    best = FeasibleCheckpoint(1e-3, dirpath=dirpath, **monitor, **(checkpoint or {}))
    callbacks = [PowerALMCallback(**(rule or {})), best]
    run = trainer(*callbacks, max_epochs=len(module.script), **settings)
    run.fit(module, ONE, ONE if validate else None)
    saved = torch.load(best.best_model_path, weights_only=True)
    return int(saved["state_dict"]["p"]), best


@pytest.mark.parametrize("saving", [None, True, False])
def test_only_a_validated_model_is_a_candidate(saving, tmp_path):
    """With a validation every second epoch, the least losses are of models it has not seen."""
    module = Scripted([(0.1, 0.0), (0.5, 0.0), (0.2, 0.0), (0.6, 0.0)], validate=True)
    checkpoint = {"save_on_train_epoch_end": saving, "save_top_k": -1}
    settings = dict(checkpoint=checkpoint, check_val_every_n_epoch=2, dirpath=tmp_path)
    assert best_of(module, validate=True, **settings)[0] == 1
    saved = [torch.load(path, weights_only=True) for path in tmp_path.glob("*.ckpt")]
    assert sorted(int(checkpoint["state_dict"]["p"]) for checkpoint in saved) == [1, 3]


# A batch block shows its average since the last update: of epochs 0–2 and from 3 on, of two epochs
# each, or of all.
@pytest.mark.parametrize(
    ("rule", "best"), [(dict(epochs=3), 0), (dict(steps=2), 2), (dict(steps=99), 0)]
)
def test_without_validation_the_violation_is_that_of_now_also_between_updates(rule, best, tmp_path):
    script = [(0.9, 0.0), (0.1, 0.5), (0.7, 0.0), (0.2, 0.5), (0.8, 0.0)]
    module = Scripted(script, validate=False)
    found, checkpoint = best_of(module, validate=False, rule=rule, dirpath=tmp_path)
    assert found == best
    assert float(checkpoint.best_model_score) == pytest.approx(script[best][0])


class Pair(Scripted):
    """Two wrapped optimizers; the script has a violation for each."""

    def __init__(self, script, *, validate):
        super().__init__(script, validate=validate)
        self.automatic_optimization = False
        self.q = nn.Parameter(torch.zeros(1))
        self.others = ConstraintRegistry()
        self.others.inequality("other", size=1)

    def configure_optimizers(self):
        parts = ((self.p, self.constraints), (self.q, self.others))
        return [
            PowerALMOptimizer(torch.optim.SGD([x], lr=0.0), blocks, beta_1=0.1)
            for x, blocks in parts
        ]

    def training_step(self, batch, index):
        with torch.no_grad():
            self.p.fill_(float(self.current_epoch))
        loss, *violations = self.script[self.current_epoch]
        if not self.validate:
            self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=1)
        for optimizer, x, name, v in zip(
            self.optimizers(), (self.p, self.q), ("bound", "other"), violations, strict=True
        ):
            optimizer.zero_grad()
            self.manual_backward(optimizer.augment(0 * x.sum(), **{name: v + 0 * x}))
            optimizer.step()

    def validation_step(self, batch, index):
        loss, *violations = self.script[self.current_epoch]
        self.constraints.observe(bound=violations[0] + 0 * self.p)
        self.others.observe(other=violations[1] + 0 * self.q)
        self.log("val_loss", loss, batch_size=1)


@pytest.mark.parametrize("validate", [True, False], ids=["validation", "training"])
def test_a_model_is_feasible_when_the_blocks_of_all_its_optimizers_are(validate, tmp_path):
    script = [(0.1, 0.0, 0.5), (0.9, 0.0, 0.0), (0.2, 0.5, 0.0)]
    module = Pair(script, validate=validate)
    assert best_of(module, validate=validate, dirpath=tmp_path)[0] == 1


class Unknown(Scripted):
    """A block that is fine, before one that validation cannot tell (a rate of nothing)."""

    def __init__(self, script):
        super().__init__(script, validate=True)
        self.constraints = ConstraintRegistry()
        self.constraints.inequality("fine", lambda: self.p - 9)
        self.constraints.inequality("bound", size=1)
        self.constraints.inequality("last", lambda: self.p - 9)

    def training_step(self, batch, index):
        with torch.no_grad():
            self.p.fill_(float(self.current_epoch))
        return self.optimizers().augment(self.p.sum(), bound=0 * self.p)


def test_a_violation_that_is_nan_is_not_feasible(tmp_path):
    module = Unknown([(0.1, math.nan), (0.9, 0.0), (0.2, math.nan)])
    assert best_of(module, validate=True, dirpath=tmp_path)[0] == 1
    assert feasible_loss(0.1, math.nan, 1e-3) == feasible_loss(math.nan, 0.0, 1e-3) == math.inf


class Unseen(Scripted):
    """Every batch is left out, and validation does not look at the block."""

    def configure_optimizers(self):
        base = torch.optim.SGD([self.p], lr=0.0)
        return PowerALMOptimizer(base, self.constraints, on_nonfinite="skip")

    def validation_step(self, batch, index):
        self.log("val_loss", 0.5, batch_size=1)


def test_a_model_whose_violation_nobody_has_seen_is_not_feasible(tmp_path):
    module = Unseen([(0.1, math.nan)], validate=True)
    _, best = best_of(module, validate=True, dirpath=tmp_path)
    assert float(best.best_model_score) == math.inf


def test_a_validation_alone_needs_no_loss(tmp_path):
    class Quiet(Scripted):
        def validation_step(self, batch, index):
            self.constraints.observe(bound=self.now()[1])

    run = trainer(PowerALMCallback(), FeasibleCheckpoint(1e-3, dirpath=tmp_path))
    (metrics,) = run.validate(Quiet([(0.1, 0.5)], validate=True), ONE, verbose=False)
    assert metrics["powalm/val/max_violation"] == 0.5
    assert not list(tmp_path.glob("*.ckpt"))


@pytest.mark.parametrize("saving", [True, False], ids=["train end", "validation end"])
@pytest.mark.parametrize("best", [1, 2])
def test_a_crashed_training_resumes_to_the_same_best_model(best, saving, tmp_path):
    """Of two checkpoints the resumed training has seen one, and ends the epoch of the other."""
    script = [(0.3, 0.5), (0.5, 0.0), (0.5 if best == 1 else 0.4, 0.0), (0.9, 0.0), (0.6, 0.0)]

    def run(folder, *callbacks, **settings):
        kept = FeasibleCheckpoint(1e-3, dirpath=tmp_path / folder / "best")
        saver = ModelCheckpoint(tmp_path / folder, save_top_k=-1, save_on_train_epoch_end=saving)
        it = trainer(PowerALMCallback(), kept, saver, *callbacks, max_epochs=5)
        it.fit(Scripted(script, validate=True), ONE, ONE, **settings)
        saved = torch.load(kept.best_model_path, weights_only=True)
        return int(saved["state_dict"]["p"]), float(kept.best_model_score)

    straight = run("straight")
    assert straight == (best, pytest.approx(script[best][0]))
    with pytest.raises(KeyError, match="crash"):
        run("crashed", Stop(3))
    assert run("crashed", ckpt_path=last_checkpoint(tmp_path / "crashed")) == straight


class Certified(Scripted):
    """A scripted module whose held-out errors, of 1,000, are what the script says."""

    def measure(self, batch):
        errors = self.script[self.current_epoch][1]
        return {"bound": torch.tensor([1.0] * errors + [0.0] * (1000 - errors))}

    def now(self):
        return self.script[self.current_epoch][0] + 0 * self.p.sum(), 0 * self.p


def certified_run(script, tmp_path, data, **settings):
    module = Certified(script, validate=True)
    held_out = HeldOut(module.measure, data, kinds={"bound": Rates(bound=0.05)})
    best = FeasibleCheckpoint(certified=held_out, dirpath=tmp_path)
    run = trainer(PowerALMCallback(), best, **{"max_epochs": len(script), **settings})
    return module, best, run


def test_the_best_model_is_one_whose_certificate_holds(tmp_path):
    script = [(0.1, 40), (0.9, 10), (0.7, 20), (0.2, 200)]  # 40 errors of 1,000 are too many
    module, best, run = certified_run(script, tmp_path, [0])
    run.fit(module, ONE, ONE)
    kept = torch.load(best.best_model_path, weights_only=False)
    assert float(kept["state_dict"]["p"]) == 2.0
    assert best.certificate.holds
    assert best.certificate.confidence == pytest.approx(1 - 0.05 / 4)
    (path,) = tmp_path.glob("*.certificate.json")
    assert Certificate.load(path) == best.certificate
    assert module.training
    assert best.state_dict()["judged"] == 4


def test_certified_refuses_what_it_cannot_judge(tmp_path):
    with pytest.raises(TypeError, match="certified must be a HeldOut, got list"):
        FeasibleCheckpoint(certified=[0])
    data = [torch.zeros(3, 1)]
    module, _, run = certified_run([(0.1, 10)] * 2, tmp_path, data)
    module.constraints.margin_data.append(data)
    with pytest.raises(ValueError, match="loader must have no samples of the margins' held-out"):
        run.fit(module, ONE, ONE)
    module, _, run = certified_run([(0.1, 10)] * 2, tmp_path, [0], max_epochs=-1, max_steps=1)
    with pytest.raises(ValueError, match="max_epochs must be given with certified, got -1"):
        run.fit(module, ONE, ONE)
