"""Command line of the Hydra scripts: bad input gives one line and exit code 2, no traceback."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

BAD_INPUT = (ValueError, TypeError, OSError, HydraException, OmegaConfBaseException)
CONFIGS = str(Path(__file__).parent.parent / "configs")
FULL_ERROR = "HYDRA_FULL_ERROR" in os.environ
NUMBERS = (
    *("nu", "seed", "n", "m", "r", "s", "eps", "scale", "factor", "threads", "beta_1", "omega"),
    *("lam", "sigma_1", "max_outer", "max_inner", "max_gradients", "epochs", "batch_size", "lr"),
)


def one_line(job: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Report bad input of a single run ourselves; in a sweep, let the other jobs continue."""

    @wraps(job)
    def wrapped(cfg: DictConfig) -> None:
        try:
            check_numbers(cfg)
            job(cfg)
        except BAD_INPUT as error:
            if FULL_ERROR or HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            _end(error)

    return wrapped


def check_numbers(cfg: DictConfig) -> None:
    """Raise if a setting that must be a number is a word; Hydra itself accepts both."""
    for key, value in cfg.items():
        if isinstance(value, DictConfig):
            check_numbers(value)
        elif key in NUMBERS and isinstance(value, str):
            raise TypeError(f"{key} must be a number, got {value!r}")


def run(main: Callable[[], None]) -> None:
    """Run a script; set HYDRA_FULL_ERROR=1 in the environment to see tracebacks."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    try:
        main()
    except BAD_INPUT as error:
        if FULL_ERROR:
            raise
        _end(error)
    except KeyboardInterrupt:
        print("interrupted: unfinished runs are not kept", file=sys.stderr)
        sys.exit(130)


def _end(error: BaseException) -> NoReturn:
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)
