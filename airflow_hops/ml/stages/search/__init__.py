"""Hyperparameter search: trains one function many times, and publishes the best model."""

from airflow_hops.ml.stages.search.stage import run

__all__ = ["run"]
