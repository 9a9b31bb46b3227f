"""Spark context of a step, which starts quickly on this machine, and Spark's errors."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.programs import with_package
from airflow_hops.ml.step.context import StepContext


def let_workers_import() -> None:
    """Sets the Python and package of Python workers in a session that this process starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.update(with_package(os.environ))


def on_this_machine() -> bool:
    """Returns whether this process will start spark-submit itself, for Spark on this machine."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return any(a == "--master" and b.startswith("local") for a, b in pairwise(arguments))


def spark_conf() -> Any:
    """Returns the configuration of spark-submit, with the daemon that starts Python workers with TensorFlow.

    Imports PySpark in the main thread, as simultaneous imports in two threads can deadlock.
    """
    from pyspark import SparkConf, SparkContext

    logging.getLogger("py4j").setLevel(logging.WARNING)
    SparkContext._ensure_initialized()  # SparkConf knows spark-submit's properties only afterwards
    conf = SparkConf()
    if conf.get("spark.master", "").startswith("local"):
        # On one machine, all Python workers can be forks of a process that has imported TensorFlow.
        conf.set("spark.python.daemon.module", "airflow_hops.ml.spark.daemon")
    return conf


def start_spark_context(conf: Any) -> Any:
    """Returns the Spark context of this process, with its Python workers started."""
    from pyspark import SparkContext

    context = SparkContext.getOrCreate(conf)
    # An empty job, which starts the Python workers while the driver does other work.
    workers = context.defaultParallelism
    context.parallelize(range(workers), workers).map(abs).count()
    return context


def start_spark_context_of(context: StepContext) -> Any:
    """Starts the Spark context of a step."""
    with context.starting():
        return start_spark_context(spark_conf())


@contextmanager
def as_spark_failure() -> Iterator[None]:
    """Turns any error into a ``HopsError`` with Spark's message."""
    try:
        yield
    except Exception as error:  # errors of Spark (Py4J, PySpark) have no common base class
        raise HopsError(f"Spark failed: {_last_words(error)}") from error


def _last_words(error: Exception) -> str:
    """Returns the messages of a Spark error, without stack frames and their code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return " | ".join(line for line in lines[:6] if not line.startswith("..."))[:2000] or type(error).__name__
