"""Compare the trajectories of two versions of torch_powalm bit by bit.

    python -m experiments.benchmarks.trajectories --against FOLDER

Runs trajectory_cases.py in fresh processes, with this version and with the one in FOLDER, a
checkout. Prints for every case whether all bits are equal, and exits with 1 if they are not. Solves
with the same points but another number of evaluations are equal.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parent.parent.parent
CASES = Path(__file__).with_name("trajectory_cases.py")
# Not `python FILE`: that would put this folder, and its profile.py, before the standard library.
COMMAND = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def run_version(folder: Path, output: Path) -> dict[str, list[Tensor]]:
    """Record the traces of the version in a folder, in fresh processes."""

    def start(part: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", **variables}
        command = [sys.executable, "-W", "ignore", "-c", COMMAND, str(CASES)]
        return subprocess.Popen([*command, str(output / part)], env=environment, cwd=folder)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [start(f"rank{r}", RANK=str(r), WORLD_SIZE="2", **group) for r in range(2)]
    for process in (*ranks, start("one")):
        if process.wait() != 0:
            raise SystemExit(f"the version in {folder} failed")
    traces: dict[str, list[Tensor]] = torch.load(output / "one")
    for r in range(2):
        traces.update({f"{k}, rank {r}": v for k, v in torch.load(output / f"rank{r}").items()})
    return traces


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether two traces have the same length, types and bytes."""
    return len(a) == len(b) and all(
        p.dtype == q.dtype and p.numpy().tobytes() == q.numpy().tobytes()
        for p, q in zip(a, b, strict=True)
    )


def verdict(here: list[Tensor], there: list[Tensor]) -> str:
    """Whether two traces are equal; the last entry of a solve is its number of evaluations."""
    if same_bits(here, there):
        return "equal"
    (*points, ours), (*others, theirs) = here, there
    if ours.dtype == torch.int64 and same_bits(points, others):
        return f"equal, with {ours} evaluations of f instead of {theirs}"
    return "DIFFER"


def main() -> None:
    """Record both versions, and print whether they are equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, help="checkout of another version")
    args = parser.parse_args()
    traces = []
    for folder in (ROOT, args.against.resolve()):
        with tempfile.TemporaryDirectory() as output:
            traces.append(run_version(folder, Path(output)))
    here, there = traces
    verdicts = {name: verdict(here[name], there[name]) for name in here}
    different = [name for name in here if verdicts[name] == "DIFFER"]
    for name in here:
        print(f"{name}: {len(here[name])} tensors, {verdicts[name]}")
    print(f"{len(here) - len(different)} of {len(here)} cases have the same bits")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
