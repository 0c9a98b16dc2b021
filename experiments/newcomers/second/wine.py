import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn.functional import cross_entropy
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

torch.manual_seed(0)
wine = load_wine()
x = torch.tensor(wine.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(wine.target)
model = nn.Sequential(nn.Linear(13, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
constraints = ConstraintRegistry()
bounded = zoo.lipschitz(constraints, "bounded", [model[0], model[2], model[4]], bound=2.0)
optimizer = PowerALMOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
for epoch in range(100):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
constant = 1.0
for layer in (0, 2, 4):
    constant *= float(torch.linalg.matrix_norm(model[layer].weight, 2))
print("Lipschitz constant", constant, "accuracy", float((model(x).argmax(1) == y).float().mean()))
assert constant <= 2.0 * 1.005
