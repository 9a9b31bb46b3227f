"""How a step gets its Spark context, where one on this machine starts quickly, and how it tells a failure of Spark."""

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
    """Gives the Python workers of a session that this process starts by itself its own Python and package."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.update(with_package(os.environ))


def on_this_machine() -> bool:
    """Whether this process will start spark-submit by itself, for Spark on this machine."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return any(a == "--master" and b.startswith("local") for a, b in pairwise(arguments))


def spark_conf() -> Any:
    """Returns the configuration of spark-submit, with the daemon that starts Python workers with TensorFlow.

    It imports PySpark, in the main thread: two threads that import at once can wait for each other for ever.
    """
    from pyspark import SparkConf, SparkContext

    logging.getLogger("py4j").setLevel(logging.WARNING)
    SparkContext._ensure_initialized()  # SparkConf knows spark-submit's properties only from then on
    conf = SparkConf()
    if conf.get("spark.master", "").startswith("local"):
        # On this machine all Python workers can be forks of one process that has TensorFlow.
        conf.set("spark.python.daemon.module", "airflow_hops.ml.spark.daemon")
    return conf


def start_spark_context(conf: Any) -> Any:
    """The Spark context of this process, its Python workers started."""
    from pyspark import SparkContext

    context = SparkContext.getOrCreate(conf)
    # A job of nothing: the Python workers start while the driver still does something else.
    workers = context.defaultParallelism
    context.parallelize(range(workers), workers).map(abs).count()
    return context


def start_spark_context_of(context: StepContext) -> Any:
    """Starts the Spark context of a step."""
    with context.starting():
        return start_spark_context(spark_conf())


@contextmanager
def as_spark_failure() -> Iterator[None]:
    """Turns whatever is raised within into an error that says what Spark said.

    Raises:
        HopsError: something was raised.
    """
    try:
        yield
    except Exception as error:  # Spark's errors have no base class of their own: Py4J's, PySpark's
        raise HopsError(f"Spark failed: {_last_words(error)}") from error


def _last_words(error: Exception) -> str:
    """The part of a Spark error that says something: messages, of which stack frames and their code are set in."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return " | ".join(line for line in lines[:6] if not line.startswith("..."))[:2000] or type(error).__name__
