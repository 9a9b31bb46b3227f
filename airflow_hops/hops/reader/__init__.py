"""Examples as ``tf.data``: Parquet or TFRecord files of any store, shared by ranks, each row once an epoch."""

from airflow_hops.hops.reader.files import split_names
from airflow_hops.hops.reader.split import SplitReader, open_split, row_count

__all__ = ["SplitReader", "open_split", "row_count", "split_names"]
