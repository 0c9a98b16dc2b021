"""Times of several functions, measured in rounds of rotating order in one process."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from experiments.counting_bar import track

Step = Callable[[], None]


def interleave(
    methods: Mapping[str, Step],
    rounds: int,
    steps: int,
    *,
    label: str,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
    around: Callable[[str], AbstractContextManager[object]] = lambda name: nullcontext(),
) -> dict[str, list[float]]:
    """Seconds per call of every function, round by round.

    Args:
        methods: the functions by name.
        rounds: number of rounds; in each, every function is called `steps` times.
        steps: calls in a round.
        label: of the progress bar.
        warm_up: calls of every function before the first round.
        clock: what is read before and after.
        around: context of a function's calls, by name; it is not timed.
    """
    names = list(methods)
    for name in names:
        with around(name):
            for _ in range(warm_up):
                methods[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for k in track(range(rounds), label):
        shift = k % len(names)
        for name in names[shift:] + names[:shift]:
            step = methods[name]
            with around(name):
                start = clock()
                for _ in range(steps):
                    step()
                times[name].append((clock() - start) / steps)
    return times


def ratios(times: Mapping[str, list[float]], name: str, reference: str) -> list[float]:
    """Times of a function over those of another one in the same rounds."""
    return [a / b for a, b in zip(times[name], times[reference], strict=True)]
