"""Batch prediction: runs a model's signature on all rows of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.scoring.operators import ScoreOperator

__all__ = ["ScoreOperator"]

__getattr__ = lazy_names(__name__, {".operators": "ScoreOperator"})
