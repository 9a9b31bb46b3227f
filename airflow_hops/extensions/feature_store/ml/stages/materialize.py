"""Loads a window of feature values into the online store."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import sys
from collections.abc import Sequence
from datetime import datetime

from feast import FeatureStore, FeatureView

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.times import window_time
from airflow_hops.extensions.feature_store.core.stored_features import (
    STATISTICS_NAME,
    MaterializationProperties,
    ViewStatistics,
    WindowStatistics,
)
from airflow_hops.extensions.feature_store.ml.repository import check_definitions, keep_newer_values, open_repository
from airflow_hops.extensions.feature_store.ml.view_rows import read_rows, window_statistics
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


def run(
    context: StepContext,
    *,
    repository: str,
    window_start: str,
    window_end: str,
    views: Sequence[str] | None = None,
    statistics: bool = True,
) -> Artifact:
    """Materializes each view for the window, also if it was loaded before: its rows or features may be others now.

    Values in the online store that are newer than the window's remain.

    Args:
        context: Step, optionally with the input ``definitions``.
        repository: The repository's folder.
        window_start: Start of the window, ISO 8601; UTC if it has no zone.
        window_end: Its end.
        views: Names of the views; None for all that are online.
        statistics: Whether to write ``feature_statistics.json``, for which the window's rows are read into memory.

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
        figures: dict[str, ViewStatistics] = {}
        for number, view in enumerate(chosen):
            loaded[view.name] = _load(store, view, begin, until)
            log.info("%s: %s", view.name, loaded[view.name])
            if statistics:
                figures[view.name] = window_statistics(store, view, begin, until)
            context.progress((number + 1) / len(chosen), f"{view.name} is loaded")
    window = (begin.isoformat(), until.isoformat())
    with context.output() as writer:
        if statistics:
            text = json.dumps(WindowStatistics(window, figures).to_dict(), indent=1)
            (writer.path / STATISTICS_NAME).write_text(text)
        return writer.commit(
            metrics={"views": len(chosen)}, properties=MaterializationProperties(window=window, views=loaded).to_dict()
        )


def _load(store: FeatureStore, view: FeatureView, begin: datetime, until: datetime) -> str:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Feast prints its progress
            store.materialize(begin, until, [view.name])
    except (ValueError, TypeError, sqlite3.ProgrammingError) as error:
        rows = read_rows(store, view, [], begin, until)
        for column in (*view.join_keys, "created_at"):
            if nulls := int(rows[column].isna().sum()):
                name = view.batch_source.created_timestamp_column if column == "created_at" else column
                raise BadInput(
                    f"view {view.name!r}: column {name!r} is null in {nulls} of the window's {len(rows)} rows, but "
                    "keys and the time of creation must not be; remove such rows from the source"
                ) from error
        raise BadInput(f"view {view.name!r}: {type(error).__name__}: {error}") from error
    return f"loaded to {until.isoformat()}"


def _views(store: FeatureStore, names: Sequence[str] | None) -> list[FeatureView]:
    online = {view.name: view for view in store.list_batch_feature_views() if view.online}
    if names is None:
        return [online[name] for name in sorted(online)]
    if unknown := [name for name in names if name not in online]:
        raise BadInput(f"views has {unknown[0]!r}; online views are {', '.join(sorted(online)) or 'none'}")
    return [online[name] for name in names]
