"""Hooks: the Airflow side's way to the runtime environment."""
