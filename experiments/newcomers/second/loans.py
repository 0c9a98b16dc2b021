import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo

torch.manual_seed(0)
n = 6000
age = torch.randint(3, (n,))                                    # three age groups
income = torch.randn(n) + 0.5 * age
debt = torch.randn(n).abs()
repays = (income - debt + 0.4 * (age == 2) + 0.5 * torch.randn(n) > 0.3).float()
x = torch.stack([1000 * income, debt, age.float()], 1)
x = (x - x.mean(0)) / x.std(0)
model = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0))
constraints = ConstraintRegistry()
equal = zoo.equal_opportunity(constraints, "equal", bound=0.03, groups=3)
optimizer = PowerALMOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=25)
for epoch in range(25):
    for rows in torch.randperm(n).split(128):
        optimizer.zero_grad()
        logits = model(x[rows])
        loss = bce(logits, repays[rows])
        optimizer.augment(loss, equal=equal(logits, repays[rows], group=age[rows])).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.report())
decided = model(x) > 0
rates = torch.stack([decided[(age == g) & (repays == 1)].float().mean() for g in range(3)])
print("gap", float(rates.max() - rates.min()), "accuracy", float((decided == repays.bool()).float().mean()))
assert rates.max() - rates.min() <= 0.03
