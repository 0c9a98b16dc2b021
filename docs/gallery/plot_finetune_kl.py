"""
Fine-tuning without forgetting
==============================

A network that knows digits learns clothes. Plain fine-tuning overwrites the digits. With one inequality, the mean
Kullback–Leibler divergence from the old network on digits stays below 0.05, and the new task gets whatever that leaves.
"""

import copy
import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy, kl_div, log_softmax

from experiments.data.images import Source
from torch_powalm import ConstraintRegistry, PowerALMOptimizer

FAST = "POWALM_GALLERY_FAST" in os.environ
BOUND = 0.05


def load(name):
    """Training and test images of 14 × 14 pixels as vectors, with their labels."""
    images = Source(name).load()
    parts = (images.train, images.train_labels), (images.test, images.test_labels)
    return [
        ((avg_pool2d(x.float().unsqueeze(1) / 255, 2).flatten(1) - 0.2) / 0.3, target)
        for x, target in parts
    ]


(old_x, old_target), old_test = load("mnist")
(new_x, new_target), new_test = load("fashion_mnist")


@torch.no_grad()
def accuracy(model, test):
    """Share of correct predictions, in percent."""
    return 100 * float((model(test[0]).argmax(1) == test[1]).float().mean())


# %%
# The old network
# ---------------

torch.manual_seed(0)
reference = nn.Sequential(nn.Linear(196, 128), nn.ReLU(), nn.Linear(128, 10))
adam = torch.optim.Adam(reference.parameters(), lr=3e-3)
for _ in range(3 if FAST else 8):
    for rows in torch.randperm(5000).split(100):
        adam.zero_grad()
        cross_entropy(reference(old_x[rows]), old_target[rows]).backward()
        adam.step()
reference.requires_grad_(False).eval()
print(
    f"digits {accuracy(reference, old_test):.1f} %, clothes {accuracy(reference, new_test):.1f} %"
)

# %%
# Fine-tuning
# -----------
# Every step sees a batch of clothes for the loss and a batch of digits for the constraint.


def divergence(model, x):
    """Mean KL(reference ‖ model)."""
    p, q = log_softmax(reference(x), 1), log_softmax(model(x), 1)
    return kl_div(q, p, log_target=True, reduction="batchmean")


def finetune(constrained, epochs):
    """Return the model, its optimizer, and both accuracies on the way."""
    torch.manual_seed(1)
    model = copy.deepcopy(reference).requires_grad_(True)
    constraints = ConstraintRegistry()
    constraints.inequality("forgetting", size=1)
    base = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = (
        PowerALMOptimizer(base, constraints, total_steps=50 * epochs) if constrained else base
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    path = [(0, accuracy(model, old_test), accuracy(model, new_test))]
    for epoch in range(epochs):
        batches = zip(torch.randperm(5000).split(100), torch.randperm(5000).split(100), strict=True)
        for step, (new, old) in enumerate(batches, 50 * epoch + 1):
            optimizer.zero_grad()
            loss = cross_entropy(model(new_x[new]), new_target[new])
            if constrained:
                value = divergence(model, old_x[old]) - BOUND
                loss = optimizer.augment(loss, forgetting=value[None])
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                path.append((step, accuracy(model, old_test), accuracy(model, new_test)))
        scheduler.step()
    return model, optimizer, path


epochs = 4 if FAST else 12
plain, _, plain_path = finetune(False, epochs)
model, optimizer, path = finetune(True, epochs)
print(optimizer.report(tolerance=0.005))

# %%
# Both tasks on the way
# ---------------------

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
for ax, curve, name in ((axes[0], plain_path, "plain"), (axes[1], path, "KL ≤ 0.05 on digits")):
    steps, digits, clothes = zip(*curve, strict=True)
    ax.plot(steps, digits, color="C0", label="digits (old task)")
    ax.plot(steps, clothes, color="C1", label="clothes (new task)")
    ax.set(title=name, xlabel="step", ylim=(0, 100))
    ax.grid(alpha=0.3)
axes[0].set_ylabel("test accuracy, %")
axes[1].legend(frameon=False, loc="lower right")
plt.show()

# %%
# Feasible at the end, on all training digits:

with torch.no_grad():
    final, forgotten = float(divergence(model, old_x)), float(divergence(plain, old_x))
print(f"divergence {final:.4f}, bound {BOUND}; without the constraint {forgotten:.2f}")
assert final <= BOUND * 1.1
