"""Sphinx's configuration: ``make docs``, warnings as errors."""

from __future__ import annotations

from airflow_hops import __version__

project = "airflow-hops"
author = "The airflow-hops authors"
copyright = author
version = release = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"airflow-hops {__version__}"
html_show_sphinx = False
