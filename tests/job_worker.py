"""A worker of a job, as a program: what the operator does with its job, in a process that tests may kill.

``python job_worker.py given.json``: ``given`` holds ``store``, ``runtime``, ``code_paths``, ``entry``, ``params``,
``try_number`` and, in a retry, ``job``; ``warm`` is the socket of a warm process. Each line of output is a JSON object
with one of ``job``, ``state``, ``line``, ``result``, ``error``.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import HopsError, Producer
from airflow_hops.hooks.jobs import Jobs
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.jobs import JOB_FILE, Job
from airflow_hops.launchers.local import LocalLauncher
from airflow_hops.launchers.warm import WarmStart
from airflow_hops.protocol import Line, StepSpec


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def tell_lines(hook: RuntimeHook) -> Callable[[Line], None]:
    return lambda line: say(line=line.text, metrics=dict(line.metrics))


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    hook = RuntimeHook()
    hook.__dict__["settings"] = replace(hook.settings, store=given["store"], runtime=Path(given["runtime"]))
    hook._log_line = tell_lines(hook)  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: hook.kill())
    spec = StepSpec(
        step="counting",
        entry=given["entry"],
        params=given["params"],
        producer=Producer("tests", "run-1", "counting", -1, given["try_number"]),
        code_paths=tuple(given["code_paths"]),
        cache_key_parts={"code": "the same in all tries"},
    )
    warm = WarmStart(Path(given["warm"])) if given.get("warm") else None
    jobs = Jobs(hook, hook.complete(spec), LocalLauncher(Path(given["runtime"]), warm))
    try:
        job = Job.from_dict(given.get("job"))
        state = jobs.settle(job) if job is not None else "ended"
        say(state=state)
        if job is None or state == "ended":
            job = replace(jobs.submit(), beat_s=given.get("beat_s", 5.0))
            (job.path / JOB_FILE).write_text(json.dumps(job.to_dict()))
            say(job=job.to_dict())
        if given.get("only_submit"):
            return
        if state != "succeeded":
            jobs.follow(job)
        say(result=jobs.collect(job, cache=False).value)
    except HopsError as error:
        say(error=str(error))


if __name__ == "__main__":
    main()
