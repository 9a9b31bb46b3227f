"""Prepares images in Spark's executors: folders, Parquet or IDX files become TFRecords of one size and kind."""

from airflow_hops.ml.stages.images.stage import run

__all__ = ["run"]
