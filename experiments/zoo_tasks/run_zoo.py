"""`python -m experiments.zoo_tasks.run_zoo` trains every task of the zoo in two unit systems.

Writes experiments/results/zoo.csv: largest violation before and after, and what counts as met.
"""

import csv
from pathlib import Path

import torch

from experiments.zoo_tasks.all_tasks import FAMILIES
from experiments.zoo_tasks.zoo_task import UNIT_SYSTEMS, run

TABLE = Path("experiments/results/zoo.csv")


def main() -> None:
    """Train all, one after the other."""
    torch.set_num_threads(1)
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["family", "entry", "units", "before", "after", "tolerance", "met"])
        for family, tasks in FAMILIES.items():
            for name, build in tasks.items():
                for units, factors in UNIT_SYSTEMS.items():
                    end = run(build, factors)
                    numbers = [f"{v:.4g}" for v in (end.before, end.after, end.tolerance)]
                    writer.writerow([family, name, units, *numbers, end.feasible])
                    file.flush()


if __name__ == "__main__":
    main()
