"""Engines of others: one way to reach `augment` in all of them, and modules for single engines.

    constrained(optimizer).augment(loss, …)

works with a plain PowerALMOptimizer and with the wrappers that accelerate, the Hugging Face
Trainer, Fabric and Lightning put around it. The modules `huggingface`, `hydra_configs`, `sweep` and
`deepxde` import their engine when they are imported, and this package imports none of them.
"""

from torch_powalm.integrations.wrapped_optimizer import constrained

__all__ = ["constrained"]
