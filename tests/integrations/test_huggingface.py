"""Training under the Hugging Face Trainer, on a tiny model built from a config."""

import socket

import pytest
import torch

from tests.processes import start, wait

pytest.importorskip("transformers")
from tests.integrations import hf_training as cases
from torch_powalm import PowerALMOptimizer
from torch_powalm.integrations.huggingface import PowerALMCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # what the Trainer says about small examples


def plain_loop():
    net = cases.model()
    constraints, *entries = cases.constraints_of(net)
    optimizer = PowerALMOptimizer(
        torch.optim.AdamW(net.parameters(), lr=1e-2), constraints, total_steps=2 * cases.STEPS
    )
    data = torch.utils.data.DataLoader(cases.Rows(), cases.BATCH)
    for _ in range(2):
        for inputs in data:
            optimizer.zero_grad()
            outputs = net(**inputs)
            values = cases.values(entries, outputs.logits, inputs)
            optimizer.augment(outputs.loss, **values).backward()
            optimizer.step()
        optimizer.update_multipliers()
    return net, optimizer


def test_the_trainer_gives_the_bits_of_a_plain_loop_and_logs_every_update(tmp_path):
    run, optimizer = cases.trainer(tmp_path)
    run.train()
    net, plain = plain_loop()
    assert torch.equal(cases.weights(run.model), cases.weights(net))
    assert torch.equal(optimizer.dual.y, plain.dual.y)
    rows = [row for row in run.state.log_history if "powalm/k" in row]
    assert [row["powalm/k"] for row in rows] == [row.record.k for row in optimizer.history]
    assert {"powalm/beta", "powalm/violation/rows", "powalm/y/near"} <= rows[0].keys()
    run.evaluate()
    seen = run.state.log_history[-1]
    missed = seen["powalm/val/violation/missed"]
    with torch.no_grad():
        decided = run.model(cases.Rows().tokens).logits.argmax(1)
    rate = (decided[cases.Rows().labels == 1] == 0).float().mean().item()
    assert missed == pytest.approx(max(rate - 0.1, 0.0), abs=1e-6)


def test_a_resumed_training_has_the_same_bits(tmp_path):
    run, optimizer = cases.trainer(tmp_path / "whole", save_strategy="steps", save_steps=15)
    run.train()
    again, resumed = cases.trainer(tmp_path / "rest")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-15"))
    assert torch.equal(cases.weights(run.model), cases.weights(again.model))
    assert torch.equal(optimizer.dual.y, resumed.dual.y)
    assert optimizer.dual.k == resumed.dual.k > 1


def test_two_ranks_train_as_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    jobs = [
        start(
            *("tests.integrations.hf_training", tmp_path),
            **{"RANK": str(r), "LOCAL_RANK": str(r), **shared},
        )
        for r in range(2)
    ]
    wait(jobs, 240)
    first, second = (torch.load(tmp_path / f"rank{r}.pt", weights_only=True) for r in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    net, plain = plain_loop()
    # Sums in another order; Adam enlarges rounding where a gradient is near 0, here to 6e-13.
    torch.testing.assert_close(first[0], cases.weights(net), rtol=0, atol=1e-10)
    torch.testing.assert_close(first[1], plain.dual.y, rtol=1e-12, atol=1e-12)


def test_the_trainer_can_stop_at_a_feasible_model_and_logs_nothing_if_asked(tmp_path, capsys):
    run, optimizer = cases.trainer(tmp_path, logging_strategy="no")
    run.pop_callback(PowerALMCallback)
    run.add_callback(PowerALMCallback(run, eps_A=1e3))
    run.train()
    assert len(optimizer.history) == 1
    assert run.state.global_step < 2 * cases.STEPS
    assert not any("powalm/k" in row for row in run.state.log_history)
    assert "powalm/k" not in capsys.readouterr().out


def test_misuse_is_said(tmp_path):
    with pytest.raises(TypeError, match=r"trainer must be a transformers.Trainer, got int"):
        PowerALMCallback(3)
    run, _ = cases.trainer(tmp_path)
    with pytest.raises(ValueError, match="eps_A must be positive, got 0"):
        PowerALMCallback(run, eps_A=0)
