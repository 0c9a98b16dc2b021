import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = torch.nn.Linear(64, 10)
constraints = ConstraintRegistry()
squares = lambda: model.weight.square().sum() + model.bias.square().sum()
constraints.inequality("norm", lambda: squares()[None] - 1.0)
optimizer = PowerALMOptimizer(torch.optim.Adam(model.parameters(), lr=3e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
for epoch in range(10):
    for rows in torch.randperm(len(x)).split(100):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
print("squared norm", float(squares()), "loss", float(cross_entropy(model(x), y)))
assert squares() <= 1.005
