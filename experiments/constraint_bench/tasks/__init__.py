"""The tasks, one file for each family."""

from experiments.constraint_bench.task import Task
from experiments.constraint_bench.tasks import (
    budget_tasks,
    class_loss_tasks,
    finetune_task,
    monotone_task,
    pinn_tasks,
    rate_tasks,
    weight_tasks,
)

TASKS: dict[str, Task] = {
    task.name: task
    for family in (
        rate_tasks,
        class_loss_tasks,
        pinn_tasks,
        weight_tasks,
        budget_tasks,
        monotone_task,
        finetune_task,
    )
    for task in family.TASKS
}
