"""Cost of a step besides its work: from the end of one's work to the next one's first line, without the scheduler.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import statistics  # noqa: E402

STAGES = ("ingest", "prepare", "statistics.stage", "schema.stage", "validation", "transform.stage", "training.stage")
STAGES += ("evaluate.stage", "deploy.stage", "skew.stage")
"""Modules of ``airflow_hops.ml``, in the order of a pipeline."""


def run_chain(operator: Callable[..., Any], run_id: str) -> list[dict[str, float]]:
    """Executes a step for each stage, each in a fork of this process, as Airflow's tasks are; milliseconds by step."""
    found, previous = [], None
    for stage in STAGES:
        read_end, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            began = time.time()
            ti = SimpleNamespace(dag_id="chain", run_id=run_id, task_id=stage, map_index=-1, try_number=1)
            dag = SimpleNamespace(fileloc=str(REPOSITORY / "benchmarks" / "measurement" / "no_work.py"))
            value = operator(task_id=stage, stage=stage, before=previous).execute({"ti": ti, "dag": dag})
            used = resource.getrusage(resource.RUSAGE_SELF)
            told = {"value": value, "began": began, "cpu_s": used.ru_utime + used.ru_stime, "ended": time.time()}
            with os.fdopen(write_end, "w") as pipe:
                json.dump(told, pipe)
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            told = json.load(pipe)
        os.waitpid(pid, 0)
        previous, step = told["value"], told["value"]["metrics"]
        if previous.get("cached"):
            raise RuntimeError(f"the step of {stage} was not run: its artifact came from the cache")
        found.append(
            {
                "to_work_ms": 1e3 * (step["began"] - told["began"]),
                "after_work_ms": 1e3 * (told["ended"] - step["ended"]),
                "task_cpu_ms": 1e3 * told["cpu_s"],
                "step_cpu_ms": 1e3 * step["cpu_s"],
            }
        )
    return found


def start_warm_process(hook: Any) -> Any:
    """Starts the warm process that the hook's steps are forked from, and waits until it listens."""
    import subprocess

    from airflow_hops.runner.launchers.warm import warm_command, warm_variables

    warm = hook.warm_start()
    warm.path.parent.mkdir(mode=0o700)
    process = subprocess.Popen(warm_command(warm.python, warm.path), env=warm_variables(), cwd="/")
    while not warm.path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the warm process has ended with {process.returncode}")
        time.sleep(0.1)
    return process


def measure(rounds: int) -> Mapping[str, Mapping[str, float]]:
    """Medians by stage over as many chains, after one that does not count."""
    from airflow_hops.operators.base import HopsOperator
    from airflow_hops.runner.runtime import RuntimeHook

    class NoWork(HopsOperator):
        entry, output_kind = "no_work:run", "examples"

        def __init__(self, *, stage: str, before: Any, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.stage, self.before = stage, before

        def step_params(self, context: Any) -> dict[str, Any]:
            return {"stage": f"airflow_hops.ml.{self.stage}", "chain": context["ti"].run_id}

        def step_inputs(self) -> Mapping[str, Any]:
            return {"before": self.before}

    warm = start_warm_process(RuntimeHook())
    try:
        chains = [run_chain(NoWork, f"run-{number}-{time.time_ns()}") for number in range(rounds + 1)][1:]
    finally:
        warm.terminate()
        warm.wait(20)
    by_stage = zip(STAGES, zip(*chains, strict=True), strict=True)
    return {
        stage: {name: round(statistics.median(step[name] for step in steps), 1) for name in steps[0]}
        for stage, steps in by_stage
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often the chain is run; medians are reported")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hops-steps-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.environ["AIRFLOW_HOME"] = folder
        os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"
        os.environ["AIRFLOW__HOPS__CACHE"] = "True"
        extra = {"store": f"{folder}/store", "runtime": str(REPOSITORY / ".venv-runtime")}
        os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps({"conn_type": "hops", "extra": extra})
        stages = measure(given.rounds)
    for stage, figures in stages.items():
        print(f"{stage:20}" + "".join(f"  {name} {value:7.1f}" for name, value in figures.items()))
    total = {name: round(sum(figures[name] for figures in stages.values()), 1) for name in stages[STAGES[0]]}
    overhead = (total["to_work_ms"] + total["after_work_ms"]) / len(STAGES)
    figures = {"overhead_ms": round(overhead, 1), "total": total, "stages": stages}
    print(json.dumps({"benchmark": "steps", "ratios": {}, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
