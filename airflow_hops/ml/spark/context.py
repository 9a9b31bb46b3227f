"""Spark context of a step, and Spark's errors."""

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


def is_local(master: str) -> bool:
    """Returns whether a master is a thread pool of the driver: ``local``, ``local[2]``, ``local[*]``."""
    return master == "local" or master.startswith("local[")


def local_master() -> str | None:
    """Returns the master of this step's Spark connection if it is this machine, or else None."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    masters = [b for a, b in pairwise(arguments) if a == "--master"]
    return masters[-1] if masters and is_local(masters[-1]) else None


def start_spark_context(context: StepContext) -> Any:
    """Starts the Spark context of a step, which counts as its start-up."""
    with context.starting():
        from pyspark import SparkContext

        logging.getLogger("py4j").setLevel(logging.WARNING)
        return SparkContext.getOrCreate()


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
