"""Spark's Python daemon with the libraries that tasks need: its workers are forks, and do not import them again.

For ``spark.python.daemon.module``, where driver and executors are on one machine and this package is on their path.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    import pandas  # noqa: F401  # PyArrow does, for its first array of NumPy's
    import pyarrow.parquet  # noqa: F401
    from pyspark.daemon import manager

    from airflow_hops.core.processes.keras_import import without_keras

    with without_keras():
        import tensorflow  # noqa: F401
    import tfx_bsl.coders.example_coder  # noqa: F401

    gc.freeze()  # a full collection in a worker, which Spark does after each task, would copy all that it shares
    manager()
