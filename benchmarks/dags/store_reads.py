"""Step of the cluster benchmark whose tasks read a store; in a folder of user code, which travels to the executors."""

from __future__ import annotations

import contextlib
import time

from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, fetched, files_below
from airflow_hops.ml.spark.pools import WorkSummary, run_parts, step_pool
from airflow_hops.ml.step.context import StepContext


def read_snapshot(context: StepContext, way: str) -> float:
    """Reads a snapshot in a remote store on the executors; returns the seconds.

    ``streamed``: Arrow reads from the store's own stream. ``fetched``: each task fetches its file, as stages do.
    ``staged``: the driver fetches all files to a folder that the executors see.
    """
    with step_pool(context) as pool:
        began = time.monotonic()
        if way == "staged":
            files: list[File] = sorted(context.local("tables").glob("flights/*.parquet"))
        else:
            files = files_below(context.store, context.input("tables"), ["flights"])["flights"]
        run_parts(pool, _read_file, way, files, WorkSummary)
        return round(time.monotonic() - began, 2)


def _read_file(way: str, file: File) -> str:
    with contextlib.nullcontext(file) if way == "streamed" else fetched(file) as source:
        for _ in scan.batches(source):
            pass
    return WorkSummary().to_json()
