"""Draws docs/architecture.png: the files of the two routes, in the order of reading.

python docs/draw_architecture.py
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

TRAINING = {
    "training/registry.py": "blocks by name,\nsums over batches",
    "training/optimizer.py": "augment, step",
    "training/batch_window.py": "values of the batch,\ncalls since the last step",
    "training/block_vector.py": "r = (A, B),\none flat vector",
    "training/augmented_gradient.py": "w = weight(r),\n∇loss + Jᵀw",
    "training/vector_jacobian.py": "Jᵀw,\nadded to .grad",
    "training/optimizer_protocol.py": "step of the base,\nhooks, engines",
    "training/prox_terms.py": "prox of parameters\nthat carry a g",
    "training/multiplier_update.py": "r of the epoch,\nmoves y and β",
}
CORE = {
    "dual.py": "y, β, k and\ntheir only update",
    "functional.py": "the formulas",
    "result.py": "records, statuses",
}
SOLVING = {
    "solving/problem.py": "f, g, A, B and\ntheir residuals",
    "solving/power_alm.py": "Algorithm 1,\nline by line",
    "solving/initialization.py": "x_1 in dom g,\nβ_1, y_1",
    "solving/outer_loop.py": "one outer iteration",
    "solving/subproblem.py": "ψ = L_β(·, y)",
    "solvers/base.py": "runs one solver file\nto its tolerance",
    "solving/kkt_certificate.py": "residuals,\nrecomputed",
    "solving/termination.py": "how a run ends",
}
WIDTH, HEIGHT, STEP = 2.05, 0.92, 2.3
COLORS = {"training": "#dbe9f6", "solving": "#e2f0d9", "solvers": "#e2f0d9", "core": "#fde9d0"}


def box(axes: Axes, x: float, y: float, name: str, text: str, color: str) -> None:
    """Draw one file."""
    patch = FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0.02", fc=color, ec="#444444")
    axes.add_patch(patch)
    file = name if name.startswith("solvers") else name.split("/")[-1]
    axes.text(x + WIDTH / 2, y + 0.74, file, ha="center", va="center", fontsize=7.9, weight="bold")
    axes.text(x + WIDTH / 2, y + 0.32, text, ha="center", va="center", fontsize=7.6)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], **style: object
) -> None:
    """Draw an arrow."""
    settings = {"arrowstyle": "-|>", "mutation_scale": 11, "color": "#444444", "lw": 1.1, **style}
    axes.add_patch(FancyArrowPatch(start, end, **settings))  # type: ignore[arg-type]


def route(axes: Axes, y: float, files: dict[str, str], title: str) -> None:
    """Draw the files of a route from left to right."""
    axes.text(0, y + HEIGHT + 0.18, title, fontsize=10, weight="bold", va="bottom")
    for i, (name, text) in enumerate(files.items()):
        box(axes, i * STEP, y, name, text, COLORS[name.split("/")[0]])
        if i:
            arrow(axes, (i * STEP - STEP + WIDTH, y + HEIGHT / 2), (i * STEP, y + HEIGHT / 2))


def main() -> None:
    """Draw both routes over the core they share."""
    figure = Figure(figsize=(16.2, 5.4), layout="constrained")
    axes = figure.subplots()
    top, middle, bottom = 4.2, 2.1, 0.0
    route(axes, top, TRAINING, "training/   loss → augmented gradient → step → multiplier update")
    route(axes, bottom, SOLVING, "solving/   problem → outer loop → inner solver → certificate")
    axes.text(7.15, middle + HEIGHT + 0.14, "shared core", fontsize=10, weight="bold", ha="left")
    for i, (name, text) in enumerate(CORE.items()):
        box(axes, 7.15 + i * STEP, middle, name, text, COLORS["core"])
    arrow(axes, (7.15 + WIDTH, middle + HEIGHT / 2), (7.15 + STEP, middle + HEIGHT / 2))
    # Both routes reach the formulas through dual.py.
    dual = 7.15 + WIDTH / 2
    arrow(axes, (4 * STEP + WIDTH / 2, top), (dual + 0.35, middle + HEIGHT + 0.02))
    arrow(axes, (8 * STEP + WIDTH / 2, top), (dual + 0.7, middle + HEIGHT + 0.02))
    arrow(axes, (3 * STEP + WIDTH / 2, bottom + HEIGHT), (dual - 0.35, middle - 0.02))
    # The one arrow back: the next outer iteration.
    back = {"connectionstyle": "arc3,rad=-0.16", "linestyle": "--"}
    arrow(axes, (7 * STEP + WIDTH / 2, bottom), (3 * STEP + WIDTH / 2, bottom), **back)
    axes.text(5 * STEP + WIDTH / 2, -0.86, "next outer iteration", ha="center", fontsize=8)
    axes.set_xlim(-0.15, 9 * STEP)
    axes.set_ylim(-1.1, top + HEIGHT + 0.6)
    axes.set_axis_off()
    figure.savefig(Path(__file__).with_name("architecture.png"), dpi=110)


if __name__ == "__main__":
    main()
