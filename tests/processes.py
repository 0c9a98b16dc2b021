"""Fresh processes for tests that need several or must be killed, and the outcomes of two ranks.

They are forked from a server that has imported torch and Lightning, which takes seconds, and has
run nothing.
"""

import math
import multiprocessing
import os
import runpy
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["lightning.pytorch", "torch_powalm.lightning"])


def start(module, *arguments, **environment):
    """Start what `python -m module` would run, with its arguments and environment."""
    job = FRESH.Process(target=_run, args=(module, arguments, environment))
    job.start()
    return job


def _run(module, arguments, environment):
    os.environ |= environment
    sys.argv = [module, *map(str, arguments)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def wait(jobs, timeout):
    """Wait until all jobs have ended well, and end those that have not."""
    deadline = time.monotonic() + timeout
    try:
        for job in jobs:
            job.join(max(0.0, deadline - time.monotonic()))
    finally:
        for job in jobs:
            job.kill()
            job.join()
    assert [job.exitcode for job in jobs] == [0] * len(jobs)


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
