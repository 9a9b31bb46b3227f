"""Adds the feature store's values at the time of each example.

The join is correct at each point in time, and runs on the engine of the repository's offline store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from feast import FeatureStore, FeatureView
from feast.errors import FeastError

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.feature_store.core.stored_features import StoredFeature, StoredFeatures
from airflow_hops.extensions.feature_store.ml.repository import (
    ViewFeatures,
    check_definitions,
    definitions_of,
    key_types,
    open_repository,
    select,
    ttl_seconds,
)
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext

_SOURCE_ERRORS: tuple[type[Exception], ...] = (FeastError, OSError, KeyError, pa.ArrowException)
try:
    from duckdb import Error as DuckDBError
except ModuleNotFoundError:  # an environment with another engine
    pass
else:
    _SOURCE_ERRORS += (DuckDBError,)

ROW = "hops_row"
TIME = "event_timestamp"
_EXACT_IN_FLOAT = 2**53
_TYPES = {
    "Int32": pa.int64(),
    "Int64": pa.int64(),
    "Bool": pa.int64(),
    "UnixTimestamp": pa.int64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
}
_VECTORS = {"Array(Float32)": pa.list_(pa.float32()), "Array(Float64)": pa.list_(pa.float64())}


def join(
    store: FeatureStore,
    rows: pd.DataFrame,
    selected: Sequence[ViewFeatures],
    time: str,
    *,
    as_created: bool = True,
    on_view: Callable[[int], None] = lambda done: None,
) -> pd.DataFrame:
    """Returns the values of features at the time of each row, with the rows' index; a missing value is null.

    Rows are joined with distinct keys and times, and with Feast 0.67's Dask engine each view by itself: it drops rows
    that have the same key and time, and, in all views, a row for which one view has values but none at that time.

    Args:
        store: The feature store.
        rows: Rows with the columns of the keys; the caller checks that there are all.
        selected: The features.
        time: Column of the row's time, integer seconds since the epoch.
        as_created: Whether to leave out values that were created after the row's time.
        on_view: Called with the number of views that are done.

    Returns:
        Columns ``<view>__<feature>``.

    Raises:
        BadInput: a key is of another type, a source cannot be read, or Dask would join values with created timestamps.
    """
    engine = store.config.offline_store.type
    created = next((each.view.name for each in selected if each.view.batch_source.created_timestamp_column), None)
    if engine in ("dask", "file") and created is not None:
        # It sorts by the created timestamp first and then, unstably, by the event's.
        raise BadInput(
            f"view {created!r}: its source has a created_timestamp_column, and offline_store.type is {engine!r} "
            f"(Feast's default), which takes an older one of several values of one event time; set it to 'duckdb' in "
            f"{store.repo_path}/feature_store.yaml (in the environment, feast[duckdb])"
        )
    joined = pd.DataFrame(index=rows.index)
    together: dict[Any, list[ViewFeatures]] = {}
    for number, each in enumerate(selected):
        keys = tuple(each.join_keys.items())
        together.setdefault(keys if engine == "duckdb" else number, []).append(each)
    done = 0
    for views in together.values():
        _join_views(store, rows, views, time, as_created, joined)
        done += len(views)
        on_view(done)
    return joined


def _join_views(
    store: FeatureStore,
    rows: pd.DataFrame,
    views: Sequence[ViewFeatures],
    time: str,
    as_created: bool,
    joined: pd.DataFrame,
) -> None:
    """Adds the columns of views with the same keys."""
    names = ", ".join(dict.fromkeys(repr(each.view.name) for each in views))
    keys = {column: key for key, column in views[0].join_keys.items()}
    origins = {f"{each.prefix}__{feature}": (each.view.name, feature) for each in views for feature in each.features}
    spine = rows[[*keys, time]].rename(columns=keys)
    distinct = spine[spine.notna().all(axis=1)].drop_duplicates(ignore_index=True)
    if distinct.empty:
        joined[list(origins)] = None
        return
    _check_keys(distinct, views[0].view)
    entities = distinct.drop(columns=time).assign(
        **{TIME: pd.to_datetime(distinct[time], unit="s", utc=True), ROW: np.arange(len(distinct))}
    )
    references = list(dict.fromkeys(map(":".join, origins.values())))
    try:
        job = store.get_historical_features(
            entities, references, full_feature_names=True, filter_by_created_timestamp=as_created
        )
        result = job.to_df()
    except _SOURCE_ERRORS as error:
        raise BadInput(f"view {names}: {type(error).__name__}: {error}") from error
    # The engine leaves out rows without a value.
    result = result.set_index(ROW).reindex(range(len(distinct)))
    numbers = spine.merge(distinct.assign(**{ROW: entities[ROW]}), how="left", on=list(spine.columns))[ROW]
    times = {
        (each.view.name, field.name) for each in views for field in each.view.features if is_time(str(field.dtype))
    }
    for column, origin in origins.items():
        values = result["__".join(origin)].reindex(numbers).set_axis(rows.index)
        joined[column] = as_seconds(values) if origin in times else values


def is_time(dtype: str) -> bool:
    """Returns whether one of Feast's types is a time, which examples and requests hold in seconds."""
    return dtype == "UnixTimestamp"


