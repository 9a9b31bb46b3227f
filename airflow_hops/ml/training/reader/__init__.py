"""Examples as ``tf.data``: Parquet or TFRecord files in any store, divided among ranks, each row once per epoch."""

from airflow_hops.ml.training.reader.files import split_names
from airflow_hops.ml.training.reader.split import SplitReader, open_split, row_count

__all__ = ["SplitReader", "open_split", "row_count", "split_names"]
