"""A training that can be killed: run by test_resume.py, each time in a fresh process."""

import os
import signal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, prox

STEPS, EPOCH = 30, 8


class Parts:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        constraints = ConstraintRegistry()
        constraints.equality("unit_rows", lambda: self.model[0].weight.square().sum(1) - 1)
        constraints.inequality("budget", lambda: self.model[2].weight.abs().sum() - 2.0)
        constraints.inequality("class_loss", size=3)
        constraints.equality("rate", size=1, from_statistics=lambda s: s[:1] / s[1:] - 0.4)
        self.optimizer = PowerALMOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9),
            constraints,
            nu=0.7,
            sigma="paper",
            sufficient_decrease=0.95,
            prox={self.model[2].bias: prox.NonNegative()},
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        self.done, self.records = 0, []

    def state(self):
        names = ("model", "optimizer", "scheduler", "scaler")
        return {
            **{name: getattr(self, name).state_dict() for name in names},
            "done": self.done,
            "records": self.records,
        }

    def load(self, state):
        for name in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.done, self.records = state["done"], state["records"]

    def step(self):
        generator = torch.Generator().manual_seed(self.done)
        x = torch.randn(16, 6, generator=generator)
        target = x[:, :3].argmax(1)
        self.optimizer.zero_grad()
        logits = self.model(x)
        losses = cross_entropy(logits, target, reduction="none")
        count = torch.zeros(3).index_add(0, target, torch.ones(16))
        value = torch.zeros(3).index_add(0, target, losses) / count.clamp(min=1) - 0.5
        positive = logits[:, 0].sigmoid().sum().reshape(1)
        statistics = torch.cat([positive, torch.tensor([16.0])])
        loss = self.optimizer.augment(
            losses.mean(), class_loss=(value, count), rate=statistics, samples=16
        )
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.done += 1
        if self.done % EPOCH == 0:
            record = self.optimizer.update_multipliers()
            self.records.append([record.primal_residual, record.beta, record.sigma, record.y_norm])
            self.scheduler.step()


def main(folder, stop=STEPS):
    """Train up to a step and kill the process, or resume to the end and save the result."""
    torch.set_num_threads(1)
    parts = Parts()
    if (folder / "last.pt").exists():
        parts.load(torch.load(folder / "last.pt", weights_only=True))
    while parts.done < stop:
        parts.step()
    if stop < STEPS:
        torch.save(parts.state(), folder / "last.pt")
        os.kill(os.getpid(), signal.SIGKILL)
    torch.save(parts.state(), folder / "end.pt")
