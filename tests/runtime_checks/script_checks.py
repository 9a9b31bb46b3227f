"""Programs that were written for Horovod alone, run unchanged on our ranks."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import horovod.tensorflow  # noqa: F401  # for the ranks
import keras  # noqa: F401  # as the step has it

from airflow_hops.hops.keras.legacy import use_tf_keras
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement, run_gang

SCRIPTS = Path(__file__).parent / "horovod_scripts"


def on_two_ranks_and_on_one(context: StepContext) -> list[dict[str, Any]]:
    """What the scripts leave, by rank; of rank 0, too, what they leave when it then runs them alone."""
    found: list[dict[str, Any]] = run_gang(_run_twice, 2, logs=context.scratch / "logs", launcher=LocalRanks(2))
    return found


def _run_twice(placement: Placement, channel: Channel) -> dict[str, Any]:
    together = _run_scripts()
    if placement.rank > 0:
        return {"together": together}
    # In the same process: AutoGraph takes ten seconds to convert what tf_keras and Horovod run, and keeps it.
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]
    return {"together": together, "alone": _run_scripts()}


def _run_scripts() -> dict[str, Any]:
    found = {}
    for name in ("tensorflow_tape", "tf_keras_fit"):
        if name.startswith("tf_keras"):
            use_tf_keras()
        left = runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        found[name] = {key: left.get(key) for key in ("package", "weights", "losses", "ranks")}
    return found
