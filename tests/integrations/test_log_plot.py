"""The picture drawn from a log."""

import pytest

pytest.importorskip("lightning")
import json
import os
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger

from tests.lightning.small_module import Lit, loader, trainer
from torch_powalm.integrations import log_plot as plot
from torch_powalm.lightning import PowerALMCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # what Lightning says about small examples

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
    with pytest.raises(SystemExit, match=r"has neither metrics.csv nor TensorBoard event files"):
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


# Other engines' logs


def test_a_history_written_as_csv_is_drawn(tmp_path):
    from tests.training.small_training import Net, train, wrapped

    net = Net()
    optimizer = wrapped(net)
    train(net, optimizer, epochs=2)
    optimizer.history.to_csv(tmp_path / "run.csv")
    plot.main([str(tmp_path / "run.csv"), "--tolerance", "0.1", "-t", "budget=0.2"])
    assert is_png(tmp_path / "powalm.png")


def test_the_log_of_a_hugging_face_trainer_is_read(tmp_path):
    rows = [
        {"loss": 0.5, "epoch": 1.0, "step": 5},
        {"powalm/violation/near": 0.0, "powalm/y/near": 0.1, "epoch": 1.0, "step": 5},
    ]
    for number, shown in ((5, rows[:1]), (9, rows)):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": shown}))
        os.utime(folder / "trainer_state.json", (number, number))
    curves = plot.read([tmp_path])
    expected = {"loss": 0.5, "powalm/violation/near": 0.0, "powalm/y/near": 0.1}
    assert curves == {name: {1.0: value} for name, value in expected.items()}


def test_a_local_mlflow_run_is_read(tmp_path):
    for name, lines in {
        "epoch": "1 0 10\n1 1 20\n",
        "powalm/violation/rows": "1 0.5 10\n1 0.25 20\n",
    }.items():
        path = tmp_path / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines)
    assert plot.read([tmp_path]) == {"powalm/violation/rows": {0.0: 0.5, 1.0: 0.25}}


def test_zeros_are_zeros_and_tolerances_are_lines(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: drawn.append(figure))
    curves = {
        "powalm/violation/rows": {0.0: 0.5, 1.0: 0.0},
        "powalm/val/violation/rows": {0.0: 1e-3, 1.0: 0.0},
        "powalm/y/rows": {0.0: 1.0, 1.0: 2.0},
    }
    plot.draw(curves, tmp_path / "powalm.png", {"": 0.01, "rows": 0.1})
    _, violations, multipliers, _ = drawn[0].axes
    assert violations.get_yscale() == "symlog"
    lines = {line.get_label(): list(line.get_ydata()) for line in violations.lines}
    assert lines["rows"] == [0.5, 0.0]
    assert lines["tolerance"] == [0.01, 0.01]
    assert lines["tolerance of rows"] == [0.1, 0.1]
    assert [line.get_label() for line in multipliers.lines] == ["rows"]
    box = violations.get_legend().get_bbox_to_anchor()
    assert box.x0 >= violations.bbox.x1 - 1  # beside the axes


@pytest.mark.parametrize("text", ["small", "rows=", "-1"])
def test_a_tolerance_must_be_a_positive_number(text):
    with pytest.raises(SystemExit, match=r"--tolerance must be a positive NUMBER or NAME=NUMBER"):
        plot.main(["somewhere", f"--tolerance={text}"])
