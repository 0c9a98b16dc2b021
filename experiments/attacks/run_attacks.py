"""Attack the library, within a bounded time: `make attack`.

    python -m experiments.attacks.run_attacks [--states N] [--files N] [--trainings N]
        [--solves N] [--interrupts N] [--seed N] [--seconds N]

Every attack has a seed of its own; a finding prints it, and `--seed` repeats it.
"""

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

import torch

from experiments.attacks.damaged_files import attack_file
from experiments.attacks.findings import FindingError
from experiments.attacks.interrupts import attack_interrupt
from experiments.attacks.other_states import attack_best, attack_bytes, attack_solution
from experiments.attacks.state_dicts import attack_training
from experiments.attacks.trainings import attack_by_hand
from experiments.attacks.wild_solves import attack_wild

KINDS: dict[str, tuple[Callable[[random.Random], str], str, float]] = {
    "state dicts of trainings": (attack_training, "states", 0.84),
    "bytes of multipliers": (attack_bytes, "states", 0.04),
    "states of BestFeasible": (attack_best, "states", 0.06),
    "states of solves": (attack_solution, "states", 0.06),
    "checkpoint files": (attack_file, "files", 1.0),
    "trainings against a loop written by hand": (attack_by_hand, "trainings", 1.0),
    "solves of wild functions": (attack_wild, "solves", 1.0),
    "Ctrl-C": (attack_interrupt, "interrupts", 1.0),
}


def run(
    name: str, attack: Callable[[random.Random], str], count: int, seed: int, seconds: float
) -> int:
    """Run attacks of one kind, print their outcomes, and return the number of findings."""
    outcomes: Counter[str] = Counter()
    findings, start = 0, time.monotonic()
    for i in range(seed, seed + count):
        if time.monotonic() - start > seconds:
            break
        try:
            outcomes[attack(random.Random(i))] += 1
        except FindingError as error:
            findings += 1
            print(f"finding, seed {i}: {str(error)[:800]}", flush=True)
        except Exception as error:
            findings += 1
            print(f"finding, seed {i}: {type(error).__name__} {str(error)[:400]}", flush=True)
    done = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
    print(f"{name}, seeds from {seed}: {done}; {findings} findings", flush=True)
    return findings


def main() -> None:
    """Run all attacks, and exit with 1 if one has found something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=5000)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--trainings", type=int, default=5000)
    parser.add_argument("--solves", type=int, default=2000)
    parser.add_argument("--interrupts", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=180, help="bound for each kind of attack")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    findings = 0
    for name, (attack, option, share) in KINDS.items():
        count = round(share * getattr(args, option))
        if count == 0:
            continue
        findings += run(name, attack, count, args.seed, args.seconds)
    sys.exit(min(1, findings))


if __name__ == "__main__":
    main()
