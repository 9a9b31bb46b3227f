"""Operator that scores rows, and the DAG that scores them in windows."""

from airflow_hops.extensions.scoring.operators.score import ScoreOperator

__all__ = ["ScoreOperator"]
