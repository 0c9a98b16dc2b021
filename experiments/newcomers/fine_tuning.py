import torch
from torch import nn
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

torch.manual_seed(1)
wave = lambda x: torch.sin(3 * x)
net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
old_x = torch.linspace(-2, 0, 200)[:, None]
adam = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(1500):                                            # the model that exists already
    adam.zero_grad()
    (net(old_x) - wave(old_x)).square().mean().backward()
    adam.step()

new_x = torch.linspace(0, 2, 200)[:, None]
new_y = 1 - new_x                                                # the new task
constraints = ConstraintRegistry()
old = zoo.frozen_copy(net)
keep = zoo.output_distance(constraints, "keep", old, bound=0.05)  # at most 5 % away on the old inputs
optimizer = PowerALMOptimizer(torch.optim.Adam(net.parameters(), lr=2e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2000)
for _ in range(2000):
    optimizer.zero_grad()
    loss = (net(new_x) - new_y).square().mean()
    optimizer.augment(loss, keep=keep(net(old_x), old_x)).backward()
    optimizer.step()
    scheduler.step()
print(optimizer.report())
with torch.no_grad():
    away = float((net(old_x) - old(old_x)).norm() / old(old_x).norm())
    error = float((net(new_x) - new_y).square().mean())
print("moved by", away, "new error", error)
assert away <= 0.05 * 1.02
