"""The README's Python blocks run as printed, one after the other."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_every_block_runs_as_printed(tmp_path, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == README.count("```python") >= 3
    names = {"path": tmp_path / "state.pt"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    records = re.findall(r"update (\d+): \|A\| (\S+), beta", printed)
    assert [int(k) for k, _ in records] == list(range(1, 21))
    assert float(records[-1][1]) < 0.3 * float(records[0][1])


def test_the_readme_names_both_commands_and_stays_short():
    assert "make demo" in README
    assert "make test" in README
    assert len(README.splitlines()) <= 200
