"""Test feasibility: margin="auto" beside margins, penalties and multipliers chosen by hand.

    python -m experiments.certificates.held_out_feasibility [--root FOLDER] [--tasks shirts]

Adds to outputs/certificates/feasibility.csv what it does not have yet; `--keep` copies the table to
experiments/results. One row for each training: a method with one setting, one seed. Every method
with settings is trained with each of them; which one counts is decided when the table is read.
"""

import argparse
import csv
import math
import time
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from experiments.atomic_files import write_text
from experiments.certificates.certified_tasks import TASKS, Case, CertifiedTask
from experiments.constraint_bench.method import Base, Method
from experiments.constraint_bench.methods.cooper_methods import Cooper
from experiments.constraint_bench.methods.plain_methods import Penalty, Unconstrained
from experiments.constraint_bench.methods.powalm_method import PowerALM
from torch_powalm import ConstraintRegistry, HeldOut, certify

TABLE = Path("outputs/certificates/feasibility.csv")
KEPT = Path(__file__).parent.parent / "results" / "certificates" / "feasibility.csv"


def settings(task: CertifiedTask) -> Iterator[tuple[str, str, float, Method]]:
    """Methods with their settings: method, name of the setting, margin, and how to train."""
    ours = PowerALM(dict(task.options))
    yield "ours, auto", "", 0.0, ours
    yield "unconstrained", "", 0.0, Unconstrained()
    for margin in task.margins:
        yield "ours, by hand", f"margin {margin:g}", margin, ours
        if find_spec("cooper") is not None:
            yield "cooper", f"margin {margin:g}", margin, Cooper(1e-2)
    for weight in task.weights:
        for margin in task.margins[::2]:
            name = f"weight {weight:g}, margin {margin:g}"
            yield "penalty", name, margin, Penalty(weight)


def row(
    task: CertifiedTask,
    seed: int,
    method: str,
    setting: str,
    margin: float,
    build: Method,
    root: str | None,
) -> dict[str, Any]:
    """Train once, and measure the model on all parts."""
    torch.manual_seed(seed)
    case = task.build(task, seed, margin, root)
    if method == "ours, auto":
        held_out = HeldOut(
            case.measure,
            [case.parts["margin"]],
            kinds={task.name: task.kind},
            relative_size=task.shares[2] / task.shares[1],
            model=case.training.model,
            seen=[[case.parts["train"]]],
        )
        build = PowerALM({**task.options, "margin": "auto", "held_out": held_out})
    start = time.perf_counter()
    stepper = train(task, case, build)
    seconds = time.perf_counter() - start
    found = judge(task, case)
    if method == "ours, auto":
        found["margin"] = float(stepper.optimizer.margins()[task.name].max())
    numbers = {name: f"{value:.6g}" for name, value in found.items() if name != "verdict"}
    names = {"task": task.name, "seed": seed, "method": method, "setting": setting}
    return {
        **names,
        "margin": margin,
        **numbers,
        "verdict": found["verdict"],
        "seconds": f"{seconds:.2f}",
    }


def train(task: CertifiedTask, case: Case, build: Method) -> Any:
    """Train by a method, with Adam and a cosine."""
    stepper = build(case.training, Base("adam", task.lr, task.steps, task.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        stepper.optimizer, lambda k: (1 + math.cos(math.pi * k / task.steps)) / 2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in case.training.batches:
            stepper.step(batch)
            schedule.step()
    return stepper


@torch.no_grad()
def judge(task: CertifiedTask, case: Case) -> dict[str, Any]:
    """Loss and largest value of the constraint on each part, and the certificate."""
    case.training.model.eval()
    found: dict[str, Any] = {}
    for part, rows in case.parts.items():
        found[f"{part}_loss"] = case.loss(part)
        found[f"{part}_value"] = float(task.rule(case.measure(rows)[task.name]).max())
    asked = ConstraintRegistry()
    size = len(task.rule(case.measure(case.parts["test"])[task.name]))
    asked.inequality(task.name, size=size, from_statistics=task.rule)
    certificate = certify(
        *(asked, case.measure, [case.parts["certificate"]]),
        kinds={task.name: task.kind},
        seen=[[case.parts[part]] for part in ("train", "margin")],
    )
    worst = max(certificate, key=lambda e: e.upper - e.asked)
    return {
        **found,
        "excess": worst.upper - worst.asked,
        "verdict": "holds" if certificate.holds else worst.verdict,
    }


def main() -> None:
    """Train what the table does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the complete data; default: the samples")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--methods", nargs="+", help="only methods that begin like this")
    parser.add_argument("--keep", action="store_true", help="copy the table to the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    done = {tuple(r[k] for k in ("task", "seed", "method", "setting")) for r in read(TABLE)}
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for task in (TASKS[name] for name in given.tasks):
            for method, setting, margin, build in settings(task):
                wanted = not given.methods or any(method.startswith(m) for m in given.methods)
                if not wanted or (task.name, str(seed), method, setting) in done:
                    continue
                new = row(task, seed, method, setting, margin, build, given.root)
                with TABLE.open("a", newline="") as file:
                    writer = csv.DictWriter(file, list(new))
                    if file.tell() == 0:
                        writer.writeheader()
                    writer.writerow(new)
                print(" ".join(map(str, new.values())), flush=True)
    if given.keep:
        write_text(KEPT, TABLE.read_text())


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none if there is no table."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
