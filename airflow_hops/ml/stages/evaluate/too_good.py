"""Warns of results that are too good, most often because a feature is known only with the label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.contract.target import BINARY, MULTICLASS, Problem
from airflow_hops.ml.metrics.metrics import Metrics
from airflow_hops.ml.monitoring.leakage import TELLS, score_alone

WARNING = "warning: "
"""Prefix of reasons that are warnings."""

_FEWEST_ROWS = 100
_FEWEST_OF_CLASS = 10
_MOST_NAMED = 5


def warn_if_too_good(
    problem: Problem, split: str, metrics: Metrics, files: Sequence[Path], label: str, features: Sequence[str]
) -> list[str]:
    """Returns a warning if a model's main metric is at least ``TELLS``, naming the features that reach it alone."""
    name = {BINARY: "auc", MULTICLASS: "accuracy"}.get(problem, "r2")
    value = metrics.value(name)
    few = metrics.rows < _FEWEST_ROWS
    if problem == BINARY:
        positives = int(metrics.value("positives") or 0)
        few |= min(positives, metrics.rows - positives) < _FEWEST_OF_CLASS
    if value is None or value < TELLS or few:
        return []
    alone = _features_that_tell(problem, files, label, features)
    which = (
        f"{', '.join(map(repr, alone[:_MOST_NAMED]))} alone predict{'s' * (len(alone) == 1)} the label: leave out what "
        "is not known when a prediction is asked for"
        if alone
        else "check that no feature is known only with the label, and that no rows of training are among these"
    )
    return [f"{WARNING}{split}: {name} {value:.4f} is too good to be true of most tasks; {which}"]


def _features_that_tell(problem: Problem, files: Sequence[Path], label: str, features: Sequence[str]) -> list[str]:
    table = pa.concat_tables([pq.read_table(file, columns=[label, *features]) for file in files])
    scores = {}
    for name in features:
        kind = table.schema.field(name).type
        if pa.types.is_string(kind) or pa.types.is_primitive(kind):
            scores[name] = score_alone(table.column(name), table.column(label), problem) or 0.0
    return sorted((name for name, score in scores.items() if score >= TELLS), key=lambda name: -scores[name])
