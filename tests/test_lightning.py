"""Under a Lightning Trainer: the numbers of a plain loop, and what the callbacks add."""

import csv
import subprocess
import sys
from pathlib import Path

import lightning as L  # noqa: N812
import pytest
import pytorch_lightning
import torch
import torch.distributed.checkpoint
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.tuner import Tuner
from test_injection import (
    F64,
    Net,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
)
from torch.nn.utils import clip_grad_norm_

from torch_powalm import plot
from torch_powalm.files import check_checkpoint, last_checkpoint, load_checkpoint, save_checkpoint
from torch_powalm.lightning import FeasibleCheckpoint, PowerALMCallback

ROOT = Path(__file__).parent.parent
pytestmark = [
    # What Lightning says about small examples, and about torch.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*is deprecated.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*batch_size.*could not be inferred"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Lit(L.LightningModule):
    """The small problem of the wrapper's tests, as a user would write it."""

    def __init__(self, base=None, *, scheduler=False, batch=True, flavour=None, **settings):
        super().__init__()
        self.net = Net()
        self.constraints = registry(self.net, batch=batch)
        self.base = base or (lambda params: torch.optim.Adam(params, lr=0.02))
        self.scheduler, self.batch = scheduler, batch
        self.settings = {"nu": 0.7, **settings}
        self.skip = None

    def configure_optimizers(self):
        optimizer = constrained(self.base(self.parameters()), self.constraints, **self.settings)
        if not self.scheduler:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    def training_step(self, batch, index):
        loss, values = measure(self.net, *batch)
        if self.batch:
            loss = self.optimizers().augment(loss, **values)
        if (self.current_epoch, index) == self.skip:
            return None
        self.log("train_loss", loss.detach(), on_epoch=True, on_step=False, batch_size=4)
        return loss

    def validation_step(self, batch, index):
        loss, values = measure(self.net, *batch)
        if self.batch:
            self.constraints.observe(**values)
        self.log("val_loss", loss, batch_size=4)


class Manual(Lit):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        loss, values = measure(self.net, *batch)
        optimizer.zero_grad()
        self.manual_backward(optimizer.augment(loss, **values) if self.batch else loss)
        optimizer.step()


class Scaled(MixedPrecision):
    """16-mixed falls back to bfloat16 on a CPU: the plugin with its scaler, in full precision."""

    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))

    def forward_context(self):
        return torch.autocast("cpu", enabled=False)


def loader(data=None):
    return torch.utils.data.DataLoader(data or batches(), batch_size=None)


def trainer(*callbacks, flavour=L, **settings):
    return flavour.Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 3,
            "callbacks": list(callbacks),
            "logger": False,
            "enable_checkpointing": any(hasattr(c, "best_model_path") for c in callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            **settings,
        }
    )


