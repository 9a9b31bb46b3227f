"""Assesses a back-test's candidate in each period after its training."""

from airflow_hops.ml.stages.backtest.stage import run

__all__ = ["run"]
