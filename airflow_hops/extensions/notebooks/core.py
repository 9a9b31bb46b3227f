"""Names that both sides of notebooks use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.properties import Properties
from airflow_hops.core.processes.programs import module_command

NOTEBOOK_PAGE = "notebook.html"
"""File of a notebook artifact with its outputs."""


@dataclass(frozen=True)
class NotebookProperties(Properties):
    """Properties of a ``notebook``.

    Attributes:
        notebook: Path beside the DAG.
        parameters: Injected parameters.
        failed_cell: Number of the failed cell, as Jupyter shows it; None if none failed.
        error: Error of the task; None if it succeeded.
        cut_cells: Numbers of cells whose output was truncated.
        result: Value passed to ``pipeline.result``.
    """

    notebook: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    failed_cell: int | None = None
    error: str | None = None
    cut_cells: tuple[int, ...] = ()
    result: Any = None


def kernel_command(python: str | Path) -> list[str]:
    """Returns the command line of a notebook's kernel; Jupyter fills in the path of its connection file."""
    return module_command(python, "airflow_hops.extensions.notebooks.ml.kernel", "-f", "{connection_file}")
