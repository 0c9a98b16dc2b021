"""Two ranks under Lightning Trainers: run as a module by test_ranks.py.

    python -m tests.lightning.run_ranks FOLDER

The test sets LOCAL_RANK and MASTER_PORT, as a cluster does.
"""

import shutil
import sys
import warnings
from pathlib import Path

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy

from tests.training.distributed import ranks_training as cases
from tests.training.distributed.ddp_cases import SPOILED
from tests.training.small_training import Net, constrained
from tests.versions import TORCH
from torch_powalm import full
from torch_powalm.lightning import FeasibleCheckpoint, PowerALMCallback

EPOCHS = 3


class Lit(L.LightningModule):
    """The training of ranks_training.py, with its parts of the global batches."""

    def __init__(self, spoil=None, base=cases.adam, on_nonfinite="skip"):
        super().__init__()
        self.base, self.on_nonfinite = base, on_nonfinite
        self.net = Net()
        self.constraints = cases.registry(self.net)
        self.spoil = spoil  # what makes a batch of the last rank not finite

    def configure_optimizers(self):
        return constrained(
            self.base(self.net), self.constraints, nu=0.7, on_nonfinite=self.on_nonfinite
        )

    def batches(self):
        size = dist.get_world_size() if dist.is_initialized() else 1
        parts = [cases.data(b, self.global_rank, size) for b in range(cases.BATCHES)]
        return torch.utils.data.DataLoader(parts, batch_size=None)

    train_dataloader = val_dataloader = batches

    def training_step(self, batch, index):
        loss, values = cases.measure(self.net, *batch)
        if self.spoil and (self.current_epoch, index, self.global_rank) == (1, 1, 1):
            loss, values = self.spoil(loss, values)
        return self.optimizers().augment(loss, **values)

    def validation_step(self, batch, index):
        loss, values = cases.measure(self.net, *batch)
        self.constraints.observe(**values)
        self.log("val_loss", loss, batch_size=len(batch[0]), sync_dist=True)


class Sharded(Lit):
    """The same with parameters that fully_shard splits."""

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        mesh = self.device_mesh["data_parallel"]
        if not hasattr(self.net.first.weight, "full_tensor"):
            fully_shard(self.net.first, mesh=mesh)
            fully_shard(self.net, mesh=mesh)


class Scaled(MixedPrecision):
    """16-mixed falls back to bfloat16 on a CPU: the plugin with its scaler, in full precision."""

    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))

    def forward_context(self):
        return torch.autocast("cpu", enabled=False)


