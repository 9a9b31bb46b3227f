"""Programs that were written for Horovod alone, run unchanged on our ranks."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import horovod.tensorflow  # noqa: F401  # for the ranks
import keras  # noqa: F401  # as the step has it
import tf_keras.api._v2.keras  # noqa: F401  # once, before ranks are forked, instead of in each

from airflow_hops.hops.keras.legacy import use_tf_keras
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement, run_gang

SCRIPTS = Path(__file__).parent / "horovod_scripts"


def on_one_rank_and_on_two(context: StepContext) -> dict[str, list[dict[str, Any]]]:
    """What the scripts leave, by number of ranks; a list by rank."""
    return {
        str(np): run_gang(_run_scripts, np, logs=context.scratch / f"logs-{np}", launcher=LocalRanks(2))
        for np in (1, 2)
    }


def _run_scripts(placement: Placement, channel: Channel) -> dict[str, Any]:
    found = {}
    for name in ("tensorflow_tape", "tf_keras_fit"):
        if name.startswith("tf_keras"):
            use_tf_keras()
        left = runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        found[name] = {key: left.get(key) for key in ("package", "weights", "losses")}
    return found
