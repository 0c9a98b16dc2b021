"""The small training as a LightningModule, and the loop that a user without Lightning writes."""

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.nn.utils import clip_grad_norm_

from tests.training.small_training import (
    F64,
    Net,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
)
from torch_powalm.lightning import PowerALMCallback


class Lit(L.LightningModule):
    """The small problem of the wrapper's tests, as a user would write it."""

    def __init__(self, base=None, *, scheduler=False, batch=True, flavor=None, **settings):
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


def trainer(*callbacks, flavor=L, **settings):
    return flavor.Trainer(
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
