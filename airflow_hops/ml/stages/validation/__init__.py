"""Validation of examples: the statistics of each split against the frozen schema, and single rows against it."""

from airflow_hops.ml.stages.validation.stage import ANOMALIES_FILE, run
from airflow_hops.ml.stages.validation.validate import Anomaly, list_anomalies, validate_statistics

__all__ = ["ANOMALIES_FILE", "Anomaly", "list_anomalies", "run", "validate_statistics"]
