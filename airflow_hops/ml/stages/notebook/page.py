"""An executed notebook as one HTML file, which loads nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from nbconvert.exporters import TemplateExporter
from pygments.formatters import HtmlFormatter

from airflow_hops.ml.stages.notebook.source import code_cells

_STYLE = Path(__file__).with_name("page.css")


def to_html(notebook: nbformat.NotebookNode, title: str, failed_cell: int | None = None) -> str:
    """The page of a notebook.

    Its scripts are anybody's: whoever serves it keeps them from acting as the reader.

    Args:
        notebook: With its outputs.
        title: Of the page.
        failed_cell: The cell that ended it, to which the page has a link at its top.
    """
    # Of nbconvert's templates the one without libraries from elsewhere: require.js, MathJax, Mermaid.
    exporter: TemplateExporter = HTMLExporter(template_name="basic")
    body, _ = exporter.from_notebook_node(notebook)
    style = HtmlFormatter(style="default").get_style_defs(".highlight") + _STYLE.read_text()
    failed = next((cell for number, cell in code_cells(notebook) if number == failed_cell), None)
    top = "" if failed is None else f'<a class="failed" href="#cell-id={failed.id}">Cell {failed_cell} failed</a>'
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{top}<main>{body}</main></body></html>\n'
