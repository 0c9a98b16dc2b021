import math
import torch
from torch import nn
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

# a damped spring in seconds and millimeters: x'' + 4 x' + 100 x = 0, x(0) = 30 mm, x'(0) = 0
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
u = lambda t: 30 * net(2 * t)
t = torch.linspace(0, 1, 120)[:, None]

def residual(t):
    t = t.requires_grad_()
    x = u(t)
    (v,) = torch.autograd.grad(x.sum(), t, create_graph=True)
    (a,) = torch.autograd.grad(v.sum(), t, create_graph=True)
    return a + 4 * v + 100 * x

start = torch.zeros(1, 1)
constraints = ConstraintRegistry()
zoo.initial(constraints, "position", u, points=start, value=30.0)
zoo.normal_derivative(constraints, "speed", u, torch.ones(1, 1), 0.0, points=start)
optimizer = PowerALMOptimizer(torch.optim.Adam(net.parameters(), lr=3e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6000)
for step in range(6000):
    optimizer.zero_grad()
    loss = (residual(t.clone()) / 1000).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
print(optimizer.report())
w = math.sqrt(96)
exact = 30 * torch.exp(-2 * t) * (torch.cos(w * t) + 2 / w * torch.sin(w * t))
print("largest error in mm", (u(t) - exact).abs().max().item(), "start", u(start).item())
assert abs(u(start).item() - 30) < 0.1 and optimizer.report(tolerance={"position": 0.1, "speed": 3.0}).feasible
