"""Run ConstraintBench, or a part of it.

    python -m experiments.constraint_bench.run_bench [half=development] [methods=[powalm,cooper]]
        [base=sgd] [seeds=5] [jobs=2] [settings=recommended] [units=[natural]] [again=[powalm]]

Appends one row for each run to OUTPUT/runs.csv; finished runs are skipped, so a stopped sweep
continues when it is started again. `python -m experiments.constraint_bench.constraints_report`
adds the table to the committed one and writes experiments/CONSTRAINTS.md.
"""

import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import hydra
import torch
from joblib import Parallel, delayed
from omegaconf import DictConfig

from experiments import hydra_cli
from experiments.constraint_bench import bench_table
from experiments.constraint_bench.bench_table import Job
from experiments.constraint_bench.methods import METHODS
from experiments.constraint_bench.single_run import Outcome, run
from experiments.constraint_bench.splits import DEVELOPMENT, JUDGMENT
from experiments.constraint_bench.task import UNITS
from experiments.constraint_bench.tasks import TASKS

HALVES = {"development": DEVELOPMENT, "judgment": JUDGMENT, "all": (*DEVELOPMENT, *JUDGMENT)}
PACKAGES = {"cooper": "cooper", "hct": "humancompatible", "mdmm": "mdmm"}


@hydra.main(version_base="1.3", config_path=hydra_cli.CONFIGS, config_name="constraint_bench")
@hydra_cli.one_line
def main(cfg: DictConfig) -> None:
    """Plan the jobs, run those that are missing, append their rows."""
    path = Path(cfg.output) / "runs.csv"
    settings = chosen_settings(cfg.methods, cfg.settings)
    tasks = HALVES[_one_of("half", cfg.half, HALVES)]
    units = [_one_of("units", name, UNITS) for name in cfg.units]
    base = _one_of("base", cfg.base, ("adam", "sgd"))
    bench_table.forget(path, cfg.again)
    done = {bench_table.job_of(row) for row in bench_table.read(path)}
    jobs = [
        job for job in bench_table.plan(tasks, settings, units, base, cfg.seeds) if job not in done
    ]
    print(f"{path}: {len(done)} runs finished before, {len(jobs)} to do", flush=True)
    start = time.perf_counter()
    results = Parallel(n_jobs=cfg.jobs, return_as="generator_unordered")(
        delayed(run_job)(job) for job in jobs
    )
    for count, (job, outcome) in enumerate(results, start=1):
        bench_table.append(path, job, outcome)
        if cfg.progress and count % 20 == 0:
            left = (time.perf_counter() - start) / count * (len(jobs) - count)
            print(f"{count} of {len(jobs)} runs, {left / 60:.0f} minutes left", flush=True)


def run_job(job: Job) -> tuple[Job, Outcome]:
    """Run one job on one thread."""
    torch.set_num_threads(1)
    method = METHODS[job.method][job.setting]
    return job, run(TASKS[job.task], method, seed=job.seed, units=job.units, base=job.base)


def chosen_settings(methods: Iterable[str] | None, which: str) -> dict[str, list[str]]:
    """Names of the settings of each method that can run; the recommended one is first."""
    names = [
        _one_of("methods", name, METHODS) for name in (METHODS if methods is None else methods)
    ]
    found = {}
    for name in names:
        package = PACKAGES.get(name.split()[0])
        if package is not None and find_spec(package) is None:
            print(f"{name}: skipped, the package {package} is not installed")
            continue
        grid = list(METHODS[name])
        found[name] = grid if which == "all" or name in bench_table.UNITLESS else grid[:1]
    return found


def _one_of(key: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got {value!r}")
    return value


if __name__ == "__main__":
    hydra_cli.run(main)
