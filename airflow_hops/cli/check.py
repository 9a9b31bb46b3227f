"""Rows of the doctor's table, and the checks that run steps as tasks do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Timer
from typing import Any, Literal

from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.connections import find_connection
from airflow_hops.runner.runtime import RuntimeHook

_TIMEOUT_S = 300.0
"""Seconds for the whole application; unpacking an archive of the runtime environment takes a minute or so."""
Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """A row of the doctor's table.

    Attributes:
        status: ``ok``; ``warn`` if a feature is limited; ``fail`` if pipelines would fail.
        advice: Suggested fix; empty if there is nothing to fix.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def probe_step(hook: RuntimeHook) -> dict[str, Any]:
    """Returns the findings of a step of the connection's launcher: :func:`airflow_hops.ml.step.probe.run`.

    Raises:
        BadInput: the launcher is unknown, or its options are wrong.
        HopsError: the step cannot start, or does not reach the store.
    """
    settings = hook.settings
    launcher = hook.make_launcher(settings.launcher, **settings.launcher_options)
    spec = StepSpec("doctor", "airflow_hops.ml.step.probe:run")
    return dict(hook.run(spec, cache=False, launcher=launcher, on_line=lambda line: None).value)


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
