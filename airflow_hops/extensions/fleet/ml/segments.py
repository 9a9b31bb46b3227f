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
from airflow_hops.extensions.fleet.core.packs import INDEX_SCHEMA, POOLED, shown
from airflow_hops.extensions.fleet.ml.columns import Columns, TrainingRows, ranked, training_rows
from airflow_hops.extensions.fleet.ml.fleet_files import finite
from airflow_hops.extensions.fleet.ml.learners import Learner, Strategy
from airflow_hops.extensions.fleet.ml.reference import statistics_of
from airflow_hops.extensions.fleet.ml.rows import read_rows
from airflow_hops.extensions.fleet.ml.segment_rules import check_rows
from airflow_hops.ml.metrics.metrics import Sample, copies_of

log = logging.getLogger(__name__)

RESULT = pa.schema([*INDEX_SCHEMA, ("payload", pa.binary()), ("statistics", pa.string())])
"""Columns of a part's results."""


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

    def files(self) -> RemoteFiles:
        """Returns the folder of the results."""
        return RemoteFiles(self.place, self.storage_options)


@dataclass(frozen=True)
class SegmentPart:
    """Segments to train: their keys by number, where their rows are, and the name of the file of results.

    ``rejected`` are words about their rejected rows, ``train`` and ``held`` their rows if the pool does not see the
    driver's files.
    """

    segments: Mapping[int, str]
    places: pa.Table
    name: str
    rejected: Mapping[str, str]
    train: Mapping[int, pa.Table] = field(default_factory=dict)
    held: Mapping[int, pa.Table] = field(default_factory=dict)

    def with_rows(self, folder: Path) -> SegmentPart:
        """Returns the part with its rows."""
        train, held = (read_rows(folder, self.places, is_train=is_train) for is_train in (True, False))
        return replace(self, train=train, held=held)


def train_part(plan: FleetPlan, part: SegmentPart) -> str:
    """Trains a part's segments, unless a try before has; returns the name of the file of results."""
    files = plan.files()
    address = f"{files.root}/{part.name}"
    if files.exists(address):
        return part.name
    if not part.train:
        part = part.with_rows(plan.folder)
    with threadpoolctl.threadpool_limits(1):  # the pool has a process for each core
        results = [
            train_segment(plan, segment, part.train.get(number), part.held.get(number), part.rejected.get(segment, ""))
            for number, segment in part.segments.items()
        ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RESULT) as writer:
        writer.write_table(pa.Table.from_pylist(results, RESULT))
    files.write(address, sink.getvalue().to_pybytes())
    return part.name


def train_segment(
    plan: FleetPlan, segment: str, train: pa.Table | None, held: pa.Table | None, rejected: str = ""
) -> dict[str, Any]:
    """Trains the model of a segment, chooses it, and evaluates it; returns a row of ``RESULT``.

    A failure is a result, too: the pooled model answers such a segment. A segment all of whose rows were rejected
    fails; one that only has held-out rows borrows the pooled model.
    """
    columns, learner = plan.columns, plan.learner
    if train is None:
        reason = f"failed: no row to train on is left: {rejected}" if rejected else "no training rows"
        return {
            "segment": segment,
            "rows": 0,
            "eval_rows": 0,
            "state": POOLED,
            "reason": reason,
            "failed": bool(rejected),
        }
    groups = {name: next(iter(ranked(train[name])), None) for name in columns.groups}
    statistics = json.dumps({"groups": groups, "statistics": statistics_of(train, columns)})
    result: dict[str, Any] = {"segment": segment, "rows": len(train), "eval_rows": 0, "statistics": statistics}
    try:
        for each in (train, held):
            if each is not None:
                check_rows(each, columns)
        rows = training_rows(train, columns, plan.encoding)
        choice = choose(learner, rows, plan.pooled_by_fold, plan.min_rows, plan.standard_errors)
        own: dict[str, Any] = {"state": choice.state, "reason": choice.reason, "failed": False}
        own |= {"loss": finite(choice.loss), "pooled_loss": finite(choice.pooled_loss)}
        model = plan.pooled
        if choice.strategy is not None:
            model = learner.fit(rows, choice.strategy, plan.pooled)
            own["payload"] = learner.payload(model, rows.matrix)
        if held is not None:
            unseen = training_rows(held, columns, plan.encoding)
            for name, each in (("eval_loss", model), ("eval_pooled_loss", plan.pooled)):
                own[name] = finite(float(np.average(learner.losses(each, unseen), weights=unseen.weights)))
            own["eval_rows"] = len(unseen)
    except MemoryError:
        raise
    except Exception as error:  # of a user's function, for instance: the segment fails alone
        reason = f"failed: {type(error).__name__}: {error}"[:500]
        own = {"state": POOLED, "failed": True, "reason": reason}
    if rejected:
        own["reason"] += f"; besides, {rejected}"
    return {**result, **own}


