"""Solve one instance of the paper's problems and record the run.

    python -m experiments.solve experiment=clustering_mnist|clustering_fashion|qp_double|qp_triple|
        gevp|beyond [nu=0.8] [seed=0] [data.root=FOLDER] [output=FOLDER]
    python -m experiments.solve -m experiment=clustering_mnist nu=0.65,0.7,0.8,1.0

With -m and no values, an experiment sweeps over the values that the paper lists. Each run has a
folder, OUTPUT/gevp/gevp_step/nu=0.6/seed=0; a finished run is skipped, so a stopped sweep continues
when it is started again. `python -m experiments.gather FOLDER` makes tables and figures.
"""

from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments import hydra_cli, run_folder
from experiments.environment import environment
from experiments.problems.instances import Instance
from experiments.run_path import run_key
from experiments.suboptimality import suboptimality_stop
from torch_powalm import Solution, Status


@hydra.main(version_base="1.3", config_path=hydra_cli.CONFIGS, config_name="solve")
@hydra_cli.one_line
def main(cfg: DictConfig) -> None:
    """Instantiate, solve, write."""
    config = settings(cfg)
    key = run_key(cfg, "solver", {"nu": cfg.nu, "seed": cfg.seed})
    folder = Path(cfg.output) / cfg.name / key
    if run_folder.finished(folder, config):
        print(f"{folder}: finished before")
        return
    if cfg.threads < 1:
        raise ValueError(f"threads must be at least 1, got {cfg.threads!r}")
    torch.set_num_threads(cfg.threads)
    instance = instantiate(cfg.problem)
    stop = suboptimality_stop(cfg.stop, instance, cfg.eps)
    solution = instantiate(cfg.alm)(instance.problem, instance.x_1, callback=stop)
    if stop is not None and stop.end is not None:
        solution = stop.end.solution(solution)
    if solution.status is Status.INTERRUPTED:
        raise KeyboardInterrupt  # a record would count as finished
    run = {
        "run": key,
        "status": solution.status.value,
        "seed": cfg.seed,
        "seconds": solution.seconds,
        "config": config,
        "result": result(instance, solution),
        **environment(),
    }
    tables = {"history": solution.records.to_dicts()}
    if instance.features is not None:
        from experiments import cluster_picture, clusters  # scikit-learn takes seconds to import

        X = solution.x.numpy()
        found = clusters.evaluate(X, instance.features, instance.clusters)
        run["clusters"], tables["clusters"] = found
        cluster_picture.write_picture(folder / "clusters.png", tables["clusters"])
    run_folder.write(folder, run, tables)
    print(f"{folder}: {solution.status.value} after {solution.gradient_calls} gradients")


def settings(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without paths and without settings that leave the numbers unchanged."""
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    for key in ("output", "progress", "data", "features", "solver"):
        config.pop(key, None)  # problem and alm contain the last two
    config["alm"].pop("progress")
    if config["stop"] == "residuals":
        config.pop("stop")
    if "features" in config["problem"]:
        features = config["problem"]["features"]
        features["data"] = {
            "dataset": cfg.dataset,
            "part": "sample" if cfg.data.root is None else "complete",
        }
        for key in ("cache", "progress"):
            features.pop(key)
    return config


def result(instance: Instance, solution: Solution) -> dict[str, Any]:
    """Numbers at the end and at the start of a run."""
    problem = instance.problem
    start, end = problem.oracle.at(instance.x_1), problem.oracle.at(solution.x)
    return {
        "primal_residual": solution.residuals.primal,
        "dual_residual": solution.residuals.dual,
        "objective": solution.objective,
        "f_star": instance.f_star,
        "lagrangian": solution.objective + torch.dot(solution.y, end.r).item(),
        "outer_iterations": len(solution.records),
        "inner_iterations": sum(record.inner_iterations for record in solution.records),
        "function_calls": solution.function_calls,
        "gradient_calls": solution.gradient_calls,
        "constraint_calls": solution.constraint_calls,
        "start": {
            "primal_residual": torch.linalg.vector_norm(start.r).item(),
            "objective": start.f,
        },
    }


if __name__ == "__main__":
    hydra_cli.run(main)
