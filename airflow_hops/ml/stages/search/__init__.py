"""Hyperparameter search: many trainings of one function, and the model of the best."""

from airflow_hops.ml.stages.search.stage import run

__all__ = ["run"]
