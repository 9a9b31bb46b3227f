"""Prepares labelled examples from raw tables with the user's Spark code."""

from airflow_hops.ml.stages.prepare.stage import run

__all__ = ["run"]
