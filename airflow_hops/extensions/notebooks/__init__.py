"""Notebooks: as tasks, in JupyterLab, and the pipeline in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.notebooks.hops import pipeline
    from airflow_hops.extensions.notebooks.operators import NotebookOperator

__all__ = ["NotebookOperator", "pipeline"]

__getattr__ = lazy_names(__name__, {".hops": "pipeline", ".operators": "NotebookOperator"})
