"""Records of trainings in the store; MLflow: their runs, registered versions, and aliases of the deployed versions."""

from airflow_hops.ml.tracking.client import open_tracking
from airflow_hops.ml.tracking.entries import read_training
from airflow_hops.ml.tracking.registry import CHALLENGER, CHAMPION, ModelRegistry, log_evaluation
from airflow_hops.ml.tracking.training_run import TrackedTraining, record_version

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "ModelRegistry",
    "TrackedTraining",
    "log_evaluation",
    "open_tracking",
    "read_training",
    "record_version",
]
