"""Checks the executors of a Spark cluster: environment, Java, cores, memory, and their access to the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Timer
from typing import Any

from airflow_hops.cli.check import Check
from airflow_hops.connections import find_connection
from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.named_environment import base_of
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.environments.java import supported_javas
from airflow_hops.hooks.runtime import RuntimeHook

_TIMEOUT_S = 300.0
"""Seconds for the whole application; unpacking an archive of the runtime environment takes a minute or so."""
_EXECUTORS_TIMEOUT_S = 90.0
_CONF = {
    "spark.dynamicAllocation.enabled": "false",  # without work, it would start no executor
    # A task that fails on an executor runs again on others only, so that each reports.
    "spark.excludeOnFailure.enabled": "true",
}
_SAME = (
    "give that host this machine's runtime environment, at the same path or that of spark.pyspark.python, or name an "
    "archive of it in the connection's field 'runtime_archive' (airflow hops runtime pack)"
)
_SHARED = "use a store that all hosts reach, with credentials that they have, or a folder that all of them may write"


def check_cluster(hook: RuntimeHook) -> Iterator[Check]:
    """Runs a short job on the Spark connection's cluster; yields nothing if its master is this machine."""
    name, spark_conn_id = "Spark cluster", hook.settings.spark_conn_id
    timer = Timer(_TIMEOUT_S, hook.kill)
    try:
        is_named = find_connection(spark_conn_id, "spark") is not None
        launcher = hook.cluster_launcher(_CONF) if is_named else None
        if launcher is None:
            return
        timer.start()
        spec = StepSpec("doctor", "airflow_hops.ml.spark.cluster:run", params={"timeout_s": _EXECUTORS_TIMEOUT_S})
        cluster = hook.run(spec, cache=False, launcher=launcher, on_line=lambda line: None).value
    except Exception as error:  # also those of the Spark provider
        late = f"no answer within {_TIMEOUT_S:g} s; " if hook.killed else ""
        reach = f"check that the master of connection {spark_conn_id} runs, and that its hosts reach this machine"
        advice = "" if isinstance(error, BadInput) else reach
        yield Check(name, "fail", f"{late}{type(error).__name__}: {error}", advice)
        return
    finally:
        timer.cancel()
    javas, memory, good = supported_javas(base_of(hook.settings.runtime)), cluster["memory_bytes"], []
    for executor in cluster["executors"]:
        problem = problem_of(executor, javas, memory)
        if problem is None:
            good.append(executor)
        else:
            where = f"{executor.get('host', '')} ({executor['address']})".strip()
            yield Check(f"Spark executor {executor['id']} on {where}", *problem)
    if good:
        each = f"{_numbers(good, 'slots')} cores and {memory / 2**30:.1f} GiB each, Java {_numbers(good, 'java')}"
        finding = f"{cluster['master']}: {len(good)} executors on {_numbers(good, 'host')}, {each}"
        finding += "; packages as here, they read and write the store"
        if len(cluster["executors"]) < cluster["wanted"]:
            rest = f"not all {cluster['wanted']} of spark.executor.instances started within {_EXECUTORS_TIMEOUT_S:g} s"
            yield Check(name, "warn", finding, f"{rest}: see whether the cluster has room for them")
        else:
            yield Check(name, "ok", finding)


def problem_of(executor: Mapping[str, Any], javas: tuple[int, ...], memory: int) -> tuple[Any, str, str] | None:
    """Returns status, finding and advice of an executor; None if all is well."""
    if "failure" in executor:
        return "fail", executor["failure"], _SAME
    differing = [f"{name} {own} instead of {expected}" for name, own, expected in executor["differing"]]
    if differing:
        rest = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        return "fail" if executor["refused"] else "warn", f"{', '.join(differing[:5])}{rest}", _SAME
    if executor["store_failure"]:
        return "fail", f"cannot use the store as this machine does: {executor['store_failure']}", _SHARED
    java = executor["java"].removeprefix("1.").partition(".")[0]
    if java not in map(str, javas):
        return "fail", f"Java {executor['java']}", f"install Java {' or '.join(map(str, javas))} on that host"
    if executor["slots"] > executor["cores"]:
        finding = f"{executor['slots']} tasks at a time on {executor['cores']} cores"
        return "warn", finding, "lower spark.executor.cores, or the cores of the worker"
    if memory > executor["memory_bytes"]:
        finding = f"spark.executor.memory is {memory / 2**30:.1f} GiB of {executor['memory_bytes'] / 2**30:.1f} GiB"
        return "warn", finding, "lower spark.executor.memory in the connection's field 'conf'"
    return None


def _numbers(executors: list[dict[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(each[name]) for each in executors))
