"""The scripts of the gallery run in fast mode, end feasible and draw a picture."""

import pytest

pytest.importorskip("matplotlib")
import importlib
import re
import runpy
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("plot_*.py"))


@pytest.fixture
def docs(monkeypatch):
    """The modules of the site's configuration."""
    monkeypatch.setattr(sys, "path", [str(GALLERY.parent), *sys.path])
    return importlib.import_module


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


def test_every_script_has_its_place_and_the_text_of_its_picture(docs):
    names = {script.stem.removeprefix("plot_") for script in SCRIPTS}
    assert set(docs("gallery_order").NAMES) == names
    texts = docs("picture_texts").TEXTS
    assert set(texts) == names
    assert all(len(text) > 80 for text in texts.values())


def test_pages_can_be_used_without_a_mouse(docs):
    finish = docs("accessible_pages").finished_page
    page = (
        '<aside class="sidebar-drawer"><p class="caption" role="heading">'
        '<span class="caption-text">A</span></p></aside>'
        '<div class="table-wrapper docutils"></div><pre>x</pre>'
    )
    finished = finish(page)
    assert finished.count('tabindex="0"') == 2
    assert 'aria-level="2"' in finished
    assert '<aside aria-label="pages" class="sidebar-drawer">' in finished
    assert finish(finished) == finished


def test_dead_links_and_silent_pictures_are_found(docs, tmp_path):
    problems = docs("check_links").problems
    good = '<a href="b.html#there">b</a><img src="p.png" alt="">'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="https://elsewhere">no</a>')
    (tmp_path / "p.png").touch()
    assert problems(tmp_path) == []
    (tmp_path / "a.html").write_text(good + '<a href="b.html#gone"></a><a href="c.html"></a><img>')
    found = [message.split(": ", 1)[1] for message in problems(tmp_path)]
    assert found == ["no alternative text: ", "no such anchor: b.html#gone", "no such file: c.html"]
