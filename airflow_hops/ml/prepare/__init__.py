"""Prepares labelled examples from raw tables with the user's Spark code."""

from airflow_hops.ml.prepare.stage import run

__all__ = ["run"]
