"""The scripts of the gallery run in fast mode, end feasible and draw a picture."""

import pytest

pytest.importorskip("matplotlib")
import re
import runpy
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("plot_*.py"))


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_ends_feasible_and_draws_a_picture(script, monkeypatch):
    monkeypatch.setenv("POWALM_GALLERY_FAST", "1")
    plt.close("all")
    runpy.run_path(str(script), run_name="__main__")  # it asserts that it is feasible
    assert plt.get_fignums()
    plt.close("all")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_asserts_at_its_end_and_says_so(script):
    text = script.read_text()
    assert "assert " in text[-300:]
    assert re.search(r"# Feasible|# Every point converged", text)
    assert "POWALM_GALLERY_FAST" in text


def test_there_are_at_least_twelve_scripts():
    assert len(SCRIPTS) >= 12
