"""Poisson with DeepXDE under its boundary condition: prints the error and the violation.

DDE_BACKEND=pytorch python -m tests.integrations.deepxde_training
"""

import json

import deepxde as dde
import numpy as np
import torch

from torch_powalm.integrations.deepxde import constrain

STEPS = 800


def build():
    dde.config.set_random_seed(0)
    geometry = dde.geometry.Interval(-1, 1)

    def equation(x, u):
        return dde.grad.hessian(u, x) + np.pi**2 * torch.sin(np.pi * x)

    ends = dde.icbc.DirichletBC(geometry, lambda x: 0 * x, lambda x, on: on)
    data = dde.data.PDE(geometry, equation, ends, 32, 2)
    model = dde.Model(data, dde.nn.FNN([1] + [20] * 2 + [1], "tanh", "Glorot uniform"))
    model.compile("adam", lr=1e-2)
    return model


def error(model):
    x = np.linspace(-1, 1, 201)[:, None]
    exact = np.sin(np.pi * x)
    return float(np.linalg.norm(model.predict(x) - exact) / np.linalg.norm(exact))


def main():
    unready, bare = dde.Model(build().data, None), build()
    bare.data.bcs = []
    for wrong in (unready, bare):
        try:
            constrain(wrong)
        except ValueError as said:
            print(said)
    model = build()
    optimizer = constrain(model, total_steps=STEPS)
    model.train(iterations=STEPS, display_every=STEPS)
    assert len(optimizer.history) > 10
    print(json.dumps([error(model), optimizer.constraints.violations()["condition_0"].max]))


if __name__ == "__main__":
    main()
