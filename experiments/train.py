"""Train a network under a constraint, by our method or by what one would do instead.

    python -m experiments.train experiment=neyman_pearson|orthonormal
        [method=nu_08|nu_05|nu_07|nu_1|unconstrained|penalty|cooper] [seed=0] [data.root=FOLDER]
    python -m experiments.train -m experiment=neyman_pearson data.root=FOLDER

With -m and no values an experiment runs all methods with three seeds. A run that is finished,
known by its resolved config, is not made again, and cooper is left out where it is not installed.
`python -m experiments.train_report FOLDER` draws and tabulates.
"""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments import entry, records


@hydra.main(version_base="1.3", config_path=entry.CONFIGS, config_name="train")
@entry.one_line
def main(cfg: DictConfig) -> None:
    """Instantiate, train every candidate of the method, choose on validation data, write."""
    config = settings(cfg)
    folder = Path(cfg.output) / cfg.name / f"{cfg.label},seed={cfg.seed}-{records.digest(config)}"
    if records.finished(folder, config):
        print(f"{folder}: finished before")
        return
    if cfg.label == "cooper" and find_spec("cooper") is None:
        print(
            f"{folder}: left out, cooper-optim is missing; "
            "pip install 'torch-powalm[benchmarks]' brings it"
        )
        return
    from experiments import training  # Lightning takes seconds to import

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
        "status": "trained",
        "seed": cfg.seed,
        "seconds": time.perf_counter() - start,
        "config": config,
        "result": result(histories[best], task.tolerance),
        **records.environment(),
    }
    if len(histories) > 1:
        run["candidates"] = [
            {"settings": name, "chosen": name == best, **history[-1]}
            for name, history in histories.items()
        ]
    records.write(folder, run, histories[best])
    end = run["result"]
    print(
        f"{folder}: test loss {end['test_loss']:.4f}, violation {end['train_violation']:.4f} "
        f"in training and {end['test_violation']:.4f} in testing"
    )


def settings(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without paths, and without what does not change the numbers."""
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    for key in ("output", "progress", "data", "choices", "updates"):
        config.pop(key)  # the last two stand in method as well, where they matter
    config["images"] = {
        "dataset": cfg.images.dataset,
        "part": "sample" if cfg.data.root is None else "complete",
    }
    return config


def result(history: list[dict[str, float]], tolerance: float) -> dict[str, Any]:
    """The last row, and the first epoch after which training was feasible."""
    feasible = [row["epoch"] for row in history if row["train_violation"] <= tolerance]
    return {**history[-1], "feasible_after": feasible[0] if feasible else None}


if __name__ == "__main__":
    entry.run(main)
