"""Loss against bound: missed positives on COMPAS, each training from the weights of the last.

    python -m experiments.certificates.trade_off_curve [--root FOLDER] [--bounds 0.4 0.3 0.2]

Writes the curve with certified bounds and prices, and a picture of it. Each bound is trained with
margin="auto". The slope between neighbors is what the prices are compared with.
"""

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.atomic_files import write_csv
from experiments.certificates.certified_tasks import TASKS
from experiments.certificates.held_out_feasibility import train
from experiments.constraint_bench.methods.powalm_method import PowerALM
from torch_powalm import ConstraintRegistry, HeldOut, TradeOff, Trained, certify, trade_off

OUTPUT = Path("outputs/certificates")
KEPT = Path(__file__).parent.parent / "results" / "certificates" / "trade_off.csv"
BOUNDS = (0.40, 0.35, 0.30, 0.25, 0.20)


def curve(bounds: tuple[float, ...], seed: int, root: str | None) -> TradeOff:
    """The trade-off curve of one split of the data."""
    return trade_off(lambda *given: _train(*given, seed, root), bounds)


def _train(bound: float, state: Any, confidence: float, seed: int, root: str | None) -> Trained:
    def rule(sums: Tensor) -> Tensor:
        return sums[:1] / sums[1:] - bound

    task = dataclasses.replace(TASKS["compas_missed"], rule=rule)
    torch.manual_seed(seed)
    case = task.build(task, seed, 0.0, root)
    model, kinds = case.training.model, {task.name: task.kind}
    if state is not None:
        model.load_state_dict(state)
    data = [case.parts["margin"]]
    held_out = HeldOut(case.measure, data, kinds=kinds, confidence=confidence, model=model)
    stepper = train(task, case, PowerALM({"margin": "auto", "held_out": held_out}))
    model.eval()
    asked = ConstraintRegistry()
    asked.inequality(task.name, size=1, from_statistics=rule)
    held = [case.parts["certificate"]]
    certificate = certify(asked, case.measure, held, confidence, kinds=kinds, seen=[data])
    price = stepper.optimizer.prices()[task.name][0]
    return Trained(case.loss("test"), model.state_dict(), certificate, price.value)


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the complete data; default: the sample")
    parser.add_argument("--bounds", type=float, nargs="+", default=BOUNDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="write the table to the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = curve(tuple(given.bounds), given.seed, given.root)
    print(found)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    found.plot(OUTPUT / "trade_off.png", name="largest share of missed positives")
    slopes = [*found.slopes(), math.nan]
    rows = [{**dataclasses.asdict(p), "slope": s} for p, s in zip(found, slopes, strict=True)]
    write_csv(KEPT if given.keep else OUTPUT / "trade_off.csv", rows)


if __name__ == "__main__":
    main()
