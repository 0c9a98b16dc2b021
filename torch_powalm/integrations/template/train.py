"""A constrained training with Hydra.

python train.py
python train.py -m powalm.optimizer.nu=0.7,0.8,1 seed=0,1,2
python train.py -m hydra/launcher=joblib powalm.constraint.bound=0.01,0.02,0.05
python -m torch_powalm.integrations.sweep multirun
"""

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from torch_powalm import ConstraintRegistry
from torch_powalm.integrations.hydra_configs import register
from torch_powalm.integrations.sweep import write_result

register()


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(config: DictConfig) -> None:
    """Train a classifier whose decisions must be fair; replace data, model and constraint."""
    generator = torch.Generator().manual_seed(config.seed)
    x = torch.randn(3000, 8, generator=generator)
    group = (torch.rand(3000, generator=generator) < 0.4).long()
    noise = 0.3 * torch.randn(3000, generator=generator)
    label = (x[:, 0] + 0.8 * group + noise > 0.5).float()
    x[:, 7] = group

    torch.manual_seed(config.seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    constraints = ConstraintRegistry()
    fair = instantiate(config.powalm.constraint)(constraints, "fair")
    base = instantiate(config.base)(model.parameters())
    optimizer = instantiate(config.powalm.optimizer)(base, constraints)
    for _ in range(config.steps):
        rows = torch.randint(2000, (config.batch_size,), generator=generator)
        optimizer.zero_grad()
        logits = model(x[rows]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label[rows])
        optimizer.augment(loss, fair=fair(logits, label[rows], group=group[rows])).backward()
        optimizer.step()
        optimizer.history.log_loss(loss)
    print(optimizer.report())
    with torch.no_grad():
        test = model(x[2000:]).squeeze(1)
        merit = nn.functional.binary_cross_entropy_with_logits(test, label[2000:])
    write_result(HydraConfig.get().runtime.output_dir, optimizer, float(merit))


if __name__ == "__main__":
    main()
