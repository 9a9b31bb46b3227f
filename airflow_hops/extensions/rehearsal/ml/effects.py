"""Effects of faults that slip through: on predictions, and on the metric of labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.properties import ENDPOINT, ModelProperties
from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput, DamagedArtifact
from airflow_hops.core.metrics import LOWER_IS_BETTER
from airflow_hops.core.performance import PerformanceOptions, PerformanceProperties
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.extensions.rehearsal.ml.faults import Fault, Target
from airflow_hops.ml.metrics.class_names import CANDIDATE, class_names
from airflow_hops.ml.metrics.judging import METRICS, Judge
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.performance.join import Predictions
from airflow_hops.ml.performance.versions import US, Version, examples_of, held_out, measure_whole, with_baseline
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.skew.attribution import dense_rows, predict
from airflow_hops.ml.skew.trained import Trained

ROWS = 2_000
"""Rows that are scored for each fault."""
_LABELLED = 20_000
"""Labelled rows of which flips are measured."""


@dataclass(frozen=True)
class Labelled:
    """Labelled held-out rows of the training.

    Attributes:
        rows: The model's inputs.
        labels: Values, or numbers of classes, ``[rows]``.
        judge: Problem, metric and classes.
        version: The version with its baseline.
    """

    rows: pa.Table
    labels: Array
    judge: Judge
    version: Version


class Effects:
    """Scores planted rows with the served model.

    Args:
        trained: The model.
        rows: Unchanged rows, scored unless there are labelled ones.

    Attributes:
        problem: Kind of problem; empty if the model cannot be scored here.
        notes: Why parts are not known.
    """

    def __init__(self, trained: Trained, rows: pa.Table) -> None:
        self.problem, self.notes = "", list[str]()
        self.labelled: Labelled | None = None
        self._served: Any = None
        properties = ModelProperties.of(trained.model)
        if properties.format == ENDPOINT:
            self.notes.append("Only the endpoint has the model: what slips through is not known")
            return
        try:
            self._served = trained.model_served()
            self.problem = self._served.problem
        except (BadInput, DamagedArtifact) as error:
            self.notes.append(f"What slips through is not known: {error}")
            return
        try:
            self.labelled = _labelled(trained, self._served, properties)
        except (BadInput, DamagedArtifact) as error:
            self.notes.append(f"The loss of the metric is not known: {error}")
        self.rows = rows if self.labelled is None else self.labelled.rows
        self.rows = self.rows.slice(0, ROWS)
        try:
            self._predicted: Any = self._predict(self.rows)
        except BadInput as error:
            self._served = None
            self.notes.append(f"What slips through is not known: {error}")

    @property
    def metric(self) -> str:
        """Returns the metric of :meth:`of`; empty if it is not known."""
        return "" if self.labelled is None or self._served is None else self.labelled.judge.metric

    @property
    def spread(self) -> float | None:
        """Returns the standard deviation of predictions, of several classes the largest; None if not known."""
        return None if self._served is None else float(np.max(self._predicted.std(axis=0)))

    def of(self, fault: Fault, size: float) -> tuple[float | None, float | None]:
        """Returns the mean absolute change of a prediction by a fault, and the change of the metric; None if unknown.

        A change of the metric below 0 is a loss, whichever metric it is.
        """
        if self._served is None:
            return None, None
        order = np.random.default_rng(0).permutation(len(self.rows))
        columns = fault.plant(Target(self.rows, self.rows.take(pa.array(order)), order), size)
        changed = self.rows
        for name, column in columns.items():
            if name in changed.column_names:
                changed = changed.set_column(changed.column_names.index(name), name, column)
        try:
            predicted: Any = self._predict(changed)
        except BadInput:  # the model refuses such rows, so that nothing slips through
            return None, None
        moved = np.abs(predicted - self._predicted)
        effect = float(moved.mean() if moved.ndim == 1 else moved.sum(axis=1).mean() / 2)
        return effect, self._loss(predicted)

    def _predict(self, rows: pa.Table) -> Any:
        columns = {name: _as_sent(rows[name]) for name in rows.column_names}
        return predict(self._served, dense_rows(pa.table(columns), self._served.inputs, "planted rows"))

    def _loss(self, predicted: Array) -> float | None:
        if self.labelled is None:
            return None
        judge, labels = self.labelled.judge, self.labelled.labels[: len(predicted)]
        both = [
            judge.figures(labels, each, None, detailed=False).value(judge.metric)
            for each in (self._predicted, predicted)
        ]
        if both[0] is None or both[1] is None or not np.isfinite(both).all():  # type: ignore[arg-type]  # no None is left
            return None
        return float(both[1] - both[0]) * (-1 if judge.metric in LOWER_IS_BETTER else 1)

    def measured(
        self, watching: Performance | None, rows: int, share: float, number: int
    ) -> PerformanceProperties | None:
        """Returns what would be measured of drawn labelled rows, a share of whose labels has flipped.

        A flipped label is that of another class; in a regression that of another row.
        """
        if self.labelled is None or self._served is None:
            return None
        random = np.random.default_rng([number, rows])
        chosen = random.integers(0, len(self.labelled.labels), rows)
        labels, ranks = self.labelled.labels[chosen].astype(float), random.permutation(rows)
        flipped = ranks < round(share * rows)
        if self.labelled.judge.problem == REGRESSION:
            labels[flipped] = random.permutation(labels)[flipped]
        else:
            classes = self._predicted.shape[1] if self._predicted.ndim > 1 else 2
            labels[flipped] = (labels[flipped] + 1 + ranks[flipped] % (classes - 1)) % classes
        outputs = self._scores[chosen]
        predictions = Predictions(np.zeros(rows, np.int64), outputs, labels)
        window_s = watching.window.total_seconds() if watching is not None and watching.window else 1.0
        options = PerformanceOptions("rehearsal", estimates=False)
        result = measure_whole(options, round(window_s * US), self.labelled.version, predictions, 0)
        return PerformanceProperties("rehearsal", self.problem, self.metric, "", result.end, (result,))

    @property
    def _scores(self) -> Array:
        if not hasattr(self, "_all"):
            assert self.labelled is not None
            self._all: Any = self._predict(self.labelled.rows)
        return np.asarray(self._all)


def _as_sent(column: Any) -> Any:
    """Returns a column as clients send it: a missing number is NaN, as far as the type has it."""
    return pc.fill_null(column, float("nan")) if pa.types.is_floating(column.type) else column


def _labelled(trained: Trained, served: Any, properties: ModelProperties) -> Labelled:
    """Reads labelled held-out rows. Raises BadInput if there are none."""
    examples = examples_of(trained.store, trained.model, properties)
    split, target, _ = held_out(trained.store, properties, examples)
    names = class_names({CANDIDATE: served}, {CANDIDATE: properties}, target)
    files = example_files(trained.store.local(examples), split)
    wanted = [*dict.fromkeys([*served.inputs, *trained.types])]
    known = scan.schema(next(iter(files))).names
    table = scan.table(files, [*(name for name in wanted if name in known), target.label])
    table = table.take(pa.array(np.random.default_rng(0).permutation(len(table))[:_LABELLED]))
    labels = table[target.label].to_numpy()
    if served.problem != REGRESSION:
        labels = names.numbers(labels)
        table, labels = table.filter(pa.array(labels >= 0)), labels[labels >= 0]
    judge = Judge(served.problem, METRICS[served.problem].metric, names.of_candidate)
    version = with_baseline(trained.store, int(trained.origin.version or 0), served, properties, examples)
    return Labelled(table.drop([target.label]), labels, judge, version)
