"""Spark's Python daemon with what runs TensorFlow's graphs: its workers are forks, and need not import it again.

For ``spark.python.daemon.module``, where driver and executors are on one machine and this package is on their path.
"""

from __future__ import annotations

from airflow_hops.core.processes.garbage import uncollected
from airflow_hops.core.processes.tensorflow_graphs import without_api
from airflow_hops.ml.spark.workers import leave_out_archives

if __name__ == "__main__":
    leave_out_archives()
    with uncollected():  # a worker collects garbage after every task
        import pandas  # noqa: F401  # PyArrow does, for its first array of NumPy's
        import pyarrow.parquet  # noqa: F401
        import tfx_bsl.coders.example_coder  # noqa: F401
        from pyspark.daemon import manager

        with without_api():  # in which workers of images and of predictions import the rest
            import tensorflow.python.client.session
            import tensorflow.python.lib.io.tf_record
            import tensorflow.python.saved_model.loader_impl  # noqa: F401
    manager()
