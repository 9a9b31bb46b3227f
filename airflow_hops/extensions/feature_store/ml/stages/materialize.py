"""Loads a window of feature values into the online store."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import sys
from collections.abc import Sequence
from datetime import datetime

import pandas as pd
from feast import FeatureStore, FeatureView

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.times import window_time
from airflow_hops.extensions.feature_store.core.stored_features import MaterializationProperties
from airflow_hops.extensions.feature_store.ml.repository import check_definitions, keep_newer_values, open_repository
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


def run(
    context: StepContext,
    *,
    repository: str,
    window_start: str,
    window_end: str,
    views: Sequence[str] | None = None,
) -> Artifact:
    """Materializes each view for the window, also if it was loaded before: its rows or features may be others now.

    Values in the online store that are newer than the window's remain.

    Parameters are those of ``MaterializeOperator``. The input ``definitions`` is optional.

    Raises:
        BadInput: the window is empty, a view is unknown or not online, or its rows have null keys or values of other
            types.
    """
    begin, until = window_time("window_start", window_start), window_time("window_end", window_end)
    if begin is None or until is None or begin >= until:
        raise InvalidArgument("window_end", window_end, f", expected a time after window_start, {window_start!r}")
    with open_repository(repository) as (store, _):
        check_definitions(context, store)
        chosen = _views(store, views)
        keep_newer_values(store)
        loaded: dict[str, str] = {}
        for number, view in enumerate(chosen):
            loaded[view.name] = _load(store, view, begin, until)
            log.info("%s: %s", view.name, loaded[view.name])
            context.progress((number + 1) / len(chosen), f"{view.name} is loaded")
    window = (begin.isoformat(), until.isoformat())
    with context.output() as writer:
        return writer.commit(
            metrics={"views": len(chosen)}, properties=MaterializationProperties(window=window, views=loaded).to_dict()
        )


def _load(store: FeatureStore, view: FeatureView, begin: datetime, until: datetime) -> str:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Feast prints its progress
            store.materialize(begin, until, [view.name])
    except (ValueError, TypeError, sqlite3.ProgrammingError) as error:
        rows = _keys(store, view, begin, until)
        for column in rows.columns:
            if nulls := int(rows[column].isna().sum()):
                raise BadInput(
                    f"view {view.name!r}: column {column!r} is null in {nulls} of the window's {len(rows)} rows, but "
                    "keys and the time of creation must not be; remove such rows from the source"
                ) from error
        raise BadInput(f"view {view.name!r}: {type(error).__name__}: {error}") from error
    return f"loaded to {until.isoformat()}"


def _keys(store: FeatureStore, view: FeatureView, begin: datetime, until: datetime) -> pd.DataFrame:
    """Returns the keys and times of creation of a window's rows in the offline store."""
    source = view.batch_source
    columns = {name: column for column, name in source.field_mapping.items()}
    keys = {columns.get(key, key): key for key in view.join_keys}
    created = source.created_timestamp_column
    job = store._get_provider().offline_store.pull_all_from_table_or_query(
        config=store.config,
        data_source=source,
        join_key_columns=list(keys),
        feature_name_columns=[],
        timestamp_field=source.timestamp_field,
        created_timestamp_column=created,
        start_date=begin,
        end_date=until,
    )
    return job.to_df()[[*keys, *([created] if created else [])]].rename(columns=keys)


def _views(store: FeatureStore, names: Sequence[str] | None) -> list[FeatureView]:
    online = {view.name: view for view in store.list_batch_feature_views() if view.online}
    if names is None:
        return [online[name] for name in sorted(online)]
    if unknown := [name for name in names if name not in online]:
        raise BadInput(f"views has {unknown[0]!r}; online views are {', '.join(sorted(online)) or 'none'}")
    return [online[name] for name in names]
