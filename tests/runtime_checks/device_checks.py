"""GPUs that ranks are given; on a machine without any, those that a scheduler's assignment names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow_hops.hops.devices import get_gpus, get_num_gpus
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement, run_gang


def count(context: StepContext, *, assignments: list[str]) -> dict[str, Any]:
    """How many GPUs each assignment means, and what they are called."""
    found = {}
    for assigned in assignments:
        os.environ["CUDA_VISIBLE_DEVICES"] = assigned
        found[assigned] = {"number": get_num_gpus(), "ids": [gpu.id for gpu in get_gpus()]}
    return found


def gang(context: StepContext, *, assigned: str, folder: str, ranks: int, hold_s: float = 0.0) -> Any:
    """What each rank sees of the GPUs, leased in ``folder``; rank 0 holds its own for a while, saying so by a file."""
    os.environ["CUDA_VISIBLE_DEVICES"] = assigned
    os.environ["HOPS_GPU_LEASES"] = folder

    def work(placement: Placement, channel: Channel) -> dict[str, Any]:
        if hold_s:
            (Path(folder) / f"held-{placement.rank}").write_text(str(os.getpid()))
            time.sleep(hold_s)
        return {"sees": os.environ["CUDA_VISIBLE_DEVICES"], "number": get_num_gpus()}

    slots = LocalRanks().slots
    return {"slots": slots, "ranks": run_gang(work, ranks, logs=context.scratch / "logs", launcher=LocalRanks(ranks))}
