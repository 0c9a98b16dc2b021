"""The Python blocks of docs/certificates.md run as printed, one after the other."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "certificates.md"


def test_the_certificate_blocks_run_as_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert names["Certificate"].load(tmp_path / "certificate.json") == names["certificate"]
    assert names["certificate"].holds
    assert "all constraints hold, at 0.95 simultaneous confidence" in capsys.readouterr().out
