"""Row-level skew: served rows, value by value against the training rows of the same identifiers."""

from airflow_hops.extensions.row_skew.ml.compare import detect_row_skew
from airflow_hops.extensions.row_skew.ml.report import FeatureRowSkew, RowMatches, RowSkewReport

__all__ = ["FeatureRowSkew", "RowMatches", "RowSkewReport", "detect_row_skew"]
