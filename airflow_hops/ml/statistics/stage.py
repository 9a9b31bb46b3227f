"""Computes statistics of examples or of a source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, StatisticsProperties
from airflow_hops.core.errors import ArtifactNotFound, BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.spark.context import local_master, start_spark_context
from airflow_hops.ml.statistics.files import STATISTICS_FILE, SUMMARY_FILE
from airflow_hops.ml.statistics.generate import PERCENTILES, collect_statistics
from airflow_hops.ml.statistics.pages import write_page
from airflow_hops.ml.statistics.sample import SAMPLE_ROWS, write_sample
from airflow_hops.ml.statistics.summary import summarize
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.step.function import call_shipped

NOT_SAMPLED = "not sampled"


def run(
    context: StepContext,
    *,
    splits: Sequence[str] | None = None,
    source: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    options_function: Mapping[str, object] | None = None,
    engine: Literal["auto", "local", "spark"] = "local",
    processes: int | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> Artifact:
    """Computes statistics of every split of an ``examples`` artifact, or of a source, and draws a sample of its rows.

    The key column is left out: its values are unique, so it has no distribution. The time column is included to show
    the span of the data; schemas and comparisons ignore it.

    Parameters are those of ``StatisticsOperator``; ``source`` has its columns, too. ``options_function`` is a shipped
    function that returns ``tfdv.StatsOptions``: :func:`~airflow_hops.ml.step.function.call_shipped`. Inputs are
    ``examples``, unless there is a source, and ``schema``, for options that need one.

    Raises:
        BadInput: a split is missing, empty or unreadable; or the options are invalid.
    """
    if engine == "auto":
        engine = "spark" if local_master("local[*]") is None else "local"
    if engine == "spark":
        start_spark_context(context)
    stats_options = _stats_options(context, options, options_function)
    if source:
        place = source["source"]
        facts = StatisticsProperties(source.get("label"), source.get("key"), source.get("time"))
        if not isinstance(place, str):
            (place,) = context.sources({"source": Source.from_value("source", place)}).values()
        sources = {source["split"]: place}
    else:
        facts, sources = _examples(context, splits, engine)
    rows: dict[str, RowCounts] = {}
    metrics: dict[str, float] = {}
    with context.output() as writer:
        for number, (split, place) in enumerate(sources.items()):

            def report(share: float, number: int = number, split: str = split) -> None:
                context.progress((number + share) / len(sources), f"statistics of {split}")

            collected = collect_statistics(
                place,
                options=stats_options,
                engine=engine,
                processes=processes,
                exclude=[facts.key or ""],
                progress=report,
                sample_rows=sample_rows,
            )
            statistics = collected.statistics
            folder = writer.path / split
            folder.mkdir(parents=True)
            (folder / STATISTICS_FILE).write_bytes(statistics.SerializeToString(deterministic=True))
            (folder / SUMMARY_FILE).write_text(json.dumps({"split": split, **summarize(statistics)}, indent=1))
            if collected.sample is not None:
                write_sample(collected.sample, folder)
            write_page(folder, statistics, collected.sample, collected.sampled)
            known = context.input("examples").rows.get(split) if context.has_input("examples") else None
            rows_in = known.rows_out if known else collected.rows
            rejected = {}
            if collected.rows > collected.sampled:
                rejected[NOT_SAMPLED] = collected.rows - collected.sampled
            rows[split] = RowCounts(rows_in, collected.sampled, rejected).check(f"split {split!r}")
            metrics[f"{split}_rows"] = collected.sampled
            metrics["features"] = len(statistics.datasets[0].features)
        properties = replace(facts, splits=tuple(sources))
        return writer.commit(rows=rows, metrics=metrics, properties=properties.to_dict())


def _stats_options(context: StepContext, options: Mapping[str, Any] | None, function: Mapping[str, Any] | None) -> Any:
    """Returns TFDV's options from the user's function or from JSON."""
    schema = None
    if context.has_input("schema"):
        from airflow_hops.ml.schema_files import SCHEMA_FILE, load_schema

        schema = load_schema(context.local("schema") / SCHEMA_FILE)
    if function is None:
        from airflow_hops.ml.statistics.options import options_from

        return options_from({"num_quantiles_histogram_buckets": PERCENTILES, **(options or {})}, schema=schema)
    import tensorflow_data_validation as tfdv

    made = call_shipped(context, **function)
    if not isinstance(made, tfdv.StatsOptions):
        raise BadInput(f"{function['function']}() returned a {type(made).__name__}, expected tfdv.StatsOptions")
    if made.schema is None:
        made.schema = schema
    return made


def _examples(
    context: StepContext, splits: Sequence[str] | None, engine: str
) -> tuple[StatisticsProperties, dict[str, object]]:
    """Returns facts of the examples, and the place of each split; Spark's executors read a remote store themselves."""
    examples = context.input("examples")
    properties = ExamplesProperties.of(examples)
    facts = StatisticsProperties(
        properties.label,
        properties.key,
        properties.time,
        properties.window,
        (),
        properties.problem,
        properties.classes,
        properties.weight,
        properties.more_labels,
        warnings=properties.warnings,
    )
    files = [Path(entry.path) for entry in context.store.manifest(examples.uri).files]
    folders = sorted({path.parts[0] for path in files if len(path.parts) > 1})
    names = list(splits or properties.splits or folders)
    if not names:
        raise BadInput(f"{examples.uri}: no splits; expected folders of Parquet files (train, eval)")
    if missing := [name for name in names if name not in folders]:
        raise ArtifactNotFound(f"{examples.uri}/{missing[0]}").with_text(
            f"{examples.uri}: there is no split {missing[0]!r}; it has {', '.join(folders) or 'none'}"
        )
    if engine == "spark" and not context.store.is_local:
        storage = context.spec.storage_options
        return facts, {name: Source(f"{examples.uri}/{name}", storage_options=storage) for name in names}
    folder = context.local("examples")
    return facts, {name: folder / name for name in names}
