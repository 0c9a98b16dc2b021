"""Structured configs for Hydra: groups powalm/optimizer, solver, alm and constraint.

Call `register()` before `hydra.main`, choose options in the defaults list
(`- powalm/optimizer: default`), and build the objects with `hydra.utils.instantiate`. Every
argument can be swept: `python train.py -m powalm.optimizer.nu=0.7,0.8,1`.

    python -m torch_powalm.integrations.hydra_configs FOLDER

copies a project that runs as it is into a new folder.
"""

import argparse
import importlib
import inspect
import shutil
from collections.abc import Callable
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

from torch_powalm.integrations.wrapped_optimizer import import_engine

TEMPLATE = Path(__file__).parent / "template"
_PLAIN = (bool, int, float, str, type(None))
_RATE_SETTINGS = {"groups": 1, "positive": 1, "sharpness": 8.0}  # keywords of all rates
_NOT_CONSTRAINTS = ("Entry", "HardConcrete", "frozen_copy")


def register() -> None:
    """Add the configs to Hydra's store; repeated calls do no harm."""
    store: Any = import_engine("hydra.core.config_store", "hydra").ConfigStore.instance()
    for group, options in configs().items():
        for name, config in options.items():
            store.store(group=f"powalm/{group}", name=name, node=config)


def configs() -> dict[str, dict[str, type]]:
    """Return a dataclass for every option of every group; fields are the arguments."""
    package: Any = importlib.import_module("torch_powalm")
    solvers, zoo = package.solvers, package.zoo
    found: dict[str, dict[str, type]] = {
        "optimizer": {"default": _config(package.PowerALMOptimizer, "torch_powalm")},
        "alm": {"default": _config(package.power_alm, "torch_powalm")},
        "solver": {},
        "constraint": {},
    }
    for name in solvers.__all__:
        if inspect.isclass(solver := getattr(solvers, name)) and name != "FromTorch":
            found["solver"][name] = _config(solver, "torch_powalm.solvers", partial=False)
    for name in zoo.__all__:
        if name not in _NOT_CONSTRAINTS:
            found["constraint"][name] = _config(getattr(zoo, name), "torch_powalm.zoo")
    found["solver"] = {n: c for n, c in found["solver"].items() if c is not None}
    return found


def _config(target: Callable[..., Any], module: str, partial: bool = True) -> Any:
    """Return a dataclass of the arguments with plain defaults and of required keywords.

    With `partial`, what is left out is given to what `instantiate` returns: base and constraints,
    or registry and name.
    """
    fields: list[tuple[str, Any, Any]] = [("_target_", str, f"{module}.{target.__name__}")]
    if partial:
        fields.append(("_partial_", bool, True))
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            known = {given[0] for given in fields}
            fields += [(n, Any, v) for n, v in _RATE_SETTINGS.items() if n not in known]
        elif parameter.default is parameter.empty:
            if parameter.kind is parameter.KEYWORD_ONLY:
                fields.append((name, Any, "???"))  # Hydra's sign for a value that must be given
        elif isinstance(parameter.default, _PLAIN):
            fields.append((name, Any, parameter.default))
        elif parameter.default == ():
            fields.append((name, Any, field(default_factory=list)))
    return make_dataclass(target.__name__, fields)


def main() -> None:
    """Copy the template."""
    parser = argparse.ArgumentParser(description="Copy a Hydra project with constraints.")
    parser.add_argument("folder", type=Path, help="a new folder")
    folder = parser.parse_args().folder
    if folder.exists():
        raise SystemExit(f"folder must not exist yet, got {folder}")
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    print(f"template copied to {folder}; run: cd {folder} && python train.py")


if __name__ == "__main__":
    main()
