"""Point-in-time correct joins of feature values to rows, on the engine of the repository's offline store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from feast import FeatureStore, FeatureView
from feast.errors import FeastError

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.feature_store.ml.repository import ViewFeatures, key_types

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
