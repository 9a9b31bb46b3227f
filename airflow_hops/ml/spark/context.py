"""Spark context of a step, and Spark's errors."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import shlex
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError, ServerUnreachable
from airflow_hops.core.processes.programs import with_package
from airflow_hops.core.steps.protocol import is_local_master
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.step.context import StepContext

_SAME_ENVIRONMENT = (
    "give the cluster's hosts the same runtime environment, and name its Python in spark.pyspark.python, or name an "
    "archive of it in the field 'runtime_archive' of the Spark connection"
)
LIBRARIES = ("pyarrow", "numpy", "pandas", "pyspark", "tensorflow", "tensorflow-data-validation")
"""Distributions of which a step and its executors must have the same versions."""
_NO_PYTHON = re.compile("PYTHON_VERSION_MISMATCH|Cannot run program")
"""Errors of Spark if an executor's Python has another minor version, or does not start."""

_CONDITION = re.compile(r"\[([A-Z_]+)(?:\.[A-Z_]+)*\] (.+)")
"""Spark's error condition, and its message."""


def let_workers_import() -> None:
    """Sets the Python and package of Python workers in a session that this process starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.update(with_package(os.environ))


def local_master(default: str | None = None) -> str | None:
    """Returns the master of this step's Spark connection if it is this machine, or else None.

    Without a connection, that is ``default``.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started this process
        return None
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    masters = [b for a, b in pairwise(arguments) if a == "--master"]
    master = masters[-1] if masters else default
    return master if master and is_local_master(master) else None


def start_spark_context(context: StepContext) -> Any:
    """Starts the Spark context of a step, which counts as its start-up, and checks the executors of a cluster.

    Raises:
        BadInput: executors have other versions of libraries, or cannot access the store.
        HopsError: the master does not answer.
    """
    with context.starting():
        from pyspark import SparkContext

        logging.getLogger("py4j").setLevel(logging.WARNING)
        with as_spark_failure():
            spark = SparkContext.getOrCreate()
        if not is_local_master(spark.master):
            check_executors(spark, context.store)
        return spark


def examine(context: StepContext) -> str:
    """Starts and ends an application on a cluster, whose master it returns; the step of ``airflow hops doctor``.

    Raises:
        BadInput: as :func:`start_spark_context`.
        HopsError: the master does not answer, or no executor runs.
    """
    return str(start_spark_context(context).master)


def check_executors(spark: Any, store: ArtifactStore) -> None:
    """Makes executors compare their libraries with this process's, and check their access to the store.

    Raises:
        BadInput: a version differs, or an executor does not see the store.
        HopsError: the master does not answer, or no executor runs.
    """
    versions = _versions()
    with contextlib.ExitStack() as stack:
        probe = ""
        if store.is_local:
            probe = store.internal("_state", f"seen-{uuid.uuid4().hex}")
            store.write_text(probe, "")
            stack.callback(store.remove_text, probe)
        master, driver = spark.master, spark.getConf().get("spark.driver.host")
        try:
            number = spark.defaultParallelism  # an error where Spark has already given the master up
            answers = spark.parallelize(range(number), number).map(partial(_examine, store, probe)).collect()
        except Exception as error:  # Py4J has many error classes
            words = last_words(error)
            if _NO_PYTHON.search(words):
                host = re.search(r"\(TID \d+\) \((\S+) executor", words)
                raise BadInput(
                    f"Spark's executor on {host[1] if host else 'a host'} cannot run this step's Python "
                    f"{platform.python_version()}: {words}; {_SAME_ENVIRONMENT}"
                ) from error
            raise ServerUnreachable(
                master,
                f"Spark's master {master} ran nothing for this step: it does not answer, or its executors do not start "
                f"or do not reach the driver at {driver}; the logs of the master and its workers say more ({words})",
            ) from error
    for host, answer, failure in answers:
        if differing := [name for name in versions if answer.get(name) != versions[name]]:
            name = differing[0]
            raise BadInput(
                f"Spark's executor on {host} has {name} {answer.get(name)}, but this step {versions[name]}; "
                f"{_SAME_ENVIRONMENT}"
            )
        if failure:
            what = "does not see the store's folder" if store.is_local else "cannot use the store"
            advice = "use a store that all hosts reach, such as s3:// or hdfs://, or a folder that they share"
            raise BadInput(f"Spark's executor on {host} {what} {store.root} ({failure}); {advice}")


def _versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that a step and its executors must have in common."""
    return {"Python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def _examine(store: ArtifactStore, probe: str, _number: int) -> tuple[str, dict[str, str], str]:
    """Returns an executor's host, versions of libraries, and the error of looking into the store, if any."""
    host, failure = socket.gethostname(), ""
    try:
        if probe:
            store.read_text(probe)
        else:
            store.names(store.internal("_state"))
    except Exception as error:  # each file system has its own error classes
        failure = f"{type(error).__name__}: {error}"
    try:
        return host, _versions(), failure
    except PackageNotFoundError as error:
        return host, {"Python": platform.python_version(), str(error.name): "missing"}, failure


@contextmanager
def as_spark_failure(where: str = "Spark failed", *bad: type[Exception]) -> Iterator[None]:
    """Turns any error into a ``HopsError`` with Spark's message; data errors and the types ``bad`` into BadInput."""
    try:
        yield
    except Exception as error:  # Spark 3.5: errors (Py4J, PySpark) have no common base class
        if message := data_error(error):
            raise BadInput(f"{where}: {message}") from error
        raise (BadInput if isinstance(error, bad) else HopsError)(f"{where}: {last_words(error)}") from error


def data_error(error: Exception) -> str | None:
    """Returns the message of a data exception of SQL (SQLSTATE 22), such as text that is no number; None for others."""
    from pyspark import SparkContext

    condition, spark = _CONDITION.search(str(error)), SparkContext._active_spark_context
    if condition is None or spark is None:
        return None
    state: str | None = spark._jvm.org.apache.spark.SparkThrowableHelper.getSqlState(condition[1])
    return condition[2] if (state or "").startswith("22") else None


def last_words(error: Exception) -> str:
    """Returns the messages of a Spark error, without stack frames and their code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return " | ".join(line for line in lines[:6] if not line.startswith("..."))[:2000] or type(error).__name__