def trainer(*callbacks, rule=None, **settings):
    return L.Trainer(
        **{
            "max_epochs": EPOCHS,
            "accelerator": "cpu",
            "devices": 2,
            "callbacks": [PowerALMCallback(**(rule or {})), *callbacks],
            "logger": False,
            "enable_checkpointing": bool(callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            **settings,
        }
    )


def outcome(module, run):
    optimizer = run.optimizers[0]
    metrics = {n: float(v) for n, v in run.callback_metrics.items() if n.startswith("powalm/")}
    return {
        "params": {n: full(p).detach().clone() for n, p in module.net.named_parameters()},
        "y": {n: y.clone() for n, y in optimizer.powalm_state_dict()["y"].items()},
        "beta": torch.tensor(optimizer.dual.beta),
        "skipped": torch.tensor(optimizer.epoch.skipped),
        "metrics": metrics,
        "k": optimizer.dual.k,
    }


def ddp(folder, **settings):
    module = Lit()
    best = FeasibleCheckpoint(1e-3, dirpath=folder / "ddp", save_last=True)
    run = trainer(best, strategy="ddp", **settings)
    run.fit(module)
    return {**outcome(module, run), "best": Path(best.best_model_path).name}


def ddp_resumed(folder):
    module = Lit()
    run = trainer(strategy="ddp", max_epochs=5)
    run.fit(module, ckpt_path=folder / "ddp" / "last.ckpt")
    return outcome(module, run)


def ddp_plain(base=cases.adam, **settings):
    module = Lit(base=base)
    run = trainer(strategy="ddp", **settings)
    run.fit(module)
    return outcome(module, run)


def ddp_zero(folder):
    """A state that is split over the ranks, saved as a whole and taken up again."""
    saver = ModelCheckpoint(folder / "zero", "one", save_on_train_epoch_end=True)
    module = Lit(base=cases.zero)
    trainer(saver, strategy="ddp").fit(module)
    module = Lit(base=cases.zero)
    run = trainer(strategy="ddp", max_epochs=5)
    run.fit(module, ckpt_path=folder / "zero" / "one.ckpt")
    return outcome(module, run)


def ddp_raised(folder, how):
    """Under "raise" both ranks end, with the multipliers of the first epoch."""
    module = Lit(SPOILED[how], on_nonfinite="raise")
    run = trainer(strategy="ddp")
    try:
        run.fit(module)
    except FloatingPointError as error:
        return {**outcome(module, run), "message": str(error)}
    return {"message": "trained"}


STOP = dict(rule=dict(eps_A=1.0, eps_phi=12.0), max_epochs=12)


def stopped(**settings):
    """When both tolerances hold; in the test with one process."""
    module = Lit()
    run = trainer(**STOP, **settings)
    run.fit(module)
    return {"epochs": run.current_epoch, "k": run.optimizers[0].dual.k}


def ddp_spoiled(folder, how):
    module = Lit(SPOILED[how])
    run = trainer(strategy="ddp")
    run.fit(module)
    return outcome(module, run)


def sharded_plain(**settings):
    module = Sharded()
    run = trainer(strategy=ModelParallelStrategy(2, 1), **settings)
    run.fit(module)
    return outcome(module, run)


def sharded(folder, *, distributed, epochs=EPOCHS, ckpt_path=None):
    module = Sharded()
    strategy = ModelParallelStrategy(2, 1, save_distributed_checkpoint=distributed)
    saver = ModelCheckpoint(folder / f"sharded{distributed}", "one", save_on_train_epoch_end=True)
    run = trainer(saver, strategy=strategy, max_epochs=epochs)
    run.fit(module, ckpt_path=ckpt_path)
    return outcome(module, run)


def sharded_damaged(folder):
    """Half of one rank's file is missing; both ranks are to say so."""
    path = folder / "damaged.ckpt"
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.copytree(folder / "shardedTrue" / "one.ckpt", path)
        shards = path / "__1_0.distcp"
        shards.write_bytes(shards.read_bytes()[: shards.stat().st_size // 2])
    dist.barrier()
    try:
        sharded(folder / "damaged", distributed=True, epochs=5, ckpt_path=path)
    except ValueError as error:
        return str(error)
    return "trained"


def tensor_parallel(folder):
    """Ranks that share a batch: the default group is not the one whose gradients are averaged."""
    run = trainer(strategy=ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2))
    try:
        run.fit(Sharded())
    except ValueError as error:
        return str(error)
    return "trained"


def sharded_resumed(folder, *, distributed):
    path = folder / f"sharded{distributed}" / "one.ckpt"
    return sharded(folder / "again", distributed=distributed, epochs=5, ckpt_path=path)


CASES = {
    "ddp": ddp,
    "ddp, clipping": lambda folder: ddp(folder / "clip", gradient_clip_val=0.3),
    "ddp, resumed": ddp_resumed,
    "ddp, accumulation": lambda folder: ddp_plain(accumulate_grad_batches=cases.BATCHES),
    "ddp, scaler": lambda folder: ddp_plain(plugins=[Scaled()]),
    "ddp, scaler and clipping": lambda folder: ddp_plain(plugins=[Scaled()], gradient_clip_val=0.3),
    "ddp, ZeRO, resumed": ddp_zero,
    "ddp, stopped": lambda folder: stopped(strategy="ddp"),
    "ddp, raised loss": lambda folder: ddp_raised(folder, "loss"),
    "ddp, raised value": lambda folder: ddp_raised(folder, "value"),
    "ddp, nan loss": lambda folder: ddp_spoiled(folder, "loss"),
    "ddp, nan value": lambda folder: ddp_spoiled(folder, "value"),
    "sharded": lambda folder: sharded(folder, distributed=True),
    "sharded, clipping": lambda folder: sharded_plain(gradient_clip_val=0.3),
    "sharded, accumulation": lambda folder: sharded_plain(accumulate_grad_batches=cases.BATCHES),
    "sharded, resumed": lambda folder: sharded_resumed(folder, distributed=True),
    "sharded, damaged": sharded_damaged,
    "sharded, one file": lambda folder: sharded(folder, distributed=False),
    "tensor parallel": tensor_parallel,
    "sharded, one file, resumed": lambda folder: sharded_resumed(folder, distributed=False),
}


class Keep(L.Callback):
    """Saves the outcome where the training ran: a rank that Lightning starts returns nothing."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        found = outcome(pl_module, trainer)
        torch.save(found, self.folder / f"rank{trainer.global_rank}.pt")


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    fsdp2 = TORCH >= (2, 7)
    cases = [name for name in CASES if fsdp2 or not name.startswith(("sharded", "tensor parallel"))]
    results = {name: CASES[name](folder) for name in cases}
    torch.save(results, folder / f"rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()
