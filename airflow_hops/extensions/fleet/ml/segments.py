"""Trains the models of a range of segments, a part of the pool's work, whose results outlive a kill.

A part writes its results to one file below ``_state/checkpoints``, under a name made of the fingerprints of its
segments' rows and of the pooled model. A retry takes the files that are there, so a segment whose part was finished is
not trained again; the step removes them when the fleet is committed.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import threadpoolctl

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.remote_files import RemoteFiles
from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.core.packs import POOLED, shown
from airflow_hops.extensions.fleet.ml.choice import choose
from airflow_hops.extensions.fleet.ml.columns import Columns
from airflow_hops.extensions.fleet.ml.learners import Learner
from airflow_hops.extensions.fleet.ml.reference import statistics_of
from airflow_hops.extensions.fleet.ml.rows import read_rows
from airflow_hops.extensions.fleet.ml.segment_rules import check_rows
from airflow_hops.extensions.fleet.ml.training_rows import training_rows

log = logging.getLogger(__name__)

RESULT = pa.schema(
    [
        pa.field("segment", pa.string()),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("payload", pa.binary()),
        pa.field("loss", pa.float64()),
        pa.field("pooled_loss", pa.float64()),
        pa.field("eval_rows", pa.int64()),
        pa.field("eval_loss", pa.float64()),
        pa.field("eval_pooled_loss", pa.float64()),
        pa.field("failed", pa.bool_()),
        pa.field("groups", pa.string()),
        pa.field("statistics", pa.string()),
    ]
)
"""Columns of a part's results; groups and statistics are JSON."""


@dataclass(frozen=True)
class FleetPlan:
    """Facts that the trainings of all segments have in common.

    Attributes:
        folder: Folder of the sorted rows.
        columns: Their columns.
        encoding: The matrix.
        learner: Trains the models.
        pooled: The pooled model.
        pooled_by_fold: Pooled models that have not learnt from a fold.
        min_rows: As the option.
        standard_errors: As the option.
        place: Folder for the results of parts.
        storage_options: Its options.
    """

    folder: Path
    columns: Columns
    encoding: Encoding
    learner: Learner
    pooled: Any
    pooled_by_fold: Mapping[int, Any]
    min_rows: int
    standard_errors: float
    place: str
    storage_options: Mapping[str, Any]

    def results(self) -> RemoteFiles:
        """Returns the folder of the results."""
        return RemoteFiles(self.place, self.storage_options)


@dataclass(frozen=True)
class SegmentPart:
    """Segments to train: their keys by number, where their rows are, and the name of the file of results.

    ``train`` and ``held`` are their rows if the pool does not see the driver's files.
    """

    segments: Mapping[int, str]
    places: pa.Table
    name: str
    train: Mapping[int, pa.Table] = field(default_factory=dict)
    held: Mapping[int, pa.Table] = field(default_factory=dict)

    def with_rows(self, folder: Path) -> SegmentPart:
        """Returns the part with its rows."""
        train, held = (read_rows(folder, self.places, is_train=is_train) for is_train in (True, False))
        return replace(self, train=train, held=held)


def train_part(plan: FleetPlan, part: SegmentPart) -> str:
    """Trains a part's segments, unless a try before has; returns the name of the file of results."""
    files = plan.results()
    address = f"{files.root}/{part.name}"
    if files.exists(address):
        return part.name
    if not part.train:
        part = part.with_rows(plan.folder)
    with threadpoolctl.threadpool_limits(1):  # the pool has a process for each core
        results = [
            train_segment(plan, segment, part.train[number], part.held.get(number))
            for number, segment in part.segments.items()
        ]
    table = pa.Table.from_pylist(results, RESULT)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RESULT) as writer:
        writer.write_table(table)
    files.write(address, sink.getvalue().to_pybytes())
    return part.name


def read_results(files: RemoteFiles, name: str) -> list[dict[str, Any]]:
    """Returns the results of a part."""
    with pa.ipc.open_stream(files.read(f"{files.root}/{name}")) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


def train_segment(plan: FleetPlan, segment: str, train: pa.Table, held: pa.Table | None) -> dict[str, Any]:
    """Trains the model of a segment, chooses it, and evaluates it; returns a row of ``RESULT``.

    A failure is a result, too: the pooled model answers such a segment.
    """
    columns, learner = plan.columns, plan.learner
    result: dict[str, Any] = {"segment": segment, "rows": len(train), "state": POOLED, "eval_rows": 0, "failed": False}
    result["statistics"] = json.dumps(statistics_of(train, columns, plan.encoding))
    result["groups"] = json.dumps({name: most_frequent(train[name]) for name in columns.groups}, ensure_ascii=False)
    try:
        for each in (train, held):
            if each is not None:
                check_rows(each, columns)
        rows = training_rows(train, columns, plan.encoding)
        choice = choose(learner, rows, plan.pooled_by_fold, plan.min_rows, plan.standard_errors)
        model, payload = plan.pooled, None
        if choice.strategy is not None:
            model = learner.fit(rows, choice.strategy, plan.pooled)
            payload = learner.payload(model, rows.matrix)
        own: dict[str, Any] = {
            "state": choice.state,
            "reason": choice.reason,
            "payload": payload,
            "loss": _finite(choice.loss),
            "pooled_loss": _finite(choice.pooled_loss),
        }
        if held is not None:
            unseen = training_rows(held, columns, plan.encoding)
            for name, each in (("eval_loss", model), ("eval_pooled_loss", plan.pooled)):
                own[name] = _finite(float(np.average(learner.losses(each, unseen), weights=unseen.weights)))
            own["eval_rows"] = len(unseen)
    except MemoryError:
        raise
    except Exception as error:  # of a user's function, for instance: the segment fails alone
        return {**result, "failed": True, "reason": f"failed: {type(error).__name__}: {error}"[:500]}
    return {**result, **own}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def most_frequent(column: pa.ChunkedArray) -> str | None:
    """Returns the most frequent value of a column, as text; None if it has none."""
    counts = column.drop_null().value_counts().to_pylist()
    best = min(counts, key=lambda each: (-each["counts"], str(each["values"])), default=None)
    return None if best is None else str(best["values"])


@dataclass
class PartResults:
    """Results of all parts, in the store."""

    plan: FleetPlan
    names: Sequence[str]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the results of all segments by key, reading a part at a time."""
        files = self.plan.results()
        for name in self.names:
            yield from read_results(files, name)

    def check_failed(self, max_failed: float, segments: int) -> None:
        """Logs each failed segment. Raises BadInput if there are more than a share of all."""
        files, failed = self.plan.results(), []
        for name in self.names:
            own = [row for row in read_results(files, name) if row["failed"]]
            failed += own
            for row in own:
                log.warning("Segment %s %s", shown(row["segment"]), row["reason"])
        if len(failed) > max_failed * segments:
            first = "; ".join(f"{shown(row['segment'])} {row['reason']}" for row in failed[:5])
            for name in self.names:  # so that the task, if it is cleared, trains them again
                if any(row["failed"] for row in read_results(files, name)):
                    files.remove(f"{files.root}/{name}")
            raise BadInput(
                f"{len(failed):,} of {segments:,} segments failed, more than max_failed={max_failed:g} allows: {first}"
            )
