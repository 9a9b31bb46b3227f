"""HDFS, as a file system of fsspec."""