def plain(
    base=None,
    *,
    epochs=3,
    batch=True,
    scheduler=False,
    accumulate=1,
    clip=None,
    total=True,
    scaler=None,
    closure=False,
    steps=None,
    lam=None,
    skip=None,
    autocast=False,
    dtype=F64,
    **settings,
):
    """The loop that a user without Lightning would write."""
    net = Net().to(dtype)
    base = base or (lambda params: torch.optim.Adam(params, lr=0.02))
    optimizer = constrained(
        base(net.parameters()), registry(net, batch=batch), **{"nu": 0.7, **settings}
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if scheduler else None
    records = []

    def backward(x, target):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss, values = measure(net, x.to(dtype), target)
            loss = optimizer.augment(loss, **values) if batch else loss
        loss = loss / accumulate
        (scaler.scale(loss) if scaler else loss).backward()
        return loss

    for epoch in range(epochs):
        for i, (x, target) in enumerate(batches()):
            if (epoch, i) == skip:
                continue
            if closure:

                def evaluate(x=x, target=target):
                    optimizer.zero_grad()
                    return backward(x, target)

                optimizer.step(evaluate)
                continue
            if i % accumulate == 0:
                optimizer.zero_grad()
            backward(x, target)
            if (i + 1) % accumulate and i < 2:
                continue
            if scaler:
                scaler.unscale_(optimizer)
            if clip:
                if total:
                    optimizer.backward_constraints()
                clip_grad_norm_(net.parameters(), clip)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if (steps or lam) and optimizer.should_update(steps=steps, lam=lam):
                records.append(optimizer.update_multipliers())
        if not steps and not lam:
            records.append(optimizer.update_multipliers())
        if schedule:
            schedule.step()
    return net, optimizer, records


def fit(module, *callbacks, **settings):
    run = trainer(PowerALMCallback(), *callbacks, **settings)
    run.fit(module, loader())
    return run


def assert_equal(module, run, net, optimizer, tolerance=1e-12):
    assert_same(module.net, net, rtol=tolerance)
    assert_same(multipliers(run.optimizers[0]), multipliers(optimizer), rtol=tolerance)
    assert run.optimizers[0].dual.k == optimizer.dual.k > 1


# Equality with a plain loop


def fused(params):
    return torch.optim.Adam(params, lr=0.02, fused=True)


def lbfgs(params):
    return torch.optim.LBFGS(params, lr=0.1, max_iter=4, line_search_fn="strong_wolfe")


def momentum(params):
    return torch.optim.SGD(params, lr=0.02, momentum=0.9)


EQUAL = {
    "batch and static": ({}, {}, {}),
    "static": (dict(batch=False), {}, dict(batch=False)),
    "momentum": (dict(base=momentum), {}, dict(base=momentum)),
    "nu = 1": (dict(nu=1.0), {}, dict(nu=1.0)),
    "scheduler": (dict(scheduler=True), {}, dict(scheduler=True)),
    "accumulate": ({}, dict(accumulate_grad_batches=3), dict(accumulate=3)),
    "accumulate, static": (
        dict(batch=False),
        dict(accumulate_grad_batches=3),
        dict(accumulate=3, batch=False),
    ),
    "accumulate, with a rest": ({}, dict(accumulate_grad_batches=2), dict(accumulate=2)),
    "clip": ({}, dict(gradient_clip_val=0.1), dict(clip=0.1)),
    "accumulate and clip": (
        {},
        dict(accumulate_grad_batches=3, gradient_clip_val=0.1),
        dict(accumulate=3, clip=0.1),
    ),
    "fused": (dict(base=fused), {}, dict(base=fused)),
    "line search": (dict(base=lbfgs), {}, dict(base=lbfgs, closure=True)),
    "validation": ({}, dict(val=True), {}),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_trainer_gives_the_numbers_of_a_plain_loop(name):
    module_settings, trainer_settings, loop = EQUAL[name]
    module = Lit(**module_settings)
    trainer_settings = dict(trainer_settings)
    validate = trainer_settings.pop("val", False)
    run = trainer(PowerALMCallback(), **trainer_settings)
    run.fit(module, loader(), loader() if validate else None)
    # Sixteen evaluations a step: a line search magnifies rounding errors.
    net, optimizer, _ = plain(**loop)
    assert_equal(module, run, net, optimizer, 1e-9 if name == "line search" else 1e-12)


def test_clipping_the_loss_alone_is_another_training_and_can_be_asked_for():
    module = Lit()
    run = trainer(PowerALMCallback(clip_total=False), gradient_clip_val=0.1)
    run.fit(module, loader())
    assert_equal(module, run, *plain(clip=0.1, total=False)[:2])
    total, _, _ = plain(clip=0.1)
    assert (module.net.first.weight - total.first.weight).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["plain", "fused", "clip", "accumulate"])
def test_a_grad_scaler_gives_the_numbers_of_a_plain_loop(kind):
    base = fused if kind == "fused" else None
    settings = {
        "clip": dict(gradient_clip_val=0.1),
        "accumulate": dict(accumulate_grad_batches=3),
    }.get(kind, {})
    loop = {"clip": dict(clip=0.1), "accumulate": dict(accumulate=3)}.get(kind, {})
    module = Lit(base)
    run = fit(module, plugins=[Scaled()], **settings)
    net, optimizer, _ = plain(base, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10), **loop)
    assert_equal(module, run, net, optimizer)


def test_a_low_precision_forward_keeps_precise_multipliers():
    single = torch.float32  # autocast leaves double precision as it is
    module = Lit().to(single)
    run = trainer(PowerALMCallback(), precision="bf16-mixed")
    run.fit(module, loader([(x.to(single), target) for x, target in batches()]))
    assert_equal(module, run, *plain(autocast=True, dtype=single)[:2], 1e-5)
    assert multipliers(run.optimizers[0]).dtype == single
    precise, _, _ = plain(dtype=single)
    assert (module.net.first.weight - precise.first.weight).abs().max() > 10 * 1e-5


def test_manual_optimization_gives_the_numbers_of_a_plain_loop():
    module = Manual()
    run = fit(module)
    assert_equal(module, run, *plain()[:2])


