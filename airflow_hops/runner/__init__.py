"""Airflow's side of a step: starts, follows, caches and ends it."""
