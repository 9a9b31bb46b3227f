"""Images: from folders, Parquet or IDX files to TFRecords of a size and kind, prepared in Spark's executors."""

from airflow_hops.ml.stages.images.stage import run

__all__ = ["run"]
