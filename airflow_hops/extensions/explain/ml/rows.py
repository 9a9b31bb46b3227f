"""Rows to explain, rows to compare them with, and models that predict them through their served graph."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.extensions.explain.core.explanation import ExplainedRow, Reason, ShapleyOptions
from airflow_hops.extensions.explain.ml.shapley import Array, Contributions, Explainer, Predict
from airflow_hops.extensions.explain.ml.tree_models import NotTrees, TreeModel
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.readers.vectors import split_dtype
from airflow_hops.ml.skew.attribution import dense_rows, predict
from airflow_hops.ml.statistics.sample import SAMPLE_FILE
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_REPORTS = 50


class CountedPredictions:
    """Reports the progress of a step by the predictions that its models have made.

    Args:
        context: The step.

    Attributes:
        planned: Number of predictions to make; 0 until it is known.
        made: Number of predictions that were made.
    """

    def __init__(self, context: StepContext) -> None:
        self._context, self.planned, self.made, self._next = context, 0, 0, 0

    def count(self, rows: int) -> None:
        """Counts predictions."""
        self.made += rows
        if self.planned and self.made >= self._next:
            self._context.progress(self.made / self.planned, f"{self.made:,} of {self.planned:,} predictions")
            self._next = self.made + self.planned // _REPORTS

    def of(self, model: ScoredModel) -> Predict:
        """Returns the predictions of a model, float64, counted; raises ``BadInput`` if one is not finite."""

        def counted(arrays: Mapping[str, Array]) -> Array:
            predicted: Array = predict(model, {name: arrays[name] for name in model.inputs})
            self.count(len(predicted))
            return predicted

        return counted


def explainer_of(
    context: StepContext,
    model: ScoredModel,
    options: ShapleyOptions,
    counted: CountedPredictions,
    background: Mapping[str, Array] | None = None,
) -> Explainer:
    """Returns the explainer of a model against a background, or that of the inputs, by its trees if it has some.

    Raises:
        BadInput: the background has no rows, or lacks an input of the model; or log-odds are asked for of a model that
            has no boosted trees.
    """
    background = background or _background(context, model.inputs, options.background_rows, options.seed)
    explainer = Explainer(counted.of(model), background, options.pairs, options.seed)
    try:
        of_background = explainer.background_predictions
        if options.log_odds and model.problem == REGRESSION:
            raise NotTrees("the model predicts no probability")
        explainer.trees = TreeModel(model, context.scratch, background, of_background, options.log_odds, counted.count)
    except NotTrees as error:
        if options.log_odds:
            raise BadInput(
                f"{model.path}: log_odds is True, but {error or 'the model is not an ONNX graph of boosted trees'}; "
                "leave log_odds out"
            ) from error
        if str(error) and not explainer.is_exact:
            log.info("The model has trees, but contributions are sampled: %s", error)
    return explainer


def check_tabular(model: ScoredModel, file: Path) -> tuple[str, ...]:
    """Returns the inputs of a model that have one number or text a row, after comparing all with a file's columns.

    Raises:
        BadInput: a column is missing or of another type, or the model has no such input.
    """
    check_columns(file, model.inputs, of="the model's signature")
    schema = scan.schema(file)
    others = {
        name: dtype if split_dtype(dtype)[1] is not None else "bytes"
        for name, dtype in model.inputs.items()
        if split_dtype(dtype)[1] is not None or _is_bytes(schema.field(name).type)
    }
    if len(others) == len(model.inputs):
        listed = ", ".join(f"{name!r} ({dtype})" for name, dtype in others.items())
        raise BadInput(
            f"{model.path}: its inputs are {listed}, vectors or bytes such as images; expected at least one input with "
            "a number or a text in each row, whose values can be reasons"
        )
    return tuple(name for name in model.inputs if name not in others)


def sampled_table(files: Sequence[Path], columns: Sequence[str], rows: int, seed: int, where: str) -> pa.Table:
    """Returns a uniform sample of rows, in their order; all of them if there are no more.

    Raises:
        BadInput: there are no rows, or a column is missing.
    """
    total = sum(scan.footer(file).num_rows for file in files)
    if not total:
        raise BadInput(f"{where}: there are no rows; expected at least one")
    chosen = np.arange(total)
    if total > rows:
        chosen = np.sort(np.random.default_rng(seed).choice(total, rows, replace=False))
    batches, offset = [], 0
    for file in files:
        for batch in scan.batches(file, columns):
            inside = chosen[(chosen >= offset) & (chosen < offset + batch.num_rows)] - offset
            offset += batch.num_rows
            if len(inside):
                batches.append(batch.take(pa.array(inside)))
    return pa.Table.from_batches(batches)


def _background(context: StepContext, inputs: Mapping[str, str], rows: int, seed: int) -> dict[str, Array]:
    """Returns raw features of a sample of the background: of its split ``train``, or else of its first one.

    The background is the input ``background``, statistics (whose sample monitors compare with) or examples, or else
    the input ``examples``.

    Raises:
        BadInput: it has no rows, or lacks an input of the model.
    """
    role = "background" if context.has_input("background") else "examples"
    artifact = context.input(role)
    split = _background_split(artifact)
    where = f"{role} {artifact.uri}, split {split!r}"
    if artifact.kind == "statistics":
        file = context.local(role) / split / SAMPLE_FILE
        if not file.exists():
            raise BadInput(f"{where}: there is no {SAMPLE_FILE}; make the statistics with sample_rows above 0")
        lacking = [name for name in inputs if name not in scan.schema(file).names]
        if lacking:
            raise BadInput(f"{where}: {SAMPLE_FILE} has no column {lacking[0]!r}, which the model takes")
        return dense_rows(sampled_table([file], list(inputs), rows, seed, where), inputs, where)
    files = example_files(context.local(role), split)
    for file in files:
        check_columns(file, inputs, of="the model's signature")
    return dense_arrays(sampled_table(files, list(inputs), rows, seed, where), inputs, where)


def _background_split(artifact: Artifact) -> str:
    """Returns the split of a background; raises ``BadInput`` if it has none."""
    splits = ExamplesProperties.of(artifact).splits
    if not splits:
        raise BadInput(f"{artifact.uri}: its properties name no splits; expected examples or statistics of a pipeline")
    return TRAIN if TRAIN in splits else splits[0]


def explained_row(
    key: str, class_name: str | None, of: Contributions, row: Mapping[str, Array], most: int
) -> ExplainedRow:
    """Returns the reasons of a row, the strongest first; ``most`` of them, and the sum of the others."""
    names = list(row)
    order = np.argsort(-np.abs(of.values), kind="stable")
    reasons = tuple(
        Reason(names[index], _as_text(row[names[index]][0]), float(of.values[index]), float(of.errors[index]))
        for index in order[:most]
    )
    return ExplainedRow(key, class_name, of.prediction, of.base, reasons, float(of.values[order[most:]].sum()))


def _as_text(value: object) -> str | None:
    """Returns a feature's value in words; None for a missing one."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")[:200] or None
    if isinstance(value, np.ndarray):
        return f"vector of {len(value)} numbers"
    return None if value != value else f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
