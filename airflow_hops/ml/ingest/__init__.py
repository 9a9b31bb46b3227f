"""Ingests raw tables of any source in a window of time into one snapshot of Parquet files."""

from airflow_hops.ml.ingest.reader import ingest_table
from airflow_hops.ml.ingest.stage import run
from airflow_hops.ml.ingest.window import Window

__all__ = ["Window", "ingest_table", "run"]
