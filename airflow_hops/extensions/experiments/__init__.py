"""Experiments: hyperparameter search, and functions of notebooks as hops-util-py runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.experiments.core.search import Choice, IntUniform, LogUniform, Uniform
    from airflow_hops.extensions.experiments.operators import SearchOperator

__all__ = [
    "Choice",
    "IntUniform",
    "LogUniform",
    "SearchOperator",
    "Uniform",
]

__getattr__ = lazy_names(
    __name__,
    {
        ".core.search": "Choice IntUniform LogUniform Uniform",
        ".operators": "SearchOperator",
    },
)
