"""Training: runs a user's function on every rank of a gang, and exports its model."""

from airflow_hops.ml.training.stage.step import run
from airflow_hops.ml.training.stage.training import Training, train_model

__all__ = ["Training", "run", "train_model"]
