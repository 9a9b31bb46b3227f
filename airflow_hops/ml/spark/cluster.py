"""Facts about the executors of a Spark cluster, for ``airflow hops doctor``."""

# Executors have registered before the job is submitted, so each of their slots gets a task at once. The status store of
# Spark says which executor ran which task, and why tasks failed that ran again on another host: an environment that is
# missing on one host would go unnoticed otherwise.

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import Any

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.spark.context import LIBRARIES, as_spark_failure, last_words
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.step.probe import machine

_SETTLED_S = 5.0
"""Seconds without another executor, after which no more are expected."""


def run(context: StepContext, *, timeout_s: float) -> dict[str, Any]:
    """Asks each executor for its facts; the stage of the doctor.

    Args:
        context: The step's context.
        timeout_s: Seconds to wait for executors.

    Returns:
        ``master``, number of executors ``wanted`` at least, ``memory_bytes`` of an executor's JVM, and ``executors``:
        each with ``id``, ``address``, ``slots``, and ``failure`` or the facts of :func:`_examine`.

    Raises:
        HopsError: the master does not answer, or no executor registers in time.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with as_spark_failure():
        spark: Any = SparkContext.getOrCreate()
    own = "1" if spark.master.startswith("spark://") else "2"  # YARN and Kubernetes start two by default
    wanted = int(spark.getConf().get("spark.executor.instances", own))
    executors = _registered(spark, wanted, timeout_s)
    number, store = sum(each["slots"] for each in executors.values()), context.store
    place = store.internal("_state", "doctor", str(uuid.uuid4()))
    answers, failure = dict[int, dict[str, Any]](), "it ran no task"
    store.write_text(f"{place}-driver", place)
    try:
        java = "java_method('java.lang.System', 'getProperty', 'java.version') AS java"
        rows = SparkSession(spark).range(0, number, 1, number).selectExpr(java).rdd
        try:
            examine = partial(_examine, store, place, _versions())
            answers = dict(rows.mapPartitionsWithIndex(examine).collect())
        except Exception as error:  # Py4J has many error classes
            failure = last_words(error)
        for task, facts in answers.items():
            facts["store_failure"] = facts["store_failure"] or _difference(store, place, f"{place}-{task}")
    finally:
        for name in ("driver", *range(number)):
            store.remove_text(f"{place}-{name}")
    for task in _tasks(spark):
        executor = executors.setdefault(task.executorId(), {"address": task.host(), "slots": 0})
        if task.status() == "SUCCESS":
            executor.update(answers.get(task.partitionId(), {}))
        elif task.errorMessage().isDefined():
            executor["failure"] = last_words(Exception(task.errorMessage().get()))
    for executor in executors.values():
        if "java" not in executor:
            executor.setdefault("failure", failure)
    return {
        "master": spark.master,
        "wanted": wanted,
        "memory_bytes": spark._jsc.sc().executorMemory() << 20,
        "executors": [{"id": name, **facts} for name, facts in executors.items()],
    }


def _registered(spark: Any, wanted: int, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Waits for the executors of an application; returns ``address`` and ``slots`` of each by its id."""
    executors: dict[str, dict[str, Any]] = {}
    last, until = time.monotonic(), time.monotonic() + timeout_s
    while time.monotonic() < until:
        if spark._jsc.sc().isStopped():
            raise HopsError(f"the master {spark.master} does not answer, or has ended the application")
        for each in _elements(spark._jsc.sc().statusStore().executorList(True)):
            if each.id() != "driver" and each.id() not in executors:
                executors[each.id()] = {"address": each.hostPort(), "slots": each.totalCores()}
                last = time.monotonic()
        if len(executors) >= wanted and time.monotonic() - last > _SETTLED_S:
            break
        time.sleep(0.2)
    if not executors:
        driver = spark.getConf().get("spark.driver.host")
        raise HopsError(
            f"the master {spark.master} started no executor within {timeout_s:g} s: it does not answer, its workers "
            f"have too few free cores or too little memory, or executors do not reach the driver at {driver}"
        )
    return executors


def _examine(
    store: ArtifactStore, place: str, driver: dict[str, str], task: int, rows: Iterator[Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields a task and facts about its executor.

    These are those of :func:`machine`, the version of ``java``, ``differing`` versions as ``[name, own, driver's]``, of
    which the ``refused`` first ones prevent steps, and ``store_failure``.
    """
    own = _versions()
    differing = [[name, own.get(name, "none"), version] for name, version in driver.items() if own.get(name) != version]
    refused = sum(each[0] in ("Python", *LIBRARIES) for each in differing)
    differing.sort(key=lambda each: each[0] not in ("Python", *LIBRARIES))
    store_failure = _difference(store, place, f"{place}-driver")
    if not store_failure:
        try:
            store.write_text(f"{place}-{task}", place)
        except Exception as error:  # each file system has its own error classes
            store_failure = f"{type(error).__name__}: {error}"
    facts = {"java": next(rows)["java"], "differing": differing, "refused": refused, "store_failure": store_failure}
    yield task, {**machine(), **facts}


def _difference(store: ArtifactStore, text: str, uri: str) -> str:
    """Returns why a file of the store is not read as it was written elsewhere; empty if it is."""
    try:
        return "" if store.read_text(uri) == text else f"{uri}: another text was read than was written"
    except Exception as error:  # each file system has its own error classes
        return f"{type(error).__name__}: {error}"


def _versions() -> dict[str, str]:
    """Returns the version of Python, and those of all distributions in the order of the path."""
    versions = {"Python": platform.python_version()}
    for each in metadata.distributions():
        versions.setdefault(str(each.metadata["Name"]).lower().replace("_", "-"), each.version)
    return versions


def _tasks(spark: Any) -> Iterator[Any]:
    """Yields the tasks of all stages, the failed ones included, as Spark's status store has them."""
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsc.sc().statusStore()
    for job in spark.statusTracker().getJobIdsForGroup(None):
        for stage in spark.statusTracker().getJobInfo(job).stageIds:
            yield from _elements(store.taskList(stage, 0, 1 << 30))


def _elements(sequence: Any) -> Iterator[Any]:
    """Yields the elements of a sequence of Scala."""
    return (sequence.apply(index) for index in range(sequence.size()))
