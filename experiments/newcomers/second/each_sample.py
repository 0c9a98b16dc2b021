import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

torch.manual_seed(0)
data = load_breast_cancer()
x = torch.tensor(data.data, dtype=torch.float32)
x, y = (x - x.mean(0)) / x.std(0), torch.tensor(data.target).float()
model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
constraints = ConstraintRegistry()
each = zoo.sample_loss(constraints, "each", bound=0.5, samples=len(x))
optimizer = PowerALMOptimizer(torch.optim.Adam(model.parameters(), lr=3e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
for epoch in range(100):
    for rows in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        losses = bce(model(x[rows]), y[rows], reduction="none")
        decay = 1e-2 * sum(p.square().sum() for p in model.parameters())
        optimizer.augment(losses.mean() + decay, each=each(losses, rows)).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
losses = bce(model(x), y, reduction="none")
print("largest loss", float(losses.max()), "mean", float(losses.mean()))
assert losses.max() <= 0.5 * 1.01
