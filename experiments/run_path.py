"""Names of run folders, such as gevp/gevp_step/nu=0.6/seed=0.

The levels are the experiment, the problem where the experiment's name does not contain it, the
solver or method, every other setting that differs from the experiment's config, then ν and the
seed. Equal settings give equal paths. A config file that is edited between two sweeps can still
give one path to two settings; `run_folder.finished` refuses to overwrite the first run then.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.run_folder import check_name, flatten

# Settings that leave the numbers as they are, or that have a level of their own.
UNSHOWN = {"name", "nu", "seed", "method.nu", "output", "progress", "data.root", "data.download"}
UNSHOWN |= {"features.cache", "features.progress", "alm.progress"}


def run_key(cfg: DictConfig, group: str, levels: Mapping[str, Any]) -> str:
    """The path of a run's folder below that of its experiment.

    Args:
        cfg: the config of the job.
        group: config group whose choice is the first level, "solver" or "method".
        levels: the last levels, by name.
    """
    name = check_name(cfg.name)
    choices = {
        key: choice
        for key, choice in HydraConfig.get().runtime.choices.items()
        if choice is not None and not key.startswith("hydra/")
    }
    usual, base = _experiment(HydraConfig.get().job.config_name, tuple(sorted(choices.items())))
    parts = [] if cfg.get("case", name) in name else [check_name(cfg.case)]
    parts.append(choices[group])
    if cfg.data.root is not None:
        parts.append("data=complete")
    others = choices.keys() - {"experiment", "problem", "images", group}
    parts += [f"{key}={choices[key]}" for key in sorted(others) if choices[key] != usual.get(key)]
    own = flatten(OmegaConf.to_container(cfg, resolve=False))  # type: ignore[arg-type]
    foreign = re.compile(rf"choices\.(?!{choices[group]}\.)")  # settings of the other methods
    for key in sorted(own.keys() | base.keys()):
        if own.get(key) != base.get(key) and key not in UNSHOWN and not foreign.match(key):
            parts.append(f"{_short(key, cfg)}={_text(own.get(key))}")
    return "/".join([*parts, *(f"{key}={_text(value)}" for key, value in levels.items())])


@lru_cache
def _experiment(
    config: str, choices: tuple[tuple[str, str], ...]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The usual choices of an experiment, and the leaves of its config with these choices."""
    first = [f"{key}={choice}" for key, choice in choices if key == "experiment"]
    usual = compose(config, first, return_hydra_config=True).hydra.runtime.choices
    changed = [
        f"{key}={choice}"
        for key, choice in choices
        if key != "experiment" and usual.get(key) not in (None, choice)
    ]
    base = OmegaConf.to_container(compose(config, [*first, *changed]), resolve=False)
    return dict(usual), flatten(base)  # type: ignore[arg-type]


def _short(key: str, cfg: DictConfig) -> str:
    """beta_1 for alm.beta_1; the whole key where the config has another one of that name."""
    name = key.removeprefix("alm.")
    return key if name in cfg else name


def _text(value: Any) -> str:
    """A value without commas, slashes and spaces; equal numbers give equal texts."""
    if isinstance(value, list):
        return "+".join(map(_text, value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return quote(str(value), safe="")
