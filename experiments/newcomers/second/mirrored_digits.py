import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32) / 16
y, mirrored = torch.tensor(digits.target), x.flip(2)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
plain = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(20):
    for rows in torch.randperm(len(x)).split(64):
        plain.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        plain.step()
constraints = ConstraintRegistry()
keep = zoo.forgetting(constraints, "keep", zoo.frozen_copy(model), bound=0.02)
optimizer = PowerALMOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
for epoch in range(30):
    for rows in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        loss = cross_entropy(model(mirrored[rows]), y[rows])
        optimizer.augment(loss, keep=keep(model(x[rows]), x[rows])).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
constraints.observe(keep=keep(model(x), x))                     # on all upright digits
excess = constraints.take_observed()["keep"].max
for name, images in (("upright", x), ("mirrored", mirrored)):
    print(name, "accuracy", float((model(images).argmax(1) == y).float().mean()), "above the bound", excess)
assert excess <= 0.001
