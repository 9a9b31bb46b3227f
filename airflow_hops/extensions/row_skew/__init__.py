"""Row-level skew: served rows, value by value against the training rows of the same identifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.row_skew.ml import RowSkewReport, detect_row_skew

__all__ = ["RowSkewReport", "detect_row_skew"]

__getattr__ = lazy_names(__name__, {".ml": "RowSkewReport detect_row_skew"})
