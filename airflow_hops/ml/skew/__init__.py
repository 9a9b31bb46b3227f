"""Training-serving skew and drift: the features that have changed, by how much, and the likely cause."""

from airflow_hops.ml.distances.detect import detect_skew
from airflow_hops.ml.distances.report import FeatureSkew, SkewReport
from airflow_hops.ml.skew.attribution import Attribution, Effect, attribute_drift
from airflow_hops.ml.skew.rows import FeatureRowSkew, RowMatches, RowSkewReport, detect_row_skew

__all__ = [
    "Attribution",
    "Effect",
    "FeatureRowSkew",
    "FeatureSkew",
    "RowMatches",
    "RowSkewReport",
    "SkewReport",
    "attribute_drift",
    "detect_row_skew",
    "detect_skew",
]
