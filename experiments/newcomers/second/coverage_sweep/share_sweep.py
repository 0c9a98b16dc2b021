import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_powalm import ConstraintRegistry
from torch_powalm.integrations.hydra_configs import register
from torch_powalm.integrations.sweep import write_result

register()

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    torch.manual_seed(config.seed)
    x = torch.randn(3000, 6)
    y = (x[:, 0] * x[:, 1] > 0.8).float()
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    constraints = ConstraintRegistry()
    cover = instantiate(config.powalm.constraint)(constraints, "cover")
    base = instantiate(config.base)(model.parameters())
    optimizer = instantiate(config.powalm.optimizer)(base, constraints)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    for epoch in range(30):
        for rows in torch.randperm(3000).split(100):
            optimizer.zero_grad()
            logits = model(x[rows])
            optimizer.augment(bce(logits, y[rows]), cover=cover(logits)).backward()
            optimizer.step()
        scheduler.step()
    print("share of positive decisions", float((model(x) > 0).float().mean()))
    write_result(HydraConfig.get().runtime.output_dir, optimizer, bce(model(x), y))

if __name__ == "__main__":
    main()
