"""The command line of a script of the experiments, in this process."""

import sys

from experiments import entry


def call(script, *overrides):
    old = sys.argv
    sys.argv = ["script", *overrides]
    try:
        entry.run(script.main)
    finally:
        sys.argv = old
