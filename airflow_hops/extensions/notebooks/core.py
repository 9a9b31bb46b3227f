"""The kernel of notebooks, which both sides start."""

from __future__ import annotations

from pathlib import Path

from airflow_hops.core.processes.programs import module_command


def kernel_command(python: str | Path) -> list[str]:
    """Returns the command line of a notebook's kernel; Jupyter fills in the path of its connection file."""
    return module_command(python, "airflow_hops.extensions.notebooks.ml.kernel", "-f", "{connection_file}")
