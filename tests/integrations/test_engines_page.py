"""The Python block of docs/engines.md runs as printed."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()


def test_the_block_runs_as_printed():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(block, "engines.md", "exec"), names)
    assert names["constraints"].violations()["missed"].max < 0.2
