"""The step of the statistics stage."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.core.contract.properties import ExamplesProperties, StatisticsProperties
from airflow_hops.core.contract.sources import Source
from airflow_hops.ml.spark.context import start_spark_context_of
from airflow_hops.ml.statistics.files import STATISTICS_FILE, SUMMARY_FILE
from airflow_hops.ml.statistics.generate import (
    PERCENTILES,
    Collected,
    collect_statistics,
    comparable_options,
)
from airflow_hops.ml.statistics.summary import summarize
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.step.function import call_shipped

NOT_SAMPLED, NOT_READ = "not sampled", "in a file that cannot be read"


def run(
    context: StepContext,
    *,
    splits: Sequence[str] | None = None,
    source: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    options_function: Mapping[str, Any] | None = None,
    engine: Literal["local", "spark"] = "local",
    workers: int | None = None,
    on_corrupt: Literal["fail", "skip"] = "fail",
) -> Artifact:
    """The step: statistics of every split of an ``examples`` artifact, or of a source.

    The key column is left out: its values are unique, so that it has no distribution. The time column is in, since
    the span of the data is worth knowing; schemas and comparisons leave it aside.

    Args:
        context: The step's context; input ``examples``, unless there is a source; optionally ``schema``, for the
            options that need one.
        splits: Splits of the examples to look at; None for all.
        source: ``source`` (a Spark table's name, or the fields of a
            :class:`~airflow_hops.core.contract.sources.Source`), ``split``, and the columns ``label``, ``key`` and
            ``time``, or None for each.
        options: As in :func:`~airflow_hops.ml.statistics.options.options_from`.
        options_function: Instead, a shipped function that returns ``tfdv.StatsOptions``; see
            :func:`~airflow_hops.ml.step.function.call_shipped`.
        engine: ``local`` or ``spark``.
        workers: Processes; None for the choice of :func:`generate_statistics`.
        on_corrupt: Whether a file among others that cannot be read fails the step, or is left out.

    Raises:
        BadInput: a split is missing, has no rows, or cannot be read; or the options are none.
    """
    if engine == "spark":
        start_spark_context_of(context)
    stats_options = _stats_options(context, options, options_function)
    facts, sources = _source(source) if source else _examples(context, splits, engine)
    rows: dict[str, RowCounts] = {}
    metrics: dict[str, float] = {}
    skipped: dict[str, dict[str, str]] = {}
    with context.output() as writer:
        for number, (split, place) in enumerate(sources.items()):
            found = collect_statistics(
                place,
                options=stats_options,
                engine=engine,
                workers=workers,
                exclude=[facts.key or ""],
                on_corrupt=on_corrupt,
                progress=_progress(context, split, number, len(sources)),
            )
            _write(writer.path / split, split, found)
            rows[split] = _count_rows(context, split, found)
            metrics[f"{split}_rows"] = rows[split].rows_out
            if found.skipped:
                skipped[split] = dict(found.skipped)
            metrics["features"] = len(found.statistics.datasets[0].features)
        properties = replace(facts, splits=tuple(sources))
        if on_corrupt == "skip":
            properties = replace(properties, skipped_files=skipped)
            metrics["skipped_files"] = sum(map(len, skipped.values()))
        return writer.commit(rows=rows, metrics=metrics, properties=properties.to_dict())


def _stats_options(context: StepContext, options: Mapping[str, Any] | None, function: Mapping[str, Any] | None) -> Any:
    """TFDV's options, made by a function of the user's or from JSON, for statistics that can be compared."""
    schema = None
    if context.has_input("schema"):
        from airflow_hops.ml.schemas.files import SCHEMA_FILE, load_schema

        schema = load_schema(context.local("schema") / SCHEMA_FILE)
    from airflow_hops.ml.statistics.vector_sampling import with_vector_samples

    if function is None:
        if not options and schema is None:
            return comparable_options()
        from airflow_hops.ml.statistics.options import options_from

        return with_vector_samples(
            options_from({"num_quantiles_histogram_buckets": PERCENTILES, **(options or {})}, schema=schema)
        )
    import tensorflow_data_validation as tfdv

    made = call_shipped(context, **function)
    if not isinstance(made, tfdv.StatsOptions):
        raise BadInput(f"{function['function']}() returned a {type(made).__name__}, expected tfdv.StatsOptions")
    if made.schema is None:
        made.schema = schema
    return with_vector_samples(made)


def _source(source: Mapping[str, Any]) -> tuple[StatisticsProperties, dict[str, Any]]:
    """The facts of a source, and where its one split is."""
    place = source["source"]
    facts = StatisticsProperties(source.get("label"), source.get("key"), source.get("time"))
    return facts, {source["split"]: place if isinstance(place, str) else Source.from_value("source", place)}


def _examples(
    context: StepContext, splits: Sequence[str] | None, engine: str
) -> tuple[StatisticsProperties, dict[str, Any]]:
    """The facts of the examples, and where each split is.

    Spark's executors read a remote store themselves; else the files are brought here.
    """
    examples = context.input("examples")
    of = ExamplesProperties.of(examples)
    facts = StatisticsProperties(
        of.label, of.key, of.time, of.window, (), of.problem, of.classes, of.weight, of.more_labels
    )
    files = [Path(entry.path) for entry in context.store.manifest(examples.uri).files]
    folders = sorted({path.parts[0] for path in files if len(path.parts) > 1})
    names = list(splits or of.splits or folders)
    if not names:
        raise BadInput(f"{examples.uri}: no splits; expected folders of Parquet files (train, eval)")
    if missing := [name for name in names if name not in folders]:
        raise BadInput(f"{examples.uri}: there is no split {missing[0]!r}; it has {', '.join(folders) or 'none'}")
    if engine == "spark" and not context.store.is_local:
        storage = context.spec.storage_options
        return facts, {name: Source(f"{examples.uri}/{name}", storage_options=storage) for name in names}
    folder = context.local("examples")
    return facts, {name: folder / name for name in names}


def _progress(context: StepContext, split: str, number: int, count: int) -> Callable[[float], None]:
    return lambda share: context.progress((number + share) / count, f"statistics of {split}")


def _write(folder: Path, split: str, found: Collected) -> None:
    folder.mkdir(parents=True)
    (folder / STATISTICS_FILE).write_bytes(found.statistics.SerializeToString(deterministic=True))
    (folder / SUMMARY_FILE).write_text(json.dumps({"split": split, **summarize(found.statistics)}, indent=1))


def _count_rows(context: StepContext, split: str, found: Collected) -> RowCounts:
    """Rows of the split, those that statistics were computed of, and why of no more."""
    known = context.input("examples").rows.get(split) if context.has_input("examples") else None
    rows_in = known.rows_out if known else found.rows
    left_out = {NOT_SAMPLED: found.rows - found.sampled}
    if found.skipped:
        left_out[NOT_READ] = rows_in - found.rows
    rejected = {reason: rows for reason, rows in left_out.items() if rows}
    return RowCounts(rows_in, found.sampled, rejected).check(f"split {split!r}")
