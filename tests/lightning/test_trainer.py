"""A Lightning Trainer gives the numbers of a plain loop."""

import pytest

pytest.importorskip("lightning")
import lightning as L  # noqa: N812
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner

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
from tests.training.small_training import (
    Net,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
)
from tests.versions import needs_torch
from torch_powalm.lightning import PowerALMCallback

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


@needs_torch(2, 6)  # 2.4 cannot trace a function with a backward of its own
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
    if tool == "averaged weights" and not hasattr(callbacks, "WeightAveraging"):
        pytest.skip("needs a newer Lightning")
    monitor = callbacks.LearningRateMonitor()
    tools = {
        "averaged weights": dict(
            callbacks=[PowerALMCallback(), getattr(callbacks, "WeightAveraging", L.Callback)()]
        ),
        "monitored rate": dict(callbacks=[monitor, PowerALMCallback()], logger=CSVLogger(tmp_path)),
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
