"""Runs: DAG runs by stage, task instances, training runs."""
