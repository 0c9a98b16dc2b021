"""
Clustering images with a certificate
====================================

Clusters of images as an optimization problem (the paper's third experiment): for the matrix D of squared distances between
the images, find a nonnegative matrix X with few columns that minimizes

    ⟨D, XXᵀ⟩   subject to   XXᵀ1 = 1,   X ≥ 0,   ‖X‖² ≤ s

for s clusters. XXᵀ is then a block matrix, one block per cluster. The problem is not convex; ``power_alm`` returns a point together
with the residuals that say how good it is.
"""

import math
import os

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import avg_pool2d

from experiments.data.images import Source
from torch_powalm import Problem, Status, power_alm, prox

FAST = "POWALM_GALLERY_FAST" in os.environ
kinds = {1: "trousers", 7: "sneakers", 8: "bags"}
per_kind = 30 if FAST else 60
images = Source("fashion_mnist").load()
chosen = torch.cat([(images.train_labels == k).nonzero()[:per_kind, 0] for k in kinds])
chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))]
pictures, labels = images.train[chosen], images.train_labels[chosen]

# %%
# The problem
# -----------

points = avg_pool2d(pictures.double().unsqueeze(1) / 255, 2).flatten(1)
D = torch.cdist(points, points).square()
D = D / D.max()
clusters, columns = len(kinds), 2 * len(kinds)
ones = torch.ones(len(points), 1, dtype=torch.float64)

problem = Problem(
    f=lambda X: (X * (D @ X)).sum(),
    equality=lambda X: (X @ (X.T @ ones) - 1).squeeze(1),
    g=prox.NonNegativeBall(math.sqrt(clusters)),
)
generator = torch.Generator().manual_seed(1)
x_1 = torch.rand(len(points), columns, generator=generator, dtype=torch.float64) / len(points)
solution = power_alm(problem, x_1, nu=0.8, eps_phi=1e-3, eps_A=1e-3)
print(solution)

# %%
# Clusters
# --------
# The blocks of XXᵀ are the clusters. Each one gets a representative: an image that the chosen ones hardly touch.

gram = solution.x @ solution.x.T
representatives = [int(gram.diagonal().argmax())]
for _ in range(clusters - 1):
    touched = gram[representatives].sum(0) / gram.diagonal()
    representatives.append(int(touched.argmin()))
assignment = gram[representatives].argmax(0)
order = assignment.argsort(stable=True)

figure = plt.figure(figsize=(12, 4.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.7))
ax = left.subplots()
ax.imshow(gram[order][:, order].numpy(), cmap="viridis")
ax.set_title("XXᵀ, ordered by cluster")
found = torch.unique(assignment)
panels = right.subplots(len(found), 12, squeeze=False)
for row, cluster in zip(panels, found, strict=True):
    members = (assignment == cluster).nonzero()[:, 0]
    for panel, index in zip(row, members, strict=False):
        panel.imshow(pictures[index].numpy(), cmap="gray_r")
    row[0].set_title(f"cluster {int(cluster)}: {len(members)} images", loc="left", fontsize=10)
for panel in panels.flat:
    panel.axis("off")
plt.show()

# %%
# Feasible at the end, by residuals that are recomputed from x and y:

residuals = problem.residuals(solution.x, solution.y)
print(residuals)
majority = sum(int(labels[assignment == c].bincount().max()) for c in found)
print(
    f"{len(found)} clusters, {100 * majority / len(points):.0f} % of the images are with their kind"
)
assert solution.status is Status.CONVERGED
assert residuals.primal <= 1e-3
