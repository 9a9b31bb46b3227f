"""Training-serving skew and drift: which features have moved, how far, and what it looks like."""

from airflow_hops.runtime.skew.attribution import Attribution, Effect, attribute_drift
from airflow_hops.runtime.skew.detect import detect_skew
from airflow_hops.runtime.skew.report import FeatureSkew, SkewReport
from airflow_hops.runtime.skew.rows import FeatureRowSkew, RowMatches, RowSkewReport, detect_row_skew
from airflow_hops.runtime.skew.stage import REPORT_FILE, REPORT_PROTO, run

__all__ = [
    "REPORT_FILE",
    "REPORT_PROTO",
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
    "run",
]
