"""Draw the pictures of the first page and of the method: `python docs/draw_pictures.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, Problem, power_alm, solvers, zoo

PICTURES = Path(__file__).parent / "pictures"
NUS = {1.0: "C3", 0.8: "C0", 0.5: "C2", 0.2: "C1"}
EPOCHS, BOUND = 20, 10  # percent


def main() -> None:
    """Draw all pictures."""
    PICTURES.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    first_training()
    nu_penalty()
    nu_path()


def first_training() -> None:
    """The training of the first page, with the constraint and with fixed penalty weights."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
    for weight in (0.0, 0.3, 1.0, 3.0, 10.0, None):
        missed, loss = zip(*train(weight), strict=True)
        print(f"weight {weight}: missed {missed[-1]:.1f} %, loss {loss[-1]:.3f}")
        own = weight is None
        color, width = ("C0", 2.4) if own else ("0.65", 1.1)
        left.plot(range(1, EPOCHS + 1), missed, color=color, linewidth=width)
        right.scatter(missed[-1], loss[-1], color=color, s=90 if own else 40, zorder=3)
        name = "constraint, nothing set" if own else f"weight {weight:g}"
        place = {"textcoords": "offset points", "color": color if own else "0.3"}
        inside = missed[-1] < BOUND and not own  # names do not cross the bound
        at = (9, 9) if own else (-7 if inside else 7, -4)
        place["ha"] = "right" if inside else "left"
        right.annotate(name, (missed[-1], loss[-1]), at, **place)
        if not own:
            place["ha"] = "left"
            up = {1.0: 2, 3.0: -4, 10.0: -9}.get(weight, -3)  # apart
            left.annotate(f"{weight:g}", (EPOCHS, missed[-1]), (4, up), **place)
    left.axhline(BOUND, color="C3", linestyle="--", linewidth=1)
    right.axvline(BOUND, color="C3", linestyle="--", linewidth=1)
    left.set(xlabel="epoch", ylabel="patients missed, %", ylim=(-3, None), xticks=range(0, 21, 5))
    left.annotate("penalty weight", (EPOCHS + 1, 58), ha="right", color="0.3")
    left.set_xlim(0, 22.5)
    right.set_xticks(range(0, 61, 10))
    right.annotate(
        f"{BOUND} % allowed", (BOUND, 0.2), (6, 0), textcoords="offset points", color="C3"
    )
    right.set(xlabel="patients missed at the end, %", ylabel="loss at the end", xlim=(-17, 68))
    right.margins(y=0.2)
    save(figure, "first_training.png")


def train(weight: float | None) -> list[tuple[float, float]]:
    """Share of patients missed in percent, and loss, after every epoch."""
    torch.manual_seed(0)
    x = torch.randn(10_000, 20)
    sick = (x[:, 0] + x[:, 1] + torch.randn(10_000) > 2).float()
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    constraints = ConstraintRegistry()
    missed = zoo.false_negative_rate(constraints, "missed", bound=BOUND / 100)
    base = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = PowerALMOptimizer(base, constraints) if weight is None else base
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    path = []
    for _ in range(EPOCHS):
        for rows in torch.randperm(10_000).split(250):
            optimizer.zero_grad()
            logits = model(x[rows])
            loss = binary_cross_entropy_with_logits(logits, sick[rows])
            if isinstance(optimizer, PowerALMOptimizer):
                loss = optimizer.augment(loss, missed=missed(logits, sick[rows]))
            else:
                smooth = (torch.sigmoid(-8 * logits) * sick[rows]).sum() / sick[rows].sum()
                loss = loss + weight * (smooth - BOUND / 100).clamp(min=0)
            loss.backward()
            optimizer.step()
        scheduler.step()
        with torch.no_grad():
            logits = model(x)
            rate = (logits[sick == 1] <= 0).float().mean()
            path.append((float(100 * rate), float(binary_cross_entropy_with_logits(logits, sick))))
    return path


def nu_penalty() -> None:
    """φ and its slope for a single constraint."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    r = torch.linspace(-1.5, 1.5, 1201)
    for nu, color in NUS.items():
        axes[0].plot(r, r.abs() ** (nu + 1) / (nu + 1), color=color, label=f"ν = {nu:g}")
        axes[1].plot(r, r.sign() * r.abs() ** nu, color=color, label=f"ν = {nu:g}")
    axes[0].set(xlabel="violation r", ylabel="penalty φ(r)")
    axes[1].set(xlabel="violation r", ylabel="slope of φ(r)")
    axes[0].legend(frameon=False, loc="upper center")
    for axis in axes:
        axis.grid(alpha=0.3)
    save(figure, "nu_penalty.png")


def nu_path() -> None:
    """Iterates of the method after every update: the nearest point of a circle."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    goal = torch.tensor([2.2, 1.2], dtype=torch.float64)
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    problem = Problem(
        f=lambda x: (weights * (x - goal).square()).sum(),
        equality=lambda x: (x.square().sum() - 1).reshape(1),
    )
    u, v = torch.meshgrid(
        torch.linspace(0.4, 1.4, 120), torch.linspace(0.4, 1.1, 90), indexing="xy"
    )
    level = weights[0] * (u - goal[0]) ** 2 + weights[1] * (v - goal[1]) ** 2
    angle = torch.linspace(0, 2 * torch.pi, 200)
    for axis, nu in zip(axes, (1.0, 0.5), strict=False):
        points = path_of(problem, nu)
        axis.contour(u, v, level, levels=12, colors="0.85", linewidths=0.8)
        axis.plot(angle.cos(), angle.sin(), color="0.4", linewidth=1)
        axis.plot(*points.T, "o-", color=NUS[nu], markersize=4)
        axis.set(xlim=(0.5, 1.3), ylim=(0.45, 1.05), aspect="equal", title=f"ν = {nu:g}")
    for nu in (1.0, 0.8, 0.5):
        violation = (path_of(problem, nu).square().sum(1) - 1).abs()
        steps = range(1, len(violation) + 1)
        axes[2].semilogy(steps, violation, "o-", color=NUS[nu], markersize=4, label=f"ν = {nu:g}")
    axes[2].set(xlabel="multiplier update", ylabel="violation", ylim=(1e-8, None))
    axes[2].legend(frameon=False)
    axes[2].grid(alpha=0.3)
    save(figure, "nu_path.png")


def path_of(problem: Problem, nu: float) -> Tensor:
    """The point before each multiplier update, with a constant penalty."""
    points = []
    power_alm(
        problem,
        torch.tensor([0.3, 1.2], dtype=torch.float64),
        nu=nu,
        beta_1=1.0,
        omega=1.0,
        active_set=False,
        solver=solvers.PANOC(),
        eps_A=1e-8,
        eps_phi=1e-8,
        max_outer=14,
        callback=lambda record, x: points.append(x.clone()),
    )
    return torch.stack(points)


def save(figure: plt.Figure, name: str) -> None:
    """Write a picture."""
    figure.savefig(PICTURES / name, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
