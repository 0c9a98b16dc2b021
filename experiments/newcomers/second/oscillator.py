import torch
from torch import nn
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

torch.manual_seed(0)                                            # u'' + u' + 4u = 0, u(0) = 1, u'(0) = 0
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

def derivative(t):
    t = t.clone().requires_grad_()
    u = net(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    return t, u, du

def start():
    _, u, du = derivative(torch.zeros(1, 1))
    return torch.cat([u[0] - 1, du[0]])

constraints = ConstraintRegistry()
constraints.equality("start", start)
optimizer = PowerALMOptimizer(torch.optim.Adam(net.parameters(), lr=3e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3000)
for step in range(3000):
    t, u, du = derivative(4 * torch.rand(100, 1))
    (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    optimizer.zero_grad()
    (ddu + du + 4 * u).square().mean().backward()
    optimizer.step()
    scheduler.step()
print(optimizer.report())
t, w = torch.linspace(0, 4, 200)[:, None], 3.75**0.5
exact = torch.exp(-t / 2) * (torch.cos(w * t) + 0.5 / w * torch.sin(w * t))
print("error", float((net(t) - exact).abs().max()), "violation", start().tolist())
assert start().abs().max() <= 0.005
