# Cooper's tutorial on maximum entropy: a distribution on 1..6 with a given mean, here mean 4.7 and P(6) <= 0.3
import torch
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

p = torch.nn.Parameter(torch.rand(6, generator=torch.Generator().manual_seed(0)))
faces = torch.arange(1.0, 7.0)
constraints = ConstraintRegistry()
constraints.equality("sum", lambda: p.sum()[None] - 1)
constraints.equality("mean", lambda: (p @ faces)[None] - 4.7)
constraints.inequality("nonnegative", lambda: -p)
constraints.inequality("six", lambda: p[5:] - 0.3)
optimizer = PowerALMOptimizer(torch.optim.Adam([p], lr=5e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3000)
for _ in range(3000):
    optimizer.zero_grad()
    entropy = -(p.clamp(min=1e-8) * p.clamp(min=1e-8).log()).sum()
    (-entropy).backward()
    optimizer.step()
    scheduler.step()
print(optimizer.report(tolerance=1e-3))
print(p.data, "sum", float(p.sum()), "mean", float(p.data @ faces))
assert optimizer.report(tolerance=2e-3).feasible
