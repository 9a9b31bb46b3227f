"""Imports a model that was trained elsewhere."""

from airflow_hops.extensions.frameworks.ml.import_model.checks import check_model
from airflow_hops.extensions.frameworks.ml.import_model.stage import fetch_source, find_model, run

__all__ = ["check_model", "fetch_source", "find_model", "run"]
