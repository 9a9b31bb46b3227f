"""Models that the model server loads from stores: object stores, HDFS, and other URLs that fsspec opens."""
