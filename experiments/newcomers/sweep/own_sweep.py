import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from torch_powalm import ConstraintRegistry
from torch_powalm.integrations.hydra_configs import register
from torch_powalm.integrations.sweep import write_result

register()

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    torch.manual_seed(cfg.seed)
    x = torch.randn(3000, 6)
    noisy = (x[:, 0] - x[:, 1] + 0.8 * torch.randn(3000) > 1.2).float()
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1), torch.nn.Flatten(0))
    constraints = ConstraintRegistry()
    entry = instantiate(cfg.powalm.constraint)(constraints, "missed")
    base = instantiate(cfg.base)(model.parameters())
    optimizer = instantiate(cfg.powalm.optimizer)(base, constraints)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.steps)
    for _ in range(cfg.steps):
        rows = torch.randint(3000, (150,))
        optimizer.zero_grad()
        logits = model(x[rows])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, noisy[rows])
        optimizer.augment(loss, missed=entry(logits, noisy[rows])).backward()
        optimizer.step()
        scheduler.step()
    write_result(HydraConfig.get().runtime.output_dir, optimizer, merit=loss)

if __name__ == "__main__":
    main()
