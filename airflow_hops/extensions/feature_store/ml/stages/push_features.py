"""Pushes rows to a push source of the feature store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
from feast import FeatureStore, FeatureView, PushSource

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.extensions.feature_store.core.stored_features import PushProperties
from airflow_hops.extensions.feature_store.ml.repository import check_definitions, keep_newer_values, open_repository
from airflow_hops.ml.readers import scan
from airflow_hops.ml.step.context import StepContext

_BATCH_ROWS = 100_000


def run(context: StepContext, *, repository: str, push_source: str, table: str | None = None, to: str) -> Artifact:
    """Pushes the rows of a snapshot's table, or of all splits of examples, to the online or offline store, or both.

    Parameters are those of ``PushFeaturesOperator``. Inputs are ``rows`` and, optionally, ``definitions``.

    Raises:
        BadInput: the push source is unknown, or the rows lack a column of a view, or a key or time.
    """
    folder = context.local("rows")
    files = sorted(folder.glob(f"{table or '*'}/*.parquet"))
    if not files:
        there = sorted({file.parent.name for file in folder.glob("*/*.parquet")})
        raise InvalidArgument("table", table, f"; the artifact has {', '.join(there) or 'no rows'}")
    rows = sum(scan.footer(file).num_rows for file in files)
    pushed = 0
    with open_repository(repository) as (store, _), contextlib.redirect_stdout(sys.stderr):
        check_definitions(context, store)
        views = _check(store, push_source, scan.schema(files[0]).names)
        _check_nulls(views, files)
        keep_newer_values(store)
        times = list(dict.fromkeys(column for view in views for column in _times(view)))
        for file in files:
            for batch in scan.batches(file, rows=_BATCH_ROWS):
                # An SQLite store keeps the last row for each key and second.
                frame = batch.to_pandas(integer_object_nulls=True).sort_values(times, kind="stable", ignore_index=True)
                try:
                    for view in views:
                        if to != "offline":
                            store._get_provider().ingest_df(view, frame)  # push() leaves out batches of nulls
                        if to != "online":
                            store.write_to_offline_store(view.name, frame)
                except (ValueError, TypeError) as error:
                    raise BadInput(f"push source {push_source!r} does not take the rows: {error}") from error
                pushed += len(batch)
                context.progress(pushed / max(rows, 1), f"{pushed} of {rows} rows are pushed")
    with context.output() as writer:
        return writer.commit(
            rows={push_source: RowCounts(rows, pushed)},
            properties=PushProperties(push_source, to, tuple(view.name for view in views)).to_dict(),
        )


def _check(store: FeatureStore, push_source: str, columns: list[str]) -> list[FeatureView]:
    """Returns the views of a push source; the rows must have all their columns."""
    sources = [source.name for source in store.list_data_sources() if isinstance(source, PushSource)]
    if push_source not in sources:
        raise InvalidArgument("push_source", push_source, f"; the registry has {', '.join(sorted(sources)) or 'none'}")
    views = [
        view
        for view in store.list_feature_views()
        if view.stream_source is not None and view.stream_source.name == push_source
    ]
    for view in views:
        needed = [*view.join_keys, *(field.name for field in view.features), *_times(view)]
        if missing := [column for column in needed if column not in columns]:
            raise BadInput(f"view {view.name!r} needs the column {missing[0]!r}; the rows have {', '.join(columns)}")
    return sorted(views, key=lambda view: view.name)


def _check_nulls(views: Sequence[FeatureView], files: Sequence[Path]) -> None:
    """Raises BadInput if a key or time is null."""
    columns = {column: view.name for view in views for column in (*view.join_keys, *_times(view))}
    for file in files:
        table = scan.table([file], list(columns))
        for column, view in columns.items():
            is_null = pc.is_null(table[column], nan_is_null=True)
            if (row := is_null.index(True).as_py()) >= 0:
                raise BadInput(
                    f"{file.parent.name}/{file.name}, row {row + 1}: column {column!r}, a key or time of view "
                    f"{view!r}, is null; remove such rows before they are pushed"
                )


def _times(view: FeatureView) -> list[str]:
    source = view.batch_source
    return [column for column in (source.timestamp_field, source.created_timestamp_column) if column]