def results_of(plan: FleetPlan, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the results of parts by key, with the ``model`` of each segment, reading a part at a time."""
    files = plan.files()
    for name in names:
        with pa.ipc.open_stream(files.read(f"{files.root}/{name}")) as reader:
            for row in reader.read_all().to_pylist():
                payload = row.pop("payload")
                yield {**row, "model": None if payload is None else (payload, plan.learner.format)}


def check_failed(plan: FleetPlan, names: Sequence[str], max_failed: float, segments: int) -> None:
    """Logs each failed segment. Raises BadInput if there are more than a share of all."""
    failed = {name: [row for row in results_of(plan, [name]) if row["failed"]] for name in names}
    rows = [row for own in failed.values() for row in own]
    for row in rows:
        log.warning("Segment %s %s", shown(row["segment"]), row["reason"])
    if len(rows) > max_failed * segments:
        files = plan.files()
        for name in names:  # so that the task, if it is cleared, trains them again
            if failed[name]:
                files.remove(f"{files.root}/{name}")
        first = "; ".join(f"{shown(row['segment'])} {row['reason']}" for row in rows[:5])
        raise BadInput(
            f"{len(rows):,} of {segments:,} segments failed, more than max_failed={max_failed:g} allows: {first}"
        )


@dataclass(frozen=True)
class Choice:
    """The chosen strategy, None for the pooled model; and mean losses on held-out rows, its and the pooled model's."""

    strategy: Strategy | None
    reason: str
    loss: float
    pooled_loss: float

    @property
    def state(self) -> str:
        """Returns the state of the segment in the index."""
        return POOLED if self.strategy is None else self.strategy.state


def gain(pooled: np.ndarray, own: np.ndarray, sample: Sample) -> tuple[float, float]:
    """Returns the weighted mean of the paired differences of losses, above 0 if ``own`` is better, and its error.

    >>> gain(np.array([1.0, 2.0, 3.0, 2.0]), np.array([0.0, 1.0, 2.0, 1.0]), Sample())
    (1.0, 0.0)
    """
    differences, rows = pooled - own, sample.effective_rows(np.ones(len(own)))
    mean = float(np.average(differences, weights=sample.weights))
    spread = float(np.average(np.square(differences - mean), weights=sample.weights))
    return mean, math.sqrt(spread / (rows - 1)) if rows > 1 else math.inf


def choose(
    learner: Learner, rows: TrainingRows, pooled_by_fold: Mapping[int, Any], min_rows: int, standard_errors: float
) -> Choice:
    """Chooses on held-out rows, the same for all models.

    The pooled model stays unless another is better by more than ``standard_errors`` of the mean paired difference of
    their losses: of few rows, a difference must be large. Of those that pass, the one with the least loss is chosen.

    Args:
        learner: Trains the models.
        rows: Training rows of the segment.
        pooled_by_fold: A pooled model for each of the learner's folds, which has not learnt from it.
        min_rows: Training rows below which the pooled model stays; copies, and rows of unequal weight, count as fewer.
        standard_errors: As above.
    """
    folds = {fold: (rows.where(rows.folds != fold), rows.where(rows.folds == fold)) for fold in learner.folds}
    weights = np.concatenate([held.weights for _, held in folds.values()])
    inputs = np.unique(rows.matrix, axis=0, return_inverse=True)[1].reshape(-1)
    sample = Sample(rows.weights, copies=copies_of(rows.hashes, inputs))
    held_out = sample.where(np.concatenate([np.flatnonzero(rows.folds == fold) for fold in learner.folds]))
    if not len(weights):
        return Choice(None, "no training rows are held out", math.nan, math.nan)

    def losses(models: Mapping[int, Any]) -> np.ndarray:
        return np.concatenate([learner.losses(models[fold], held) for fold, (_, held) in folds.items()])

    pooled = losses(pooled_by_fold)
    pooled_loss = float(weights @ pooled / weights.sum())
    reason = ""
    if (enough := sample.effective_rows(np.ones(len(rows)))) < min_rows:
        alike = "" if round(enough) == len(rows) else f" (as {enough:.3g} different ones of equal weight)"
        reason = f"{len(rows)} training rows{alike}, fewer than {min_rows}"
    elif missing := learner.missing_classes(rows):
        reason = f"no row is of class {', '.join(map(str, missing))}"
    elif any(not len(others) or learner.missing_classes(others) for others, _ in folds.values()):
        reason = "no other model"  # equal rows are in the same fold
    if reason:
        return Choice(None, reason, pooled_loss, pooled_loss)
    nearest = best = Choice(None, "no other model", pooled_loss, pooled_loss)
    least = math.inf
    for strategy in learner.strategies:
        models = {fold: learner.fit(others, strategy, pooled_by_fold[fold]) for fold, (others, _) in folds.items()}
        if any(model is None for model in models.values()):
            continue
        better, error = gain(pooled, losses(models), held_out)
        words = (
            f"{strategy} is {better:+.3g} ± {error:.2g} better than the pooled model on {len(weights)} held-out rows"
        )
        loss = pooled_loss - better
        if loss < least:
            least, nearest = loss, Choice(None, words, pooled_loss, pooled_loss)
        if math.isfinite(loss) and better > standard_errors * error and (best.strategy is None or loss < best.loss):
            best = Choice(strategy, words, loss, pooled_loss)
    return nearest if best.strategy is None else best
