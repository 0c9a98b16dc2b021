"""Weights & Biases and MLflow without a server, under Lightning and the Hugging Face Trainer."""

import pytest

pytest.importorskip("lightning")
pytest.importorskip("transformers")

from tests.integrations.hf_training import trainer as hf_trainer
from tests.lightning.small_module import Lit, loader, trainer
from torch_powalm.integrations import log_files
from torch_powalm.lightning import PowerALMCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # what the engines say about small examples


@pytest.fixture
def offline(tmp_path, monkeypatch):
    variables = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def mlflow_curves(folder):
    (metrics,) = (folder / "mlruns").glob("*/*/metrics")
    return log_files.read([metrics.parent])


def test_lightning_logs_to_wandb_offline(offline):
    wandb = pytest.importorskip("wandb")
    from lightning.pytorch.loggers import WandbLogger

    logger = WandbLogger(project="test", save_dir=offline, offline=True)
    trainer(PowerALMCallback(), logger=logger).fit(Lit(), loader(), loader())
    summary = dict(logger.experiment.summary)
    wandb.finish()
    assert {"powalm/violation/unit_rows", "powalm/y/budget", "powalm/beta"} <= summary.keys()
    assert list(offline.rglob("*.wandb"))


def test_lightning_logs_to_an_mlflow_folder_that_is_drawn(offline):
    pytest.importorskip("mlflow")
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger(tracking_uri=f"file://{offline}/mlruns")
    trainer(PowerALMCallback(), logger=logger).fit(Lit(), loader(), loader())
    curves = mlflow_curves(offline)
    assert list(curves["powalm/violation/unit_rows"]) == [0.0, 1.0, 2.0]
    assert "powalm/y/budget" in curves


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_trainer_logs_offline(offline, name):
    module = pytest.importorskip(name)
    if name == "mlflow":  # not that of another test
        module.set_tracking_uri(f"file://{offline}/mlruns")
    run, _ = hf_trainer(offline / "run", report_to=[name])
    run.train()
    if name == "wandb":
        summary = dict(module.run.summary)
        module.finish()
        assert any(key.endswith("powalm/violation/rows") for key in summary)
    else:
        module.end_run()
        assert any(key.endswith("powalm/violation/rows") for key in mlflow_curves(offline))
