"""Modules of the tests run in processes of their own, and the outcomes of two ranks."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(module, *arguments, **environment):
    """Start `python -m module`, on one thread and from the root of the repository."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(jobs, timeout):
    """Wait until all jobs have ended well, and end those that have not."""
    try:
        printed = [job.communicate(timeout=timeout)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert all(job.returncode == 0 for job in jobs), "\n".join(printed)


def run_once(folder, run, timeout):
    """Call run() in the first of several test processes to come here; the others wait for it."""
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + timeout
        while not (folder / "done").exists():
            assert time.monotonic() < deadline, "the process that runs the ranks has not finished"
            time.sleep(0.2)
    else:
        try:
            run()
        finally:
            (folder / "done").touch()


def distance(a, b):
    """The largest difference of two tensors, or of two dictionaries of tensors."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return max(distance(a[key], b[key]) for key in a)
    largest = float((a.double() - b.double()).abs().max())
    assert not math.isnan(largest)  # max would pass over it
    return largest
