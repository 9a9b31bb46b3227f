"""pandas' readers and writers for files of the project; further arguments are those of pandas."""

from typing import Any

import pandas as pd

from airflow_hops.extensions.experiments.hops.hdfs import open_file


def read_csv(hdfs_filename: str, **kwds: object) -> object:
    """Reads a CSV file as a frame."""
    with open_file(hdfs_filename) as file:
        return pd.read_csv(file, **kwds)


def read_parquet(hdfs_filename: str, **kwds: object) -> object:
    """Reads a Parquet file as a frame."""
    with open_file(hdfs_filename) as file:
        return pd.read_parquet(file, **kwds)


def read_json(hdfs_filename: str, **kwds: object) -> Any:
    """Reads a JSON file as a frame."""
    with open_file(hdfs_filename) as file:
        return pd.read_json(file, **kwds)


def read_excel(hdfs_filename: str, **kwds: object) -> object:
    """Reads a sheet of an Excel file as a frame; needs the package ``openpyxl``."""
    with open_file(hdfs_filename) as file:
        return pd.read_excel(file, **kwds)


def write_csv(hdfs_filename: str, dataframe: pd.DataFrame, **kwds: object) -> None:
    """Writes a frame as a CSV file, which replaces an existing one."""
    with open_file(hdfs_filename, flags="wt") as file:
        dataframe.to_csv(file, **kwds)


def write_parquet(hdfs_filename: str, dataframe: pd.DataFrame, **kwds: object) -> None:
    """Writes a frame as a Parquet file, which replaces an existing one."""
    with open_file(hdfs_filename, flags="w") as file:
        dataframe.to_parquet(file, **kwds)


def write_json(hdfs_filename: str, dataframe: pd.DataFrame, **kwds: object) -> None:
    """Writes a frame as a JSON file, which replaces an existing one."""
    with open_file(hdfs_filename, flags="wt") as file:
        dataframe.to_json(file, **kwds)
