"""Predicts all rows of examples in Spark's executors, with a trained or a deployed model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.errors import BadInput, InvalidArgument, MissingColumn
from airflow_hops.core.models.model_records import deployed_model
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.batch_predict.core import PredictionsProperties
from airflow_hops.extensions.batch_predict.ml.batches import (
    PredictionPlan,
    SignatureModel,
    empty_predictions,
    predict_part,
)
from airflow_hops.ml.metrics.scoring import BATCH_BLOBS, BATCH_ROWS
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File
from airflow_hops.ml.spark.pools import SplitSummary, count_rows, remove_leftovers, run_parts, step_pool, uploaded_files
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.transform.batches import plan_parts

log = logging.getLogger(__name__)


def run(
    context: StepContext,
    *,
    model_name: str | None = None,
    version: int | str = "champion",
    signature: str = "serving_default",
    splits: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    batch_rows: int | None = None,
) -> Artifact:
    """Writes the artifact ``predictions``.

    Parameters are those of ``BatchPredictOperator``. Inputs are ``examples`` and, unless ``model_name`` is set,
    ``model``.

    Raises:
        BadInput: a value is invalid, model and examples do not match, or the model does not exist.
        HopsError: Spark failed.
    """
    _check_values(splits, columns)
    properties = ExamplesProperties.of(context.input("examples"))
    if model_name is None:
        model, number = context.input("model"), None
    else:
        model, number = deployed_model(context.store, model_name, version)
    folder_of_model = model_folder(context.store, model)
    trained = ModelProperties.of(context.store.manifest(model.uri))
    paths = [PurePosixPath(entry.path) for entry in context.store.manifest(context.input("examples").uri).files]
    there = sorted({path.parts[0] for path in paths if len(path.parts) == 2 and path.suffix == ".parquet"})
    result = list(splits) if splits is not None else list(properties.splits or there)
    with step_pool(context) as pool, context.output(model=model) as writer:
        files = pool.splits(context, "examples", result)
        loaded = SignatureModel(folder_of_model, signature)
        retained = tuple(columns) if columns is not None else tuple(filter(None, [properties.key]))
        _check(loaded, files, retained)
        context.progress(0.1, f"{signature} of {model.uri}: {len(loaded.inputs)} inputs to {', '.join(loaded.outputs)}")
        schema = scan.schema(next(those[0] for those in files.values()))
        has_bytes = any(pa.types.is_binary(field.type) for field in schema)
        rows_at_once = batch_rows or (BATCH_BLOBS if has_bytes else BATCH_ROWS)
        folder = pool.folder(context, writer)
        plan = PredictionPlan(model, context.store, signature, folder, retained, rows_at_once)
        parts = plan_parts([(split, file) for split, those in files.items() for file in those])
        summaries = run_parts(pool, predict_part, plan, parts, SplitSummary, context.progress)
        writer.add(uploaded_files(summaries))
        for split, those in files.items():
            if not any(summary.rows for summary in summaries if summary.split == split):
                (writer.path / split).mkdir(parents=True, exist_ok=True)
                write_parquet(empty_predictions(loaded, plan, those[0]), writer.path / split / "part-00000.parquet")
            remove_leftovers(writer.path / split)
        counts = count_rows(files, summaries)
        not_finite = _warn_of_not_finite(summaries)
        return writer.commit(
            rows=counts,
            metrics={
                "rows": sum(count.rows_out for count in counts.values()),
                **{f"not_finite_rows_{name}": float(rows) for name, rows in not_finite.items()},
            },
            properties=PredictionsProperties(
                model=model.uri,
                model_fingerprint=model.fingerprint,
                model_name=model_name,
                version=number,
                signature=signature,
                splits=tuple(result),
                columns=retained,
                outputs={name: "string" if d.kind == "O" else d.name for name, (d, _) in loaded.outputs.items()},
                key=properties.key,
                window=properties.window,
                problem=trained.problem,
                classes=trained.classes,
                more_labels=trained.more_labels,
            ).to_dict(),
        )


def _check_values(splits: Sequence[str] | None, columns: Sequence[str] | None) -> None:
    if splits is not None and not splits:
        raise BadInput("splits is []; expected at least one, or None for all")
    for name, values in (("splits", splits or ()), ("columns", columns or ())):
        if isinstance(values, str) or len(set(values)) != len(values):
            raise InvalidArgument(name, values, "; expected a list of names, each once")


def _check(model: SignatureModel, files: Mapping[str, Sequence[File]], columns: Sequence[str]) -> None:
    both = [name for name in columns if name in model.outputs]
    if both:
        raise BadInput(f"columns name {both[0]!r}, which is an output of the model too; leave it out")
    for file in (file for those in files.values() for file in those):
        model.check(file)
        names = scan.schema(file).names
        for name in columns:
            if name not in names:
                raise MissingColumn(file, name, f", which columns name; there are {', '.join(names)}")


def _warn_of_not_finite(summaries: Sequence[SplitSummary]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for summary in summaries:
        for name, rows in summary.not_finite.items():
            totals[name] = totals.get(name, 0) + rows
    for name, rows in totals.items():
        log.warning("output %r is NaN or infinite in %d rows", name, rows)
    return totals
