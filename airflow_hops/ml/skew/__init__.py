"""Training-serving skew and drift: the features that have changed, by how much, and the likely cause."""

from airflow_hops.ml.distances.detect import detect_skew
from airflow_hops.ml.distances.report import FeatureSkew, SkewReport
from airflow_hops.ml.skew.attribution import Attribution, Effect, attribute_drift

__all__ = [
    "Attribution",
    "Effect",
    "FeatureSkew",
    "SkewReport",
    "attribute_drift",
    "detect_skew",
]
