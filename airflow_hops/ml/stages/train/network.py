"""Measures the exchange between Horovod's ranks, for ``airflow hops doctor --ranks``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang import Channel, Placement, RankJob, run_gang
from airflow_hops.ml.training.gang.where import Where, rank_launcher

_ANSWER_S = 120.0
_SIZE_BYTES = 64 << 20


def run(context: StepContext, *, where: Where | None, ranks: int) -> dict[str, Any]:
    """Measures all-reduces of ranks at a place.

    Returns:
        ``hosts``, each once; ``latency_s``, the seconds of an all-reduce of one number; ``bytes_per_s``, the bytes that
        a rank sends in one of 64 MiB, by its seconds beyond the latency. Of the slowest rank.

    Raises:
        BadInput: there are too few slots.
        HopsError: a host cannot be reached by this one or by the others.
    """
    measured = run_gang(
        RankJob("airflow_hops.ml.stages.train.network:measure"),
        ranks,
        logs=context.scratch / "logs",
        launcher=rank_launcher(where, context),
        stall_timeout_s=_ANSWER_S,
    )
    return {
        "hosts": list(dict.fromkeys(each["host"] for each in measured)),
        "latency_s": max(each["latency_s"] for each in measured),
        "bytes_per_s": min(each["bytes_per_s"] for each in measured),
    }


def measure(placement: Placement, channel: Channel, *, folders: Mapping[str, Path]) -> dict[str, Any]:
    """Measures all-reduces on a rank."""
    import tensorflow as tf

    from airflow_hops.ml.training.collectives import check_horovod, hvd

    check_horovod()
    hvd.init()

    def seconds(size_bytes: int, times: int) -> float:
        values, taken = tf.zeros(size_bytes // 4), []
        for _ in range(times + 1):
            began = time.monotonic()
            hvd.allreduce(values, name=f"hops_network_{size_bytes}").numpy()
            taken.append(time.monotonic() - began)
            channel.alive("an all-reduce")
        return statistics.median(taken[1:])  # the first one allocates

    latency, large = seconds(4, 50), seconds(_SIZE_BYTES, 5)
    sent = 2 * (placement.size - 1) / placement.size * _SIZE_BYTES
    return {"host": placement.host, "latency_s": latency, "bytes_per_s": sent / max(large - latency, 1e-6)}
