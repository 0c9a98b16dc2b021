"""Certificates need scipy."""

import importlib.util

if importlib.util.find_spec("scipy") is None:
    collect_ignore_glob = ["*"]