def as_seconds(times: pd.Series) -> pd.Series:
    """Converts times to seconds since the epoch; integers already are."""
    if pd.api.types.is_numeric_dtype(times):
        return times
    return (pd.to_datetime(times, utc=True) - pd.Timestamp(0, tz="UTC")).dt.total_seconds()


def _check_keys(rows: pd.DataFrame, view: FeatureView) -> None:
    """Raises BadInput for keys of another type than the view's, and for keys that pandas would confuse with others."""
    for key, kind in key_types(view).items():
        values, where = rows[key], f"view {view.name!r}: key {key!r}"
        # Feast 0.67: takes Arrow's large_string for JSON if an entity has no type.
        if pd.api.types.is_numeric_dtype(values) == (kind in ("STRING", "JSON")):
            first = values.head(1).tolist()[0]  # a value of Python's
            raise BadInput(f"{where} is {values.dtype} in the rows, such as {first!r}; expected {kind}")
        if pd.api.types.is_float_dtype(values) and (values.abs() >= _EXACT_IN_FLOAT).any():
            raise BadInput(f"{where} has floats of 2^53 or more, which stand for several integers; expected integers")
        if values.dtype == object and values.astype(str).str.contains("\0", regex=False).any():
            raise BadInput(f"{where} has a NUL character, at which pandas truncates a string; remove it in prepare()")


def without_created(selected: Sequence[ViewFeatures]) -> list[str]:
    """Lists the views whose source has no created timestamp."""
    return [each.view.name for each in selected if not each.view.batch_source.created_timestamp_column]


def as_examples_column(values: pd.Series, dtype: str, reference: str) -> pa.Array:
    """Converts a feature's values to a type that examples may have; integers with missing values become floats.

    Args:
        values: The values; null if missing.
        dtype: Feast's type.
        reference: The feature's name for messages.

    Raises:
        BadInput: examples cannot have the type, or floats would round the integers.
    """
    if dtype in _VECTORS:
        listed = [None if value is None or np.ndim(value) == 0 else np.asarray(value) for value in values]
        return pa.array(listed, _VECTORS[dtype])
    if dtype not in _TYPES:
        allowed = ", ".join([*_TYPES, *_VECTORS])
        raise BadInput(f"feature {reference!r} is of type {dtype}; examples can have {allowed}")
    if dtype == "String":
        return pa.array(values.where(values.notna(), None), pa.string())
    missing = values.isna()
    if pa.types.is_integer(_TYPES[dtype]):
        if not missing.any():
            return pa.array(values.astype("int64"), pa.int64())
        numbers = values.astype("float64")
        if (numbers.abs() >= _EXACT_IN_FLOAT).any():
            raise BadInput(
                f"feature {reference!r} has missing values, and integers of 2^53 or more, which a float would round; "
                "expected a string for identifiers"
            )
        return pa.array(numbers, pa.float64(), from_pandas=True)
    return pa.array(values.astype("float64"), pa.float64(), from_pandas=True).cast(_TYPES[dtype])


log = logging.getLogger(__name__)


