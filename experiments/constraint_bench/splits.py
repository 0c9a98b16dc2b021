"""Development and judgment: half of the tasks of each kind, drawn once before anything was run.

Rules are chosen on the development half and reported on the judgment half. The draw is
`draw(TASKS)`; a test compares it with the lists here.
"""

import random
from collections.abc import Mapping

from experiments.constraint_bench.task import Task

MIXED = "mixed_units"  # tasks whose blocks have conflicting units; each half has one
DEVELOPMENT = (
    *("adult_parity", "adult_quota", "fashion_class_losses", "l0_budget", "lipschitz"),
    *("pinn_heat_mixed_units", "pinn_helmholtz", "short_rare_digits", "unit_rows"),
)
JUDGMENT = (
    *("adult_opportunity", "compas_missed", "l1_budget_mixed_units", "mnist_neyman_pearson"),
    *("monotone_compas", "orthogonal_rnn", "pinn_burgers", "pinn_poisson", "short_finetune_kl"),
    "short_recall",
)


def draw(tasks: Mapping[str, Task]) -> list[str]:
    """Draw the development half: half of each kind, an odd kind rounded down and up in turn."""
    lot = random.Random(15)
    while True:
        chosen, spare = [], 0
        for kind in sorted({task.kind for task in tasks.values()}):
            names = sorted(name for name, task in tasks.items() if task.kind == kind)
            count, odd = divmod(len(names), 2)
            chosen += lot.sample(names, count + odd * (spare % 2))
            spare += odd
        if sum(MIXED in name for name in chosen) == 1:
            return sorted(chosen)
