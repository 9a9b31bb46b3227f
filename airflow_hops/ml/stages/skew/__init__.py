"""Compares served rows with the champion's training data, or one span of data with another."""

from airflow_hops.ml.stages.skew.stage import run

__all__ = ["run"]
