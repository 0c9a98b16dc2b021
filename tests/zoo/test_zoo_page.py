"""The page about the zoo: its block runs as printed, its table has every entry."""

import re
from pathlib import Path

from torch_powalm import zoo

PAGE = (Path(__file__).parents[2] / "docs" / "zoo.md").read_text()


def test_the_block_runs_as_printed_and_ends_feasible(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(block, "zoo.md", "exec"), names)
    assert "parity" in capsys.readouterr().out  # on all data, the block asserts it
    assert names["smooth"].certified().item() <= 0.05


def test_the_table_has_every_entry():
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == set(zoo.__all__) - {"Entry", "HardConcrete", "frozen_copy"}
