"""A progress bar for Hydra sweeps that works with every launcher."""

import os
import threading
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.atomic_files import lock, remove_left_over
from experiments.counting_bar import CountingBar

_COUNTER = ".jobs-"  # and the number of the process that started the sweep
_PERIOD = 0.5  # seconds between two looks at the count


class SweepBar(Callback):
    """Shows how many jobs of a sweep have ended.

    Jobs may run in other processes: each appends a byte to a file in the sweep's folder, and the
    process that started the sweep watches the size of the file. Sweeps that run into one folder at
    the same time have separate files.
    """

    def __init__(self) -> None:
        self.starter = os.getpid()
        self.bar = CountingBar("sweep", 0, "jobs")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Start to watch the count."""
        self.counter = self._counter(config)
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        remove_left_over(self.counter.parent, f"{_COUNTER}*")  # by a killed sweep
        self.counter.write_bytes(b"")
        self.held = self.counter.open("rb")
        lock(self.held.fileno())
        self.bar.total = _jobs(config)
        self.bar.show(0)
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Count a job, and show the count at once if the job ran in this process."""
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
        self.held.close()
        self.counter.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"starter": self.starter, "bar": self.bar}

    def _counter(self, config: DictConfig) -> Path:
        return Path(config.hydra.sweep.dir) / f"{_COUNTER}{self.starter}"

    def _watch(self) -> None:
        while not self.ended.wait(_PERIOD):
            self._show()

    def _show(self) -> None:
        try:
            count = min(self.counter.stat().st_size, self.bar.total)
        except FileNotFoundError:  # after a failed sweep, a new one may have removed the file
            return
        if count > self.bar.count:
            self.bar.show(count)


def _jobs(config: DictConfig) -> int:
    """Number of combinations that the config and the command line sweep over."""
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
