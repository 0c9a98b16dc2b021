"""Parity on Adult beside fairlearn's reductions and humancompatible-train.

    python -m experiments.certificates.adult_parity_peers [--root FOLDER] [--keep]

Every method trains a linear classifier on the same rows, for several bounds on the difference
between the shares of positive decisions of women and men. Each model is measured on rows of its own
for the certificate, the choice among bounds and the test. Adds to
outputs/certificates/adult_peers.csv what it does not have yet; prints the tables of the report.
"""

import argparse
import csv
import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.atomic_files import write_text
from experiments.certificates.certified_tasks import TASKS, Case, CertifiedTask
from experiments.certificates.held_out_feasibility import read, train
from experiments.constraint_bench.methods.humancompatible_methods import HumanCompatible
from experiments.constraint_bench.methods.powalm_method import PowerALM
from torch_powalm import ConstraintRegistry, HeldOut, Rates, certify

TABLE = Path("outputs/certificates/adult_peers.csv")
KEPT = Path(__file__).parent.parent / "results" / "certificates" / "adult_peers.csv"
BOUNDS = (0.0, 0.01, 0.02, 0.03)
EQUAL = 0.04  # certified gap at which accuracies are compared
SHARES = (0.4, 0.1, 0.3, 0.2)
HCT = {
    "humancompatible ALM, recommended": HumanCompatible("ALM", {"lr": 0.01, "penalty": 1.0}),
    "humancompatible ALM, dual 1, penalty 10": HumanCompatible("ALM", {"lr": 1.0, "penalty": 10.0}),
}
Decide = Callable[[Tensor], Tensor]  # maps features to decisions


def gap(sums: Tensor) -> Tensor:
    """Difference of the shares of positive decisions, in both directions."""
    (women, men), (n, m) = sums.chunk(2)
    difference = women / n - men / m
    return torch.stack([difference, -difference])


def task_of(bound: float) -> CertifiedTask:
    """Parity on Adult within a bound, for a linear classifier."""
    return dataclasses.replace(
        TASKS["adult_parity"],
        rule=lambda sums: gap(sums) - bound,
        shares=SHARES,
        steps=1500,
        batch_size=200,
        hidden=(),
    )


def runs() -> Iterator[tuple[str, float]]:
    """Methods and bounds."""
    yield "ours, margin auto", EQUAL
    for bound in BOUNDS:
        for method in ("ours", *HCT, "fairlearn"):
            yield method, bound


def fitted(method: str, bound: float, seed: int, root: str | None) -> tuple[Case, Decide]:
    """Train once; returns the data and the decisions of the model."""
    torch.manual_seed(seed)
    task = task_of(bound)
    case = task.build(task, seed, 0.0, root)
    model = case.training.model
    if method == "fairlearn":
        return case, _fairlearn(case, bound, seed)
    if method in HCT:
        train(task, case, HCT[method])
    elif method == "ours":
        train(task, case, PowerALM())
    else:
        held_out = HeldOut(
            *(case.measure, [case.parts["margin"]]),
            kinds={task.name: task.kind},
            relative_size=SHARES[2] / SHARES[1],
            model=model,
            seen=[[case.parts["train"]]],
        )
        train(task, case, PowerALM({"margin": "auto", "held_out": held_out}))
    model.eval()
    return case, lambda x: (model(x).squeeze(1) > 0).float()


def _fairlearn(case: Case, bound: float, seed: int) -> Decide:
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    from sklearn.linear_model import LogisticRegression

    x, labels, groups = (column.numpy() for column in case.parts["train"])
    rule = DemographicParity(difference_bound=max(bound, 1e-3))  # it must be positive
    reduction = ExponentiatedGradient(LogisticRegression(max_iter=200), rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reduction.fit(x, labels, sensitive_features=groups)
    return lambda x: torch.as_tensor(reduction.predict(x.numpy(), random_state=seed)).float()


@torch.no_grad()
def judge(case: Case, decide: Decide) -> dict[str, float]:
    """Accuracy and gap on test data, and the certified gap."""
    found = {}
    for part in ("margin", "test"):
        x, labels, groups = case.parts[part]
        decided = decide(x)
        found[f"{part}_accuracy"] = float((decided == labels).float().mean())
        found[f"{part}_gap"] = float(gap(_sums(decided, groups)).max())
    asked = ConstraintRegistry()
    asked.inequality("parity", size=2, from_statistics=lambda s: gap(s) - 1.0)
    certificate = certify(
        *(asked, lambda rows: {"parity": _sums(decide(rows[0]), rows[2])}),
        [case.parts["certificate"]],
        kinds={"parity": Rates(disjoint=True)},
        seen=[[case.parts[part]] for part in ("train", "margin")],
        model=case.training.model.eval(),
    )
    return {**found, "certified_gap": max(e.upper for e in certificate)}


def _sums(decided: Tensor, groups: Tensor) -> Tensor:
    masks = torch.stack([groups, 1 - groups])
    return torch.cat([masks @ decided, masks.sum(1)])


def table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Medians for the bound 0.02, and accuracy at an equal certified gap."""
    lines = [
        "| method | accuracy at bound 0.02 | gap on test data | certified gap | "
        f"accuracy, certified gap at most {EQUAL} | seeds that reach it | seconds for a model |",
        "|" + " --- |" * 7,
    ]
    for method in dict.fromkeys(r["method"] for r in rows):
        part = [r for r in rows if r["method"] == method]
        own = [r for r in part if float(r["bound"]) == 0.02] or part

        def median(column: str, rows: Sequence[dict[str, str]] = own) -> float:
            return statistics.median(float(r[column]) for r in rows)

        best = []
        for seed in dict.fromkeys(r["seed"] for r in part):
            good = [r for r in part if r["seed"] == seed and float(r["certified_gap"]) <= EQUAL]
            if good:
                best.append(max(good, key=lambda r: float(r["margin_accuracy"])))
        equal = f"{100 * median('test_accuracy', best):.2f} %" if best else "–"
        cells = [
            *(method, f"{100 * median('test_accuracy'):.2f} %", f"{median('test_gap'):.4f}"),
            *(f"{median('certified_gap'):.4f}", equal),
            *(f"{len(best)} of {len({r['seed'] for r in part})}", f"{median('seconds', part):.1f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Train what the table does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the complete data; default: the sample")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", help="only methods that begin like this")
    parser.add_argument("--keep", action="store_true", help="copy the table to the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    done = {(r["method"], float(r["bound"]), r["seed"]) for r in read(TABLE)}
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(200, 200 + given.seeds):
        for method, bound in runs():
            wanted = not given.methods or any(method.startswith(m) for m in given.methods)
            if not wanted or (method, bound, str(seed)) in done:
                continue
            start = time.perf_counter()
            case, decide = fitted(method, bound, seed, given.root)
            seconds = time.perf_counter() - start
            found = {k: f"{v:.5f}" for k, v in judge(case, decide).items()}
            row: dict[str, Any] = {"method": method, "bound": bound, "seed": seed, **found}
            row["seconds"] = f"{seconds:.2f}"
            with TABLE.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(row)
    print("\n".join(table(read(TABLE))))
    if given.keep:
        write_text(KEPT, TABLE.read_text())


if __name__ == "__main__":
    main()
