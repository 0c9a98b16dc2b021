import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

g = torch.Generator().manual_seed(7)
n = 6000
group = torch.randint(3, (n,), generator=g)                     # three regions
income = torch.randn(n, generator=g) * 12 + 40 - 5 * (group == 2)
debt = torch.rand(n, generator=g) * 30
repaid = ((income - debt) / 10 + torch.randn(n, generator=g) > 2.2).float()
x = torch.stack([income / 10, debt / 10, *nn.functional.one_hot(group, 3).T.float()], 1)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1), nn.Flatten(0))
constraints = ConstraintRegistry()
fair = zoo.equal_opportunity(constraints, "fair", bound=0.04, groups=3)
optimizer = PowerALMOptimizer(torch.optim.AdamW(model.parameters(), lr=5e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=25)
for epoch in range(25):
    for rows in torch.randperm(n).split(200):
        optimizer.zero_grad()
        logits = model(x[rows])
        loss = bce(logits, repaid[rows])
        optimizer.augment(loss, fair=fair(logits, repaid[rows], group=group[rows])).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
with torch.no_grad():
    yes = (model(x) > 0).float()
rates = torch.stack([yes[(group == k) & (repaid == 1)].mean() for k in range(3)])
print("true positive rates", rates, "gap", float(rates.max() - rates.min()))
assert rates.max() - rates.min() <= 0.04 + 0.005
