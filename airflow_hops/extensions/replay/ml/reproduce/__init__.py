"""Compares two models, for ``airflow hops reproduce``."""
