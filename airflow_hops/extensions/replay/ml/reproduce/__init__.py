"""Finds a run in MLflow and compares two models, for ``airflow hops reproduce``."""