@pytest.mark.parametrize("total", [True, False])
def test_manual_optimization_clips_the_total_when_the_module_says_so(total):
    class Clipping(Manual):
        def training_step(self, batch, index):
            optimizer = self.optimizers()
            loss, values = measure(self.net, *batch)
            optimizer.zero_grad()
            self.manual_backward(optimizer.augment(loss, **values))
            if total:
                optimizer.backward_constraints()
            self.clip_gradients(optimizer, gradient_clip_val=0.1)
            optimizer.step()

    module = Clipping()
    run = fit(module)
    assert_equal(module, run, *plain(clip=0.1, total=total)[:2])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_module_gives_the_numbers_of_a_plain_loop():
    module = Lit()
    compiled = torch.compile(module, backend="aot_eager")
    run = trainer(PowerALMCallback())
    run.fit(compiled, loader())
    assert_equal(module, run, *plain()[:2])


@pytest.mark.filterwarnings("ignore:You have turned on .*detect_anomaly")
@pytest.mark.parametrize("tool", ["averaged weights", "monitored rate", "anomalies looked for"])
def test_other_tools_of_the_trainer_change_nothing(tool, tmp_path):
    tools = {
        "averaged weights": dict(callbacks=[PowerALMCallback(), WeightAveraging()]),
        "monitored rate": dict(
            callbacks=[LearningRateMonitor(), PowerALMCallback()], logger=CSVLogger(tmp_path)
        ),
        "anomalies looked for": dict(callbacks=[PowerALMCallback()], detect_anomaly=True),
    }
    module = Lit(scheduler=True)
    run = trainer(**tools[tool])
    run.fit(module, loader())
    net, optimizer, _ = plain(scheduler=True)
    assert_same(multipliers(run.optimizers[0]), multipliers(optimizer), rtol=1e-12)
    assert run.optimizers[0].dual.k == optimizer.dual.k == 4
    if tool != "averaged weights":  # there the module ends with the average
        assert_same(module.net, net, rtol=1e-12)


def test_a_search_for_the_learning_rate_leaves_no_trace(tmp_path):
    module = Lit()
    run = trainer(PowerALMCallback(), default_root_dir=tmp_path)
    with pytest.warns(UserWarning, match="has no PowerALMCallback"):  # the search takes it away
        Tuner(run).lr_find(module, loader(), num_training=5, update_attr=False)
    run.fit(module, loader())
    assert_equal(module, run, *plain()[:2])


@pytest.mark.filterwarnings("ignore:.*training_step.* returned `None`")
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "static"])
def test_a_batch_without_a_loss_is_left_out(batch):
    module = Lit(batch=batch)
    module.skip = (1, 1)
    run = fit(module)
    net, optimizer, _ = plain(skip=(1, 1), batch=batch)
    assert_equal(module, run, net, optimizer)


@pytest.mark.parametrize(
    ("rule", "updates"), [(dict(steps=2), 4), (dict(lam=15.0), None), (dict(epochs=2), 1)]
)
def test_updates_by_steps_by_inexactness_and_every_few_epochs(rule, updates):
    module = Lit()
    run = trainer(PowerALMCallback(**rule))
    run.fit(module, loader())
    if "epochs" in rule:
        assert run.optimizers[0].dual.k == 1 + updates
        return
    net, optimizer, records = plain(**rule)
    assert len(records) == (updates or len(records)) > 1
    assert_equal(module, run, net, optimizer)


