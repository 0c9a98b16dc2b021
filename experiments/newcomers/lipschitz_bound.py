import torch
from sklearn.datasets import load_wine
from torch import nn
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

wine = load_wine()
x = torch.tensor(wine.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
target = torch.tensor(wine.target)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(13, 100), nn.ReLU(), nn.Linear(100, 80), nn.ReLU(), nn.Linear(80, 3))
constraints = ConstraintRegistry()
layers = [m for m in model if isinstance(m, nn.Linear)]
smooth = zoo.lipschitz(constraints, "smooth", layers, bound=2.0)
optimizer = PowerALMOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=800)
for step in range(800):
    rows = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rows]), target[rows]).backward()
    optimizer.step()
    scheduler.step()
print(optimizer.report())
exact = 1.0
for layer in layers:
    exact *= float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
print("Lipschitz constant", exact, "accuracy", float((model(x).argmax(1) == target).float().mean()))
assert exact <= 2.0 * 1.01
