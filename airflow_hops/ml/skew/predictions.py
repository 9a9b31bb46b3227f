"""Drift of a model's predictions, which also change if features change together, each within its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.distances.decide import Judged, decide
from airflow_hops.ml.distances.report import FeatureSkew
from airflow_hops.ml.distances.sides import alike
from airflow_hops.ml.distances.windows import OwnWindow, compare_windows
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.skew.attribution import dense_rows, predict
from airflow_hops.ml.skew.feature_rows import FeatureRows

if TYPE_CHECKING:
    from airflow_hops.ml.metrics.scoring import ScoredModel

PREDICTION = "prediction"
OUTPUT = "output."
"""Prefix of a prediction's column in captured rows."""


def compare_predictions(
    model: ScoredModel,
    reference: pa.Table,
    current: pa.Table,
    test: SkewTest,
    *,
    windows: OwnWindow | None = None,
    classes: Sequence[str] | None = None,
) -> FeatureSkew:
    """Compares a model's predictions for two samples of rows like a feature.

    Args:
        model: The model.
        reference: Sample of its training data.
        current: Sample of the current rows.
        test: Options of the test.
        windows: Windows of the training data to compare with, if rows depend on the time.
        classes: Names of the model's classes, if there are several: the likeliest one is compared.

    Raises:
        BadInput: a side lacks an input of the model or has no rows, or a prediction is not finite.
    """
    sides = []
    for side, sample in (("reference", reference), ("current", current)):
        predicted: Any = predict(model, dense_rows(sample, model.inputs, side))
        if predicted.ndim == 2:
            likeliest = predicted.argmax(axis=1).tolist()
            predicted = pa.array([str(number) if classes is None else classes[number] for number in likeliest])
        table = pa.table({PREDICTION: predicted})
        if windows is not None and windows[0] in sample.column_names:
            table = table.append_column(windows[0], sample[windows[0]])
        sides.append(table)
    return _compare(sides, test, windows)


def compare_captured(reference: pa.Table, rows: FeatureRows, test: SkewTest) -> FeatureSkew:
    """Compares captured predictions with those in the reference, for a model that only its endpoint has.

    Args:
        reference: Sample of the reference; its predictions are columns ``output.<name>``. The first is compared, of
            several numbers the position of the greatest.
        rows: The current rows.
        test: Options of the test.

    Raises:
        BadInput: the reference or the current rows have no predictions.
    """
    name = next((name for name in reference.column_names if name.startswith(OUTPUT)), None)
    if name is None:
        raise BadInput("only the endpoint has the model, and its predictions are not captured")
    sides = []
    for sample in (reference, replace(rows, prefix="").sample([name])):
        column = sample[name]
        if is_list(column.type):
            column = pa.array(
                [None if not row else str(max(range(len(row)), key=row.__getitem__)) for row in column.to_pylist()]
            )
        sides.append(pa.table({PREDICTION: column}))
    return _compare(sides, test, None)


def _compare(sides: Sequence[pa.Table], test: SkewTest, windows: OwnWindow | None) -> FeatureSkew:
    nearest = {} if windows is None else compare_windows(windows, sides[0], sides[1], {PREDICTION: None})[0]
    read = partial(alike, sides, PREDICTION, width=None, seed=test.seed)
    judged = Judged.of(read, test.threshold, test.seed, nearest=nearest.get(PREDICTION, {}))
    return decide({PREDICTION: judged}, test)[PREDICTION]
