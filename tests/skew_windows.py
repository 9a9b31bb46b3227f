"""Compares real windows of flights, one after the other, with the weeks before them, by the stages themselves.

The first half is like the reference, then spring comes; of the last windows one lacks rows, one has its temperatures in
Celsius.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.skew.stage import run as compare
from airflow_hops.ml.statistics.stage import run as make_statistics
from airflow_hops.ml.step.context import StepContext

START = datetime(2013, 1, 1, tzinfo=UTC)
REFERENCE_WEEKS = 6
MIN_ROWS = 500
"""Rows for a verdict: a week of the shown demo's flights, which are a sixth of all, has some 800."""
FEW_ROWS = 300


def run(context: StepContext, *, dag_id: str, task_id: str, run_ids: list[str]) -> list[dict[str, Any]]:
    """The artifacts of the comparisons, one for each of the runs."""
    return [skew.to_dict() for skew in _reports(context, dag_id, task_id, run_ids)]


def _reports(context: StepContext, dag_id: str, task_id: str, run_ids: list[str]) -> Iterator[Artifact]:
    store, schema = context.store, context.input("schema")
    flights = pq.ParquetDataset(context.local("examples") / "train").read().to_pandas()
    weeks = len(run_ids)
    windows = [(0, REFERENCE_WEEKS), *((REFERENCE_WEEKS + n, REFERENCE_WEEKS + n + 1) for n in range(weeks))]
    reference = None
    for number, (first, end) in enumerate(windows):
        since, until = START + timedelta(weeks=first), START + timedelta(weeks=end)
        rows = flights[flights["scheduled_at"].between(since.timestamp(), until.timestamp() - 1)].copy()
        if number == 0:
            winter = rows
        elif number <= weeks // 2:
            # Like the reference: real rows of it, drawn at random.
            rows = winter.sample(len(rows), random_state=number)
        if number == weeks - 2:
            rows = rows.iloc[:FEW_ROWS]
        if number == weeks - 1:
            rows = winter.sample(len(rows), random_state=number).assign(temp=lambda table: (table["temp"] - 32) / 1.8)
        run_id = "reference" if number == 0 else run_ids[number - 1]
        producer = Producer(dag_id, run_id, "statistics")
        statistics = _statistics(store, producer, rows, [since.isoformat(), until.isoformat()])
        if reference is None:
            reference = statistics
            continue
        inputs = {"reference": (reference,), "current": (statistics,), "schema": (schema,)}
        judge = functools.partial(compare, min_rows=MIN_ROWS)
        yield _step(store, Producer(dag_id, run_id, task_id), "skew", judge, inputs)


def _statistics(store: ArtifactStore, producer: Producer, rows: pd.DataFrame, window: list[str]) -> Artifact:
    made = Producer(producer.dag_id, producer.run_id, "prepare")
    uri = store.address(made, "examples")
    with store.create(uri, "examples", made) as writer:
        (writer.path / "train").mkdir()
        rows.to_parquet(writer.path / "train" / "part-00000.parquet")
        examples = writer.commit(
            rows={"train": RowCounts(len(rows), len(rows))},
            properties={
                "label": "late",
                "key": "flight_id",
                "time": "scheduled_at",
                "splits": ["train"],
                "window": window,
            },
        )
    return _step(store, producer, "statistics", make_statistics, {"examples": (examples,)})


def _step(store: ArtifactStore, producer: Producer, kind: str, function: Any, inputs: Any) -> Artifact:
    spec = StepSpec(
        step=producer.task_id, entry="", inputs=inputs, output=Output(store.address(producer, kind), kind),
        producer=producer, store=store.root,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        artifact: Artifact = function(StepContext(spec, Path(scratch)))
    return artifact