def run(
    context: StepContext,
    *,
    repository: str,
    features: Sequence[str] | str,
    full_names: bool = False,
    as_created: bool = True,
    drop_keys: bool = True,
) -> Artifact:
    """Writes ``<split>/*.parquet``, with the rows of the input in their order.

    Parameters are those of ``TrainingDatasetOperator``. Inputs are ``examples`` and, optionally, ``definitions``.

    Raises:
        BadInput: the examples have no time, a name is taken, or a feature is unknown or of a type that examples cannot
            have.
    """
    examples = context.input("examples")
    properties = ExamplesProperties.of(examples)
    if properties.time is None:
        raise BadInput(
            "the examples have no time, and features are joined as of a row's time; set PrepareOperator's time"
        )
    folder = context.store.local(examples)
    files = [(split, file) for split in properties.splits for file in example_files(folder, split)]
    tables = [scan.table([file]) for _, file in files]
    with open_repository(repository) as (store, _):
        check_definitions(context, store)
        selected = select(store, features)
        names = _names(selected, full_names, tables[0].column_names)
        keys = list(dict.fromkeys(column for each in selected for column in each.join_keys.values()))
        rows = pd.concat([_frame(table, [*keys, properties.time]) for table in tables], ignore_index=True)
        context.progress(0.1, f"joining {len(rows)} rows with {len(selected)} views")
        joined = join(
            store,
            rows,
            selected,
            properties.time,
            as_created=as_created,
            on_view=lambda done: context.progress(0.1 + 0.8 * done / len(selected), f"{done} views are joined"),
        )
        definitions = definitions_of(store)
    late = without_created(selected)
    if as_created and late:
        log.warning(
            "%s: no created timestamp in the source, so values that arrived after an example's time may be in it",
            ", ".join(late),
        )
    columns: dict[str, StoredFeature] = {}
    arrays: dict[str, pa.Array] = {}
    for each in selected:
        types = {field.name: str(field.dtype) for field in each.view.features}
        for feature in each.features:
            column, reference = names[each.prefix, feature], f"{each.prefix}:{feature}"
            arrays[column] = as_examples_column(joined[f"{each.prefix}__{feature}"], types[feature], reference)
            columns[column] = StoredFeature(
                each.view.name,
                feature,
                types[feature],
                keys=dict(each.join_keys),
                key_types=key_types(each.view),
                ttl_s=ttl_seconds(each.view),
            )
    roles = {properties.key, properties.time, properties.label, properties.weight, *(properties.more_labels or {})}
    dropped = [key for key in keys if drop_keys and key not in roles]
    counts: dict[str, int] = {}
    with context.output() as writer:
        first = 0
        for (split, file), table in zip(files, tables, strict=True):
            for column, values in arrays.items():
                table = table.append_column(column, values.slice(first, table.num_rows))
            _write(table.drop_columns(dropped), writer.path / split / file.name)
            first += table.num_rows
            counts[split] = counts.get(split, 0) + table.num_rows
        missing = {column: values.null_count / max(len(values), 1) for column, values in arrays.items()}
        for column, share in missing.items():
            log.info("%s: %.1f%% of the rows have a value", column, 100 * (1 - share))
        origin = StoredFeatures(
            definitions.project, definitions.fingerprint, columns=columns, without_created=tuple(late) or None
        )
        return writer.commit(
            rows={split: RowCounts(count, count) for split, count in counts.items()},
            metrics={f"missing {column}": round(share, 6) for column, share in missing.items()},
            properties={**examples.properties, "stored_features": origin.to_dict()},
        )


def _names(selected: Sequence[ViewFeatures], full: bool, taken: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns the column's name by view and feature."""
    names: dict[tuple[str, str], str] = {}
    for each in selected:
        for feature in each.features:
            column = f"{each.prefix}__{feature}" if full else feature
            if column in taken or column in names.values():
                whose = "the examples have" if column in taken else "another view has"
                raise BadInput(
                    f"features has '{each.prefix}:{feature}', but {whose} a column {column!r}, too; set "
                    "full_names=True, or leave one out"
                )
            names[each.prefix, feature] = column
    return names


def _frame(table: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    if missing := [column for column in columns if column not in table.column_names]:
        raise BadInput(
            f"the views need the key {missing[0]!r}, which the examples do not have; they have "
            f"{', '.join(table.column_names)}"
        )
    return table.select(list(dict.fromkeys(columns))).to_pandas()


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    write_parquet(table, path)
