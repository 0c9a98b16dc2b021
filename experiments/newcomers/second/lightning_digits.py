import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo
from torch_powalm.integrations import constrained
from torch_powalm.lightning import PowerALMCallback

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 10))
        self.constraints = ConstraintRegistry()
        self.worst = zoo.class_loss(self.constraints, "worst", bound=0.2, classes=10)
        zoo.unit_norm(self.constraints, "unit", lambda: self.net[3].weight)

    def training_step(self, batch, _):
        losses = cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        return constrained(self.optimizers()).augment(losses.mean(), worst=self.worst(losses, batch[1]))

    def configure_optimizers(self):
        base = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        optimizer = PowerALMOptimizer(base, self.constraints)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)]

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)
net = Net()
L.Trainer(max_epochs=40, accelerator="cpu", logger=False, callbacks=[PowerALMCallback()]).fit(net, loader)
losses = torch.stack([cross_entropy(net.net(x[y == c]), y[y == c]).detach() for c in range(10)])
norms = net.net[3].weight.detach().norm(dim=1)
print("largest class loss", float(losses.max()), "norms", float(norms.min()), float(norms.max()))
assert losses.max() <= 0.2 and (norms - 1).abs().max() <= 0.005
