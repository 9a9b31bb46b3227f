"""Checks the executors of a Spark cluster as each step does that runs there."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Timer

from airflow_hops.cli.check import Check
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.connections import find_connection
from airflow_hops.runner.runtime import RuntimeHook

_TIMEOUT_S = 300.0
"""Seconds for the whole application; unpacking an archive of the runtime environment takes a minute or so."""


def check_cluster(hook: RuntimeHook) -> Iterator[Check]:
    """Runs an empty step on the Spark connection's cluster; yields nothing if its master is this machine."""
    name, spark_conn_id = "Spark cluster", hook.settings.spark_conn_id
    timer = Timer(_TIMEOUT_S, hook.kill)
    try:
        is_named = find_connection(spark_conn_id, "spark") is not None
        launcher = hook.cluster_launcher() if is_named else None
        if launcher is None:
            return
        timer.start()
        spec = StepSpec("doctor", "airflow_hops.ml.spark.context:examine")
        master = hook.run(spec, cache=False, launcher=launcher, on_line=lambda line: None).value
    except Exception as error:  # also those of the Spark provider
        late = f"no answer within {_TIMEOUT_S:g} s; " if hook.killed else ""
        reach = f"check that the master of connection {spark_conn_id} runs, and that its hosts reach this machine"
        advice = "" if isinstance(error, BadInput) else reach
        yield Check(name, "fail", f"{late}{type(error).__name__}: {error}", advice)
        return
    finally:
        timer.cancel()
    yield Check(name, "ok", f"{master}: its executors have the libraries of this machine, and reach the store")
