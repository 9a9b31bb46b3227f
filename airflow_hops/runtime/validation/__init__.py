"""Validation of examples: the statistics of each split against the frozen schema, and single rows against it."""

from airflow_hops.runtime.validation.quarantine import split_anomalous
from airflow_hops.runtime.validation.stage import ANOMALIES_FILE, run
from airflow_hops.runtime.validation.validate import Anomaly, list_anomalies, validate_statistics

__all__ = ["ANOMALIES_FILE", "Anomaly", "list_anomalies", "run", "split_anomalous", "validate_statistics"]
