"""Validates examples: the statistics of each split, and single rows, against the frozen schema."""

from airflow_hops.ml.validation.stage import ANOMALIES_FILE, run
from airflow_hops.ml.validation.validate import Anomaly, list_anomalies, validate_statistics

__all__ = ["ANOMALIES_FILE", "Anomaly", "list_anomalies", "run", "validate_statistics"]
