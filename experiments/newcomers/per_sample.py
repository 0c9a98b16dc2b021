import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

cancer = load_breast_cancer()
x = torch.tensor(cancer.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(cancer.target, dtype=torch.float32)
loader = DataLoader(TensorDataset(x, y, torch.arange(len(x))), batch_size=57, shuffle=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
constraints = ConstraintRegistry()
every = zoo.sample_loss(constraints, "every", samples=len(x), bound=0.4)
optimizer = PowerALMOptimizer(torch.optim.Adam(model.parameters(), lr=3e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)
for epoch in range(80):
    for inputs, labels, index in loader:
        optimizer.zero_grad()
        losses = nn.functional.binary_cross_entropy_with_logits(model(inputs), labels, reduction="none")
        optimizer.augment(losses.mean(), every=every(losses, index)).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
with torch.no_grad():
    losses = nn.functional.binary_cross_entropy_with_logits(model(x), y, reduction="none")
print("largest loss", float(losses.max()), "mean", float(losses.mean()))
assert losses.max() <= 0.4 * 1.05
