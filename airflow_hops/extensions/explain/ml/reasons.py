"""Writes the strongest reasons of each prediction: Shapley values of raw features, in the order of the rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import deployed_model
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.explain.core.explanation import ExplainedRow, ReasonsProperties, ShapleyOptions
from airflow_hops.extensions.explain.ml.rows import (
    CountedPredictions,
    check_tabular,
    explained_row,
    explainer_of,
)
from airflow_hops.extensions.explain.ml.shapley import single_rows
from airflow_hops.ml.features.raw_features import dense_arrays
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_BATCH_ROWS = 1000


def run(
    context: StepContext,
    *,
    model_name: str | None = None,
    version: int | str = "champion",
    splits: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    reasons: int = 5,
    **options: Any,
) -> Artifact:
    """Writes the artifact ``reasons``.

    Parameters are those of ``ReasonsOperator``. Inputs are ``examples``, unless ``model_name`` is set ``model``, and
    optionally ``background``.

    Raises:
        BadInput: model, examples and background do not match, the model has no tabular input, or more predictions are
            needed than allowed.
    """
    shapley = ShapleyOptions(**options)
    examples = context.input("examples")
    properties = ExamplesProperties.of(examples)
    if model_name is None:
        artifact = context.input("model")
    else:
        artifact, _ = deployed_model(context.store, model_name, version)
    model = ScoredModel(model_folder(context.store, artifact))
    classes = ModelProperties.of(context.store.manifest(artifact.uri)).classes or properties.classes
    if model.classes is not None and (classes is None or len(classes) != model.classes):
        classes = tuple(map(str, range(model.classes)))
    chosen = list(splits) if splits is not None else list(properties.splits)
    if not chosen:
        raise BadInput(f"{examples.uri}: there are no splits to explain; name some in splits")
    files = {split: example_files(context.local("examples"), split) for split in chosen}
    retained = list(dict.fromkeys(columns)) if columns is not None else list(filter(None, [properties.key]))
    for file in (file for those in files.values() for file in those):
        check_tabular(model, file)
        names = scan.schema(file).names
        if lacking := [name for name in retained if name not in names]:
            raise BadInput(f"columns name {lacking[0]!r}, which {file} does not have; it has {', '.join(names)}")
    counts = {split: sum(scan.footer(file).num_rows for file in those) for split, those in files.items()}
    counted = CountedPredictions(context)
    explainer = explainer_of(context, model, shapley, counted)
    rows, each = sum(counts.values()), explainer.predictions_per_row
    factors = (
        f"{rows:,} rows × {each:,} for {len(explainer.features)} features and {explainer.background_rows} rows of the "
        f"background{', by trees' if explainer.trees else ''}"
    )
    counted.planned = counted.made + rows * each
    shapley.check_cost(counted.planned, factors)
    log.info("%s predictions: %s", f"{counted.planned:,}", factors)
    number = min(reasons, len(explainer.features))
    taken = {*_fields(number, has_classes=True)} & {*retained}
    if taken:
        raise BadInput(f"columns name {min(taken)!r}, which is a column of the reasons too; leave it out")
    worst = 0.0
    inputs = {} if model_name is None else {"model": artifact}
    with context.output(**inputs) as writer:
        for split, those in files.items():
            (writer.path / split).mkdir(parents=True)
            parts = [scan.schema(those[0]).empty_table().select(retained)]
            described: list[Mapping[str, Any]] = []
            for file in those:
                for batch in scan.batches(file, [*model.inputs, *retained], rows=_BATCH_ROWS):
                    parts.append(pa.Table.from_batches([batch]).select(retained))
                    arrays = dense_arrays(batch, model.inputs, str(file))
                    for row, explained in zip(single_rows(arrays), explainer.explain(arrays), strict=True):
                        gap = explained.base + explained.values.sum() - explained.prediction
                        worst = max(worst, abs(float(gap)))
                        class_name = classes[explained.output] if classes else None
                        described.append(_columns(explained_row("", class_name, explained, row, number)))
            joined = pa.concat_tables(parts)  # without columns, it has no rows either
            fields = _fields(number, has_classes=model.classes is not None)
            values = {name: pa.array([each[name] for each in described], kind) for name, kind in fields.items()}
            table = pa.table({**dict(zip(retained, joined.columns, strict=True)), **values})
            write_parquet(table, writer.path / split / "part-00000.parquet")
        return writer.commit(
            rows={split: RowCounts(count, count) for split, count in counts.items()},
            metrics={"rows": float(rows), "predictions": float(counted.made), "largest_gap": worst},
            properties=ReasonsProperties(
                model=artifact.uri,
                model_fingerprint=artifact.fingerprint,
                splits=tuple(chosen),
                columns=tuple(retained),
                reasons=number,
                background_rows=explainer.background_rows,
                is_exact=explainer.is_exact,
                log_odds=shapley.log_odds,
            ).to_dict(),
        )


def _fields(number: int, *, has_classes: bool) -> dict[str, pa.DataType]:
    """Returns the columns of the reasons, with their types."""
    kinds = {"reason": pa.string(), "value": pa.string(), "contribution": pa.float64(), "error": pa.float64()}
    strongest = {f"{name}_{rank}": kind for rank in range(1, number + 1) for name, kind in kinds.items()}
    of_class = {"class": pa.string()} if has_classes else {}
    return {"prediction": pa.float64(), **of_class, "base": pa.float64(), **strongest, "rest": pa.float64()}


def _columns(row: ExplainedRow) -> dict[str, object]:
    """Returns the values of the columns of one row."""
    columns: dict[str, object] = {
        "prediction": row.prediction,
        "class": row.class_name,
        "base": row.base,
        "rest": row.rest,
    }
    for rank, reason in enumerate(row.reasons, 1):
        facts = reason.feature, reason.value, reason.contribution, reason.error
        columns |= zip([f"{name}_{rank}" for name in ("reason", "value", "contribution", "error")], facts, strict=True)
    return columns
