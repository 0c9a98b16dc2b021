"""Train a network under a constraint, by our method or by an alternative.

    python -m experiments.train experiment=neyman_pearson|orthonormal
        [method=powalm|nothing_set|unconstrained|penalty|cooper] [method.nu=0.8] [seed=0]
        [data.root=FOLDER]
    python -m experiments.train -m experiment=neyman_pearson method.nu=0.5,0.7,0.8,1.0
    python -m experiments.train -m experiment=neyman_pearson method=nothing_set,penalty,cooper

With -m an experiment trains with three seeds. Each run has a folder,
OUTPUT/orthonormal/powalm/nu=0.8/seed=1; a finished run is skipped, so a stopped sweep continues
when it is started again. cooper is skipped if it is not installed.
`python -m experiments.training_report FOLDER` makes tables and a figure.
"""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments import hydra_cli, run_folder
from experiments.environment import environment
from experiments.run_path import run_key


@hydra.main(version_base="1.3", config_path=hydra_cli.CONFIGS, config_name="train")
@hydra_cli.one_line
def main(cfg: DictConfig) -> None:
    """Instantiate, train each candidate of the method, choose one on validation data, write."""
    config = settings(cfg)
    power = {"nu": cfg.method.nu} if "nu" in cfg.method else {}
    key = run_key(cfg, "method", power | {"seed": cfg.seed})
    folder = Path(cfg.output) / cfg.name / key
    if run_folder.finished(folder, config):
        print(f"{folder}: finished before")
        return
    if cfg.label == "cooper" and find_spec("cooper") is None:
        print(
            f"{folder}: skipped, cooper-optim is missing; "
            "install it with pip install 'torch-powalm[benchmarks]'"
        )
        return
    from experiments import constrained_training as training  # Lightning takes seconds to import

    torch.set_num_threads(cfg.threads)
    task, method, schedule = (instantiate(cfg[part]) for part in ("task", "method", "schedule"))
    images = instantiate(cfg.images).load()
    start = time.perf_counter()
    histories = {
        name: training.fit(task, candidate, schedule, images, cfg.seed, cfg.progress)
        for name, candidate in method.candidates().items()
    }
    best = min(histories, key=lambda name: training.validation_score(histories[name][-1], task))
    run: dict[str, Any] = {
        "run": key,
        "status": "trained",
        "seed": cfg.seed,
        "seconds": time.perf_counter() - start,
        "config": config,
        "result": result(histories[best], task.tolerance),
        **environment(),
    }
    tables: dict[str, list[dict[str, Any]]] = {"history": histories[best]}  # type: ignore[dict-item]
    if len(histories) > 1:
        tables["candidates"] = [
            {"settings": name, "chosen": name == best, **history[-1]}
            for name, history in histories.items()
        ]
    run_folder.write(folder, run, tables)
    end = run["result"]
    print(
        f"{folder}: test loss {end['test_loss']:.4f}, violation {end['train_violation']:.4f} "
        f"in training and {end['test_violation']:.4f} in testing"
    )


def settings(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without paths and without settings that leave the numbers unchanged."""
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    for key in ("output", "progress", "data", "choices", "updates"):
        config.pop(key)  # method contains what it uses of the last two
    config["images"] = {
        "dataset": cfg.images.dataset,
        "part": "sample" if cfg.data.root is None else "complete",
    }
    return config


def result(history: list[dict[str, float]], tolerance: float) -> dict[str, Any]:
    """Numbers after the last epoch, and the first epoch that ended feasible on training data."""
    feasible = [row["epoch"] for row in history if row["train_violation"] <= tolerance]
    return {**history[-1], "feasible_after": feasible[0] if feasible else None}


if __name__ == "__main__":
    hydra_cli.run(main)
