"""Lightning on two ranks: DDP and FSDP2 (ModelParallelStrategy) against a single process."""

import pytest

pytest.importorskip("lightning")
import socket

import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.lightning import run_ranks
from tests.processes import distance, run_once, start, wait
from tests.training.distributed import ranks_training as cases
from tests.training.small_training import Net
from tests.versions import NEEDS_FSDP2

MODULE = "tests.lightning.run_ranks"


TIMEOUT = 800  # seconds on a busy machine; alone it takes a tenth


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="session")
def results(session_folder):
    """The outcomes of all cases on both ranks."""
    folder = session_folder / "lightning_ranks"

    def run():
        cluster = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
        wait([start(MODULE, folder, LOCAL_RANK=str(rank), **cluster) for rank in range(2)], TIMEOUT)

    run_once(folder, run, TIMEOUT)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def assert_one_training(both, **settings):
    torch.set_num_threads(1)
    alone = cases.train(0, 1, **settings)
    found = [{name: outcome[name] for name in alone} for outcome in both]
    assert distance(*found) == 0.0
    assert distance(found[0], alone) < 1e-12
    assert both[0]["metrics"] == both[1]["metrics"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ddp", {}),
        ("ddp, clipping", dict(clip=True)),
        ("ddp, accumulation", dict(accumulate=True)),
        ("ddp, scaler", dict(scaler=True)),
        ("ddp, scaler and clipping", dict(scaler=True, clip=True)),
        ("ddp, ZeRO, resumed", dict(epochs=5)),
        ("ddp, resumed", dict(epochs=5)),
        pytest.param("sharded", {}, marks=NEEDS_FSDP2),
        pytest.param("sharded, clipping", dict(clip=True), marks=NEEDS_FSDP2),
        pytest.param("sharded, accumulation", dict(accumulate=True), marks=NEEDS_FSDP2),
        pytest.param("sharded, resumed", dict(epochs=5), marks=NEEDS_FSDP2),
        pytest.param("sharded, one file", {}, marks=NEEDS_FSDP2),
        pytest.param("sharded, one file, resumed", dict(epochs=5), marks=NEEDS_FSDP2),
    ],
)
def test_two_ranks_of_a_trainer_train_as_one_process(name, settings, results):
    both = [result[name] for result in results]
    assert_one_training(both, **settings)
    assert both[0]["k"] == settings.get("epochs", 3) + 1


@pytest.mark.parametrize("how", ["loss", "value"])
def test_a_batch_that_is_nan_on_one_rank_is_left_out_by_both(how, results):
    torch.set_num_threads(1)
    both = [result[f"ddp, nan {how}"] for result in results]
    assert [int(outcome.pop("skipped")) for outcome in both] == [1, 1]
    without = cases.train(0, 1, skip_batch=(1, 1))
    del without["skipped"]
    found = [{name: outcome[name] for name in without} for outcome in both]
    assert distance(*found) == 0.0
    assert distance(found[0], without) < 1e-12


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("loss", "gradient of the loss"),
        ("value", "constraint 'mean' must be finite, got nan or inf"),
    ],
)
def test_a_batch_that_is_nan_on_one_rank_is_refused_by_both(how, message, results):
    torch.set_num_threads(1)
    both = [result[f"ddp, raised {how}"] for result in results]
    assert all(outcome["message"].startswith(message) for outcome in both)
    first = cases.train(0, 1, epochs=1)
    for outcome in both:
        assert outcome["k"] == 2
        assert distance(outcome["y"], first["y"]) < 1e-12


@pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples
def test_both_ranks_stop_when_one_process_would(results):
    torch.set_num_threads(1)
    one, two = (result["ddp, stopped"] for result in results)
    alone = run_ranks.stopped(devices=1)
    assert one == two == alone
    assert 1 < alone["epochs"] < run_ranks.STOP["max_epochs"]


def test_validation_is_summed_over_the_ranks_and_the_best_model_is_the_same(results):
    one, two = (result["ddp"] for result in results)
    assert one["best"] == two["best"] == "epoch=2-step=9.ckpt"
    torch.set_num_threads(1)
    net = Net()
    net.load_state_dict(one["params"])
    constraints = cases.registry(net)
    for batch in range(cases.BATCHES):  # the parameters that were validated are the final ones
        constraints.observe(**cases.measure(net, *cases.data(batch))[1])
    seen = constraints.take_observed()
    assert set(seen) == {"mean", "mean_below", "counts", "counts_equal", "rate", "rate_equal"}
    for name, violation in seen.items():
        logged = one["metrics"][f"powalm/val/violation/{name}"]
        assert logged == pytest.approx(violation.max, rel=1e-5)


@NEEDS_FSDP2
def test_a_damaged_folder_is_refused_by_both_ranks(results):
    for rank, result in enumerate(results):
        message = result["sharded, damaged"]
        assert message.startswith("corrupted or incomplete checkpoint: "), message
        assert "damaged.ckpt" in message
        assert ("another rank found damage" in message) == (rank == 0)


@NEEDS_FSDP2
def test_ranks_that_share_a_batch_are_not_taken_for_ranks_of_their_own(results):
    for result in results:
        message = result["tensor parallel"]
        assert message.startswith("process_group must have the ranks whose gradients are averaged")
        assert message.endswith("got 2 instead of 1 ranks")


class Received(run_ranks.Lit):
    """Ends the sharing of memory between the ranks, which Lightning does for "ddp_spawn" only."""

    def setup(self, stage):
        for p in self.parameters():
            p.data = p.data.clone()


@pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples
def test_ranks_that_receive_a_pickled_module_train_as_one_process(tmp_path):
    """As with "ddp_spawn", but without importing Lightning in every process."""
    strategy = DDPStrategy(start_method="forkserver")
    keep = run_ranks.Keep(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_PORT", free_port())
        run = run_ranks.trainer(keep, strategy=strategy, enable_checkpointing=False)
        run.fit(Received())
    both = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert_one_training(both)
