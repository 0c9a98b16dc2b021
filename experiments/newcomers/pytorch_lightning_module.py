import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo
from torch_powalm.lightning import PowerALMCallback

class Filter(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 1), nn.Flatten(0))
        self.constraints = ConstraintRegistry()
        self.lost = zoo.false_positive_rate(self.constraints, "lost", bound=0.01)   # good mail in the spam folder

    def training_step(self, batch, _):
        x, spam = batch
        logits = self.net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, spam)
        return self.optimizers().augment(loss, lost=self.lost(logits, spam))

    def configure_optimizers(self):
        optimizer = PowerALMOptimizer(torch.optim.Adam(self.parameters(), lr=5e-3), self.constraints)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)]

pl.seed_everything(3)
x = torch.poisson(torch.full((8000, 30), 0.4))
spam = ((x[:, :6].sum(1) - x[:, 6:12].sum(1) + torch.randn(8000)) > 1.5).float()
module = Filter()
trainer = pl.Trainer(max_epochs=30, callbacks=[PowerALMCallback()], accelerator="cpu", logger=False,
                     enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(module, DataLoader(TensorDataset(x, spam), batch_size=100, shuffle=True))
print(trainer.optimizers[0].report())
with torch.no_grad():
    lost = float((module.net(x)[spam == 0] > 0).float().mean())
    caught = float((module.net(x)[spam == 1] > 0).float().mean())
print("good mail lost", lost, "spam caught", caught)
assert lost <= 0.012
