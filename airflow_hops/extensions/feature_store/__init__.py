"""Feast's feature store: definitions, materialization, training sets, and look-ups of a served model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.feature_store.operators import (
        ApplyFeaturesOperator,
        MaterializeOperator,
        PushFeaturesOperator,
        TrainingDatasetOperator,
    )

__all__ = [
    "ApplyFeaturesOperator",
    "MaterializeOperator",
    "PushFeaturesOperator",
    "TrainingDatasetOperator",
]

__getattr__ = lazy_names(
    __name__,
    {
        ".operators": "ApplyFeaturesOperator MaterializeOperator PushFeaturesOperator TrainingDatasetOperator",
    },
)
