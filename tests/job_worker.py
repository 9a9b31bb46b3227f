"""A worker of a job: what the operator does with its job, in a process that tests may kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.steps.jobs import JOB_FILE
from airflow_hops.core.steps.protocol import Line, StepSpec
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.launchers.warm import WarmStart
from airflow_hops.runner.resuming import DurableLauncher
from airflow_hops.runner.runtime import RuntimeHook


def work(given: Mapping[str, Any], environment: Mapping[str, str], output: int) -> None:
    """Follows a job, or submits one.

    Args:
        given: ``store``, ``runtime``, ``code_paths``, ``entry``, ``params``, ``try_number``; in a retry, the ``job``;
            ``warm``, the socket of a warm process, or ``spark_conn_id``; ``beat_s``; ``only_submit``, to die before the
            job is started.
        environment: Variables to set.
        output: Pipe that takes what happens, a JSON object a line, with one of ``job``, ``follows``, ``admitted``,
            ``line`` (and ``metrics``), ``result``, ``error``.
    """
    os.environ.update(environment)

    def say(**what: Any) -> None:
        os.write(output, json.dumps(what).encode() + b"\n")

    hook = RuntimeHook()
    hook.__dict__["settings"] = replace(hook.settings, store=given["store"], runtime=Path(given["runtime"]))
    hook.show = _tell(say)  # type: ignore[method-assign]
    hook.admit = lambda spec: say(admitted=spec.step)  # type: ignore[method-assign]
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
    tries = _Tries(say, given["job"], given["beat_s"], given["only_submit"])
    durable = _Reporting(launcher, tries, lambda: hook.killed)
    durable.say = say
    with contextlib.suppress(_Killed):
        try:
            say(result=hook.run(spec, launcher=durable, cache=False).value)
        except HopsError as error:
            say(error=str(error))


class _Reporting(DurableLauncher):
    """Reports whether it follows an earlier job."""

    say: Callable[..., None]

    def follows(self, spec: StepSpec) -> bool:
        result = super().follows(spec)
        self.say(follows=result)
        return result


class _Killed(Exception):
    """The worker is killed after it has named its job."""


class _Tries:
    """Airflow's task state store; it reports new jobs, and shortens their beats."""

    def __init__(self, say: Callable[..., None], job: Any, beat_s: float, only_submit: bool) -> None:
        self._say, self._job, self._beat_s, self._only_submit = say, job, beat_s, only_submit

    def get(self, key: str) -> Any:
        return self._job

    def set(self, key: str, value: Any) -> None:
        self._job = {**value, "beat_s": self._beat_s}
        (Path(value["folder"]) / JOB_FILE).write_text(json.dumps(self._job))
        self._say(job=self._job)
        if self._only_submit:
            raise _Killed


def _tell(say: Callable[..., None]) -> Callable[[Line], None]:
    return lambda line: say(line=line.text, metrics=dict(line.metrics))
