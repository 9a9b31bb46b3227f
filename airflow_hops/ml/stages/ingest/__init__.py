"""Ingests raw tables of any source in a window of time into one snapshot of Parquet files."""

from airflow_hops.ml.stages.ingest.stage import ingest_table, run
from airflow_hops.ml.stages.ingest.window import Window

__all__ = ["Window", "ingest_table", "run"]
