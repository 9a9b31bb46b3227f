"""A worker of a job: what the operator does with its job, in a process that tests may kill."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.steps.jobs import JOB_FILE, Job
from airflow_hops.core.steps.protocol import Line, StepSpec
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.launchers.warm import WarmStart
from airflow_hops.runner.resuming import Jobs
from airflow_hops.runner.runtime import RuntimeHook


def work(given: Mapping[str, Any], environment: Mapping[str, str], output: int) -> None:
    """Follows a job, or submits one.

    Args:
        given: ``store``, ``runtime``, ``code_paths``, ``entry``, ``params``, ``try_number``; in a retry, the ``job``;
            ``warm``, the socket of a warm process, or ``spark_conn_id``; ``beat_s``; ``only_submit``, to die before the
            job is started.
        environment: Variables to set.
        output: Pipe that takes what happens, a JSON object a line, with one of ``job``, ``state``, ``line`` (and
            ``metrics``), ``result``, ``error``.
    """
    os.environ.update(environment)

    def say(**what: Any) -> None:
        os.write(output, json.dumps(what).encode() + b"\n")

    hook = RuntimeHook()
    hook.__dict__["settings"] = replace(hook.settings, store=given["store"], runtime=Path(given["runtime"]))
    hook.show = _tell(say)  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: hook.kill())
    spec = StepSpec(
        step="counting",
        entry=given["entry"],
        params=given["params"],
        producer=Producer("tests", "run-1", "counting", -1, given["try_number"]),
        code_paths=tuple(given["code_paths"]),
        cache_key_parts={"code": "the same in all tries"},
    )
    warm = WarmStart(Path(given["warm"])) if given["warm"] else None
    launcher: Launcher = LocalLauncher(hook.settings.runtime, warm)
    if given["spark_conn_id"]:
        launcher = SparkLauncher(hook.settings.runtime, given["spark_conn_id"])
    jobs = Jobs(hook, hook.complete(spec), launcher)
    try:
        job = Job.from_dict(given["job"])
        state = jobs.settle(job) if job is not None else "ended"
        say(state=state)
        if job is None or state == "ended":
            job = replace(jobs.submit(), beat_s=given["beat_s"])
            (job.path / JOB_FILE).write_text(json.dumps(job.to_dict()))
            say(job=job.to_dict())
        if given["only_submit"]:
            return
        if state != "succeeded":
            jobs.follow(job)
        say(result=jobs.collect(job, cache=False).value)
    except HopsError as error:
        say(error=str(error))


def _tell(say: Callable[..., None]) -> Callable[[Line], None]:
    return lambda line: say(line=line.text, metrics=dict(line.metrics))
