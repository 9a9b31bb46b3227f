"""Executes a notebook as a step."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path

import nbformat

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import InvalidArgument
from airflow_hops.core.processes.programs import with_package
from airflow_hops.core.redaction import masked
from airflow_hops.extensions.notebooks.core import NOTEBOOK_PAGE, NotebookProperties
from airflow_hops.extensions.notebooks.ml.session import spec_variables
from airflow_hops.ml.step.context import StepContext, find_file
from airflow_hops.ml.step.source import code_cells, inject_parameters, mask_secrets, read_notebook

log = logging.getLogger(__name__)

NOTEBOOK_FILE = "notebook.ipynb"
_ERROR_CHARACTERS = 8000
_STYLE = Path(__file__).with_name("page.css")


def run(
    context: StepContext,
    *,
    notebook: str,
    params: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    cell_timeout_s: float | None = None,
) -> Artifact:
    """Executes a notebook; publishes it with its outputs, and as HTML, even if a cell fails.

    Parameters are those of ``NotebookOperator``. The notebook gets the step's inputs from
    :mod:`airflow_hops.extensions.notebooks.hops.pipeline`.

    Raises:
        BadInput: the notebook is missing or unusable, has no such parameter, or a cell raised ``BadInput``.
        HopsError: a cell failed or took too long, or the kernel died.
    """
    from airflow_hops.extensions.notebooks.ml.execute import execute  # Jupyter takes seconds to import

    if cell_timeout_s is not None and cell_timeout_s < 1:
        raise InvalidArgument("cell_timeout_s", cell_timeout_s, ", expected seconds, 1 or more, or None")
    path = find_file(notebook, "notebook")
    content = read_notebook(path)
    inject_parameters(content, params or {}, path)
    variables = with_package({**os.environ, **(env or {})}, [*context.spec.code_paths, str(path.parent)])
    variables |= spec_variables(context.spec, context.scratch / "spec.json")
    done = execute(content, path, env=variables, progress=context.progress, cell_timeout_s=cell_timeout_s)
    properties = NotebookProperties(
        notebook=notebook,
        parameters=masked(params or {}),
        failed_cell=done.failed_cell,
        error=None if done.failure is None else str(done.failure)[:_ERROR_CHARACTERS],
        cut_cells=tuple(done.cut_cells),
        result=done.result,
    )
    mask_secrets(content, params or {})
    with context.output() as writer:
        nbformat.write(content, writer.path / NOTEBOOK_FILE)
        try:
            page = to_html(content, notebook, done.failed_cell)
        except Exception as error:  # a displayed value may be invalid HTML, or an invalid picture
            log.warning("%s: it cannot be rendered as a page", notebook, exc_info=True)
            reason = escape(
                f"No page can be made of this notebook: {type(error).__name__}: {error}"[:_ERROR_CHARACTERS]
            )
            head = f'<!DOCTYPE html>\n<meta charset="utf-8"><title>{escape(notebook)}</title>'
            page = f"{head}<p>{reason}</p>\n"
        (writer.path / NOTEBOOK_PAGE).write_text(page, encoding="utf-8")
        artifact = writer.commit(
            metrics={"cells": done.cells, "seconds": done.seconds}, properties=properties.to_dict()
        )
    if done.failure is not None:
        raise done.failure
    log.info("%s: %d cells in %.1f s", notebook, done.cells, done.seconds)
    return artifact


def to_html(notebook: nbformat.NotebookNode, title: str, failed_cell: int | None = None) -> str:
    """Renders a notebook as a page with a link to the failed cell, if any.

    Its scripts are untrusted: its server must prevent them from acting as the reader.
    """
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    # nbconvert's only template without external libraries (require.js, MathJax, Mermaid).
    exporter = HTMLExporter(template_name="basic")
    body, _ = exporter.from_notebook_node(notebook)
    style = HtmlFormatter(style="default").get_style_defs(".highlight") + _STYLE.read_text()
    failed = next((cell for number, cell in code_cells(notebook) if number == failed_cell), None)
    top = "" if failed is None else f'<a class="failed" href="#cell-id={failed.id}">Cell {failed_cell} failed</a>'
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{top}<main>{body}</main></body></html>\n'