class Game(L.LightningModule):
    """Two wrapped optimizers, each with a constraint of its own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.two = Net(), Net()
        self.registries = [registry(self.one, batch=False), registry(self.two)]

    def configure_optimizers(self):
        return [
            constrained(torch.optim.Adam(net.parameters(), lr=0.02), constraints, nu=0.7)
            for net, constraints in zip((self.one, self.two), self.registries, strict=True)
        ]

    def training_step(self, batch, index):
        one, two = self.optimizers()
        for net, optimizer in ((self.one, one), (self.two, two)):
            self.toggle_optimizer(optimizer)
            loss, values = measure(net, *batch)
            optimizer.zero_grad()
            loss = optimizer.augment(loss, **values) if net is self.two else loss
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)


def test_two_wrapped_optimizers_are_updated_and_logged_apart():
    module = Game()
    run = trainer(PowerALMCallback())
    run.fit(module, loader())
    for net, optimizer, batch in zip(
        (module.one, module.two), run.optimizers, (False, True), strict=True
    ):
        reference, plain_optimizer, records = plain(batch=batch)
        assert_same(net, reference, rtol=1e-12)
        assert_same(multipliers(optimizer), multipliers(plain_optimizer), rtol=1e-12)
        index = int(batch)
        logged = run.callback_metrics[f"powalm/{index}/primal_residual"]
        assert float(logged) == pytest.approx(records[-1].primal_residual, rel=1e-6)


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
    assert not module.constraints.observed


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
    flavour = pytorch_lightning if kind == "other name" else L
    with pytest.warns(UserWarning, match="has no PowerALMCallback") as caught:
        trainer(flavour=flavour, **settings).fit(module, loader())
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
    assert module.own.steps == len(batches())


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


def test_without_lightning_the_import_names_the_extra():
    code = (
        "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import torch_powalm\n"
        "try:\n    import torch_powalm.lightning\n"
        "except ImportError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "pip install 'torch-powalm[lightning]'" in result.stdout, result.stderr


@pytest.mark.parametrize("missing", ["lightning", "pytorch_lightning"])
def test_one_of_the_names_of_lightning_is_enough(missing):
    code = (
        f"import sys, warnings; sys.modules[{missing!r}] = None\n"
        "warnings.simplefilter('ignore')\n"
        "from torch_powalm.lightning import FeasibleCheckpoint, PowerALMCallback\n"
        "for kind in (FeasibleCheckpoint, PowerALMCallback):\n"
        "    print(*[base.__module__.split('.')[0] for base in kind.__bases__])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    other = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}[missing]
    assert result.stdout.split() == [other, other], result.stderr


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
    run = trainer(PowerALMCallback(), checkpoint, flavour=pytorch_lightning)
    run.fit(module, loader(), loader())
    assert_equal(module, run, *plain()[:2])
    assert checkpoint.best_model_path
    assert len(run.checkpoint_callbacks) == 1  # the trainer has not added its own
    again = OtherLit()
    run = trainer(PowerALMCallback(), flavour=pytorch_lightning, max_epochs=5)
    run.fit(again, loader(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert_equal(again, run, *plain(epochs=5)[:2])


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


class Stop(L.Callback):
    """Ends the training as a crash would, after a batch or after the epoch's end."""

    def __init__(self, epoch, batch=None):
        self.epoch, self.batch = epoch, batch

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, index):
        if (trainer.current_epoch, index) == (self.epoch, self.batch):
            raise KeyError("crash")

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch and self.batch is None:
            raise KeyError("crash")


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
    with pytest.warns(UserWarning, match="checkpoint has no multipliers, they start anew"):
        run.fit(Lit(batch=False), loader(), ckpt_path=tmp_path / "one.ckpt")


def test_a_checkpoint_of_another_number_of_optimizers_raises(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="one")
    fit(Lit(), saver, max_epochs=1)
    callback = PowerALMCallback()
    callback.load_state_dict({"optimizers": [{}, {}]})
    with pytest.raises(ValueError, match="must have multipliers of 1 optimizers, got 2"):
        trainer(callback).fit(Lit(), loader())


# Damaged files


def damage(path, how):
    whole = path.read_bytes()
    if how == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:  # one bit inside of a tensor: torch.load would not notice
        spoiled = bytearray(whole)
        spoiled[whole.index(torch.full((64,), 2.0).numpy().tobytes()) + 5] ^= 1
        path.write_bytes(spoiled)


@pytest.mark.parametrize("how", ["truncated", "empty", "a bit"])
def test_a_damaged_checkpoint_raises_by_name_and_the_one_before_is_found(how, tmp_path):
    state = {"value": torch.full((64,), 2.0), "k": 3}
    for name in ("a.ckpt", "b.ckpt"):
        save_checkpoint(state, tmp_path / name)
    assert not list(tmp_path.glob("*.part"))
    damage(tmp_path / "b.ckpt", how)
    with pytest.raises(ValueError, match=r"checkpoint must be whole, got .*b\.ckpt \("):
        load_checkpoint(tmp_path / "b.ckpt")
    with pytest.warns(UserWarning, match=r"b\.ckpt .*going back to the one before"):
        assert last_checkpoint(tmp_path) == tmp_path / "a.ckpt"
    assert load_checkpoint(tmp_path / "a.ckpt")["k"] == 3
    check_checkpoint(tmp_path / "a.ckpt")
    assert last_checkpoint(tmp_path, "*.none") is None


