"""The entry of the Hydra scripts: bad input ends in one line and exit code 2, without traceback."""

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
    """Let a single run end before Hydra reports it; in a sweep the other jobs go on."""

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
    """Raise where a word stands for a number, which Hydra takes from the command line as it is."""
    for key, value in cfg.items():
        if isinstance(value, DictConfig):
            check_numbers(value)
        elif key in NUMBERS and isinstance(value, str):
            raise TypeError(f"{key} must be a number, got {value!r}")


def run(main: Callable[[], None]) -> None:
    """Run a script; HYDRA_FULL_ERROR=1 in the environment brings the traceback back."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors on instead of printing tracebacks
    try:
        main()
    except BAD_INPUT as error:
        if FULL_ERROR:
            raise
        _end(error)
    except KeyboardInterrupt:
        print("interrupted: what was not finished is not kept", file=sys.stderr)
        sys.exit(130)


def _end(error: BaseException) -> NoReturn:
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)
