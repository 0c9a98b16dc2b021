"""All trainings of the zoo by name; a name says if the points are fixed or sampled."""

from experiments.zoo_tasks.image_tasks import FIDELITY, WEIGHTS
from experiments.zoo_tasks.physics_tasks import PHYSICS
from experiments.zoo_tasks.shape_tasks import SHAPES
from experiments.zoo_tasks.tabular_tasks import LOSSES, RATES
from experiments.zoo_tasks.zoo_task import Build

FAMILIES: dict[str, dict[str, Build]] = {
    "rates": RATES,
    "losses": LOSSES,
    "weights": WEIGHTS,
    "shapes": SHAPES,
    "fidelity": FIDELITY,
    "physics": PHYSICS,
}
TASKS: dict[str, Build] = {name: t for tasks in FAMILIES.values() for name, t in tasks.items()}
