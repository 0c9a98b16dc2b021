"""The picture drawn from a log."""

from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger

from tests.lightning.small_module import Lit, loader, trainer
from torch_powalm.lightning import PowerALMCallback
from torch_powalm.lightning import log_plot as plot

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
