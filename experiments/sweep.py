"""A bar for sweeps, whatever launches their jobs."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

_WIDTH = 20
_PERIOD = 0.5  # seconds between two looks at the count


class SweepBar(Callback):
    """How many jobs of a sweep have ended.

    Jobs may run in other processes: each adds a byte to a file in the sweep's folder, and the
    process that started the sweep watches its size. Sweeps that run at the same time into one
    folder have a file each.
    """

    def __init__(self) -> None:
        self.starter = os.getpid()
        self.total = self.shown = 0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Start to watch."""
        self.counter = self._counter(config)
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        self.counter.write_bytes(b"")
        self.total = _jobs(config)
        self._draw(0)
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Count a job, and show it at once where it ran in this process."""
        if config.hydra.mode is RunMode.MULTIRUN:
            with self._counter(config).open("ab") as file:
                file.write(b".")
            if os.getpid() == self.starter:
                self._show()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Show the last count."""
        self.ended.set()
        self.watcher.join()
        self._show()
        self.counter.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"starter": self.starter, "total": self.total, "shown": 0}

    def _counter(self, config: DictConfig) -> Path:
        return Path(config.hydra.sweep.dir) / f".jobs-{self.starter}"

    def _watch(self) -> None:
        while not self.ended.wait(_PERIOD):
            self._show()

    def _show(self) -> None:
        count = min(self.counter.stat().st_size, self.total)
        if count > self.shown:
            self._draw(count)

    def _draw(self, count: int) -> None:
        self.shown = count
        done = _WIDTH * count // max(self.total, 1)
        bar = "#" * done + "." * (_WIDTH - done)
        print(f"sweep [{bar}] {count} of {self.total} jobs", file=sys.stderr, flush=True)


def _jobs(config: DictConfig) -> int:
    """Combinations of the values that the config and the command line sweep over."""
    params = config.hydra.sweeper.params or {}
    swept = {str(key): f"{key}={value}" for key, value in params.items()}
    parser = OverridesParser.create()
    for override in config.hydra.overrides.task:
        swept[parser.parse_override(override).get_key_element()] = override
    total = 1
    for override in map(parser.parse_override, swept.values()):
        if override.is_sweep_override():
            total *= sum(1 for _ in override.sweep_iterator())
    return total
