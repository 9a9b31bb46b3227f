"""A model for each segment, such as a shop, a customer or a machine, in one artifact and one served model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.fleet.core.source import SegmentSource
    from airflow_hops.extensions.fleet.ml.learners import SegmentRows
    from airflow_hops.extensions.fleet.operators import FleetSkewOperator, SelectSegmentsOperator, TrainFleetOperator

__all__ = [
    "FleetSkewOperator",
    "SegmentRows",
    "SegmentSource",
    "SelectSegmentsOperator",
    "TrainFleetOperator",
]

__getattr__ = lazy_names(
    __name__,
    {
        ".core.source": "SegmentSource",
        ".ml.learners": "SegmentRows",
        ".operators": "FleetSkewOperator SelectSegmentsOperator TrainFleetOperator",
    },
)
