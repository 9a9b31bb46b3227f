"""Airflow's side of quotas."""
