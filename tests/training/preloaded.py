"""Imported by the process from which test_resume.py forks: torch, and what a first step imports."""

import torch

torch.set_num_threads(1)
_parameter = torch.nn.Parameter(torch.zeros(1))
_parameter.grad = torch.zeros(1)
torch.optim.SGD([_parameter], lr=0.1).step()
