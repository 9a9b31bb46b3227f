"""Airflow's side of quotas and of the garbage collection."""
