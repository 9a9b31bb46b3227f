"""Spark's Python daemon with the libraries that tasks need; its workers are forks and do not import them again.

Set as ``spark.python.daemon.module`` if driver and executors are on one machine with this package on their path.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    import pandas  # noqa: F401  # PyArrow imports it for its first NumPy array
    import pyarrow.parquet  # noqa: F401
    from pyspark.daemon import manager

    from airflow_hops.core.processes.keras_import import without_keras

    with without_keras():
        import tensorflow  # noqa: F401
    import tfx_bsl.coders.example_coder  # noqa: F401

    gc.freeze()  # a full collection, which Spark runs in workers after each task, would copy all shared memory pages
    manager()