def test_a_trainer_refuses_a_damaged_checkpoint_by_its_name(tmp_path):
    fit(Lit(), ModelCheckpoint(tmp_path, filename="one"), max_epochs=1)
    damage(tmp_path / "one.ckpt", "truncated")
    with pytest.raises(ValueError, match=r"must be whole, got .*one\.ckpt"):
        trainer(PowerALMCallback()).fit(Lit(), loader(), ckpt_path=tmp_path / "one.ckpt")


@pytest.mark.parametrize("how", ["truncated", "a bit", "missing", "metadata"])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_damaged_folder_raises_by_name_and_the_one_before_is_found(how, tmp_path):
    state = {"value": torch.full((64,), 2.0), "k": 3}
    for name in ("a.ckpt", "b.ckpt"):
        torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / name)
    shards = tmp_path / "b.ckpt" / "__0_0.distcp"
    if how == "missing":
        shards.unlink()
    elif how == "metadata":
        damage(tmp_path / "b.ckpt" / ".metadata", "truncated")
    else:
        damage(shards, how)
    file = "metadata" if how == "metadata" else "__0_0.distcp"
    with pytest.raises(ValueError, match=rf"checkpoint must be whole, got .*b\.ckpt.*{file}"):
        check_checkpoint(tmp_path / "b.ckpt")
    with pytest.warns(UserWarning, match="going back to the one before"):
        assert last_checkpoint(tmp_path) == tmp_path / "a.ckpt"
    if how != "metadata":  # the one file is in the first of two parts
        check_checkpoint(tmp_path / "b.ckpt", 1, 2)


# The picture


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_picture_is_drawn_from_the_csv_log(tmp_path, capsys):
    run = trainer(PowerALMCallback(), logger=CSVLogger(tmp_path))
    run.fit(Lit(), loader(), loader())
    folder = Path(run.logger.log_dir)
    curves = plot.read([folder])
    assert list(curves["powalm/violation/unit_rows"]) == [0.0, 1.0, 2.0]
    assert {"train_loss", "val_loss", "powalm/beta", "powalm/y/budget"} <= curves.keys()
    plot.main([str(folder)])
    assert is_png(folder / "powalm.png")
    assert "powalm.png" in capsys.readouterr().out
    plot.main([str(folder), str(folder), "--output", str(tmp_path / "sub" / "two.png")])
    assert is_png(tmp_path / "sub" / "two.png")


def test_a_picture_is_drawn_from_a_tensorboard_log(tmp_path):
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger

    run = trainer(PowerALMCallback(), logger=TensorBoardLogger(tmp_path))
    run.fit(Lit(), loader(), loader())
    run.logger.finalize("success")
    folder = Path(run.logger.log_dir)
    curves = plot.read([folder])
    assert list(curves["powalm/violation/unit_rows"]) == [0.0, 1.0, 2.0]
    plot.main([str(folder)])
    assert is_png(folder / "powalm.png")


def test_a_folder_without_a_log_is_said(tmp_path):
    with pytest.raises(SystemExit, match=r"has neither metrics.csv nor TensorBoard's event files"):
        plot.main([str(tmp_path)])
    (tmp_path / "metrics.csv").write_text("epoch,step,train_loss\n0,1,0.5\n")
    with pytest.raises(SystemExit, match=r"no powalm/ columns in .*: is PowerALMCallback in use\?"):
        plot.main([str(tmp_path)])


def test_a_running_training_is_drawn_again_and_again(tmp_path, monkeypatch, capsys):
    log, drawn = tmp_path / "log", tmp_path / "log" / "powalm.png"
    header = "epoch,step,powalm/beta,powalm/violation/budget\n"
    texts = iter(["", header + "0,2,0.1,0.5\n1,4,0.", header + "0,2,0.1,0.5\n1,4,0.2,0.4\n"])
    seen = []

    def next_moment(seconds):
        assert seconds == 5
        seen.append(plot.read([log])["powalm/beta"] if drawn.exists() else None)
        drawn.unlink(missing_ok=True)
        log.mkdir(exist_ok=True)
        try:
            (log / "metrics.csv").write_text(next(texts))
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(plot.time, "sleep", next_moment)
    plot.main([str(log), "--watch", "5"])  # Ctrl-C ends it without a word
    # No folder, an empty log, a half-written line, and the whole line.
    assert seen == [None, None, {0.0: 0.1}, {0.0: 0.1, 1.0: 0.2}]
    assert "neither metrics.csv nor" in capsys.readouterr().out
