"""The Python blocks of README and docs run as printed, one after the other."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TRAINING = (ROOT / "docs" / "training.md").read_text()


def test_every_block_runs_as_printed(tmp_path, capsys):
    first, solve = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    blocks = [first, *re.findall(r"```python\n(.*?)```", TRAINING, re.DOTALL), solve]
    assert len(blocks) == README.count("```python") + TRAINING.count("```python") == 4
    names = {"path": tmp_path / "state.pt"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    records = re.findall(r"update (\d+): \|A\| (\S+), beta", printed)
    assert [int(k) for k, _ in records] == list(range(1, 21))
    assert float(records[-1][1]) < 0.3 * float(records[0][1])
    assert "status            converged" in printed
    assert names["problem"].residuals(names["solution"].x, names["solution"].y).primal <= 1e-4


def test_the_readme_names_both_commands_and_stays_short():
    assert "make demo" in README
    assert "make test" in README
    assert len(README.splitlines()) <= 200
