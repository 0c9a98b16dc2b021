"""Settings of the Sphinx site; `make docs` builds it."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # experiments/ for the gallery; docs/

import accessible_pages  # noqa: E402
import docstring_markup  # noqa: E402
import repository_pages  # noqa: E402

import torch_powalm  # noqa: E402

project = "torch_powalm"
author = "The torch_powalm developers"
copyright = f"2026, {author}"
version = release = torch_powalm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "**.ipynb", "auto_gallery/*.json"]
nitpicky = False
smartquotes_action = "D"  # dashes only; code keeps its quotes

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list, not as members

html_theme = "furo"
html_title = f"torch_powalm {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-light"  # contrast of at least 4.5 in both
pygments_dark_style = "a11y-dark"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_" if os.environ.get("POWALM_GALLERY", "1") == "1" else r"none",
    "abort_on_example_error": True,
    "run_stale_examples": True,  # they may fail because the package changed
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 0,
    "write_computation_times": False,  # that page would load scripts from the network
    "junit": "../gallery.xml",  # seconds of every script
    "within_subsection_order": "gallery_order.GalleryOrder",  # a class would prevent caching
    "image_scrapers": ("picture_texts.scrape",),
    "thumbnail_size": (560, 300),
    "plot_gallery": "True",
}


def setup(app: object) -> None:
    """Let the docstrings be plain text, and add the pages outside of docs/."""
    app.connect("builder-inited", repository_pages.write, priority=100)
    app.connect("source-read", repository_pages.relink)
    app.connect("autodoc-process-docstring", docstring_markup.mark, priority=100)  # before napoleon
    app.connect("build-finished", accessible_pages.finish)
