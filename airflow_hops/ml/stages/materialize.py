"""Loads a window of feature values into the online store."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from feast import FeatureStore, FeatureView

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.features import MaterializationProperties
from airflow_hops.ml.feature_store.repository import check_definitions, open_repository
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


def run(context: StepContext, *, repository: str, start: str, end: str, views: Sequence[str] | None = None) -> Artifact:
    """Materializes each view once for the window; a retry goes on with the views that are not yet loaded.

    The registry keeps a view's loaded windows. If a later window was loaded before, as in a backfill, the later values
    are loaded again with this one: Feast's SQLite store would otherwise replace them by older ones.

    Args:
        context: Step, optionally with the input ``definitions``.
        repository: The repository's folder.
        start: Start of the window, ISO 8601.
        end: Its end.
        views: Names of the views; None for all that are online.

    Raises:
        BadInput: the window is empty, or a view is unknown or not online.
    """
    begin, until = _time("start", start), _time("end", end)
    if begin >= until:
        raise BadInput(f"end is {end}, expected a time after start, {start}")
    with open_repository(repository) as (store, _):
        check_definitions(context, store)
        chosen = _views(store, views)
        loaded: dict[str, Any] = {}
        for number, view in enumerate(chosen):
            windows = view.materialization_intervals
            if (begin, until) in windows:
                log.info("%s: this window is loaded already", view.name)
                loaded[view.name] = "loaded already"
                continue
            latest = max([until, *(stop for _, stop in windows)])
            # Feast prints its progress.
            with contextlib.redirect_stdout(sys.stderr):
                store.materialize(begin, latest, [view.name])
                if latest != until:
                    store.registry.apply_materialization(store.get_feature_view(view.name), store.project, begin, until)
            log.info("%s: loaded %s to %s", view.name, begin.isoformat(), latest.isoformat())
            loaded[view.name] = f"loaded to {latest.isoformat()}"
            context.progress((number + 1) / len(chosen), f"{view.name} is loaded")
    with context.output() as writer:
        return writer.commit(
            metrics={"views": len(chosen)},
            properties=MaterializationProperties(window=(begin.isoformat(), until.isoformat()), views=loaded).to_dict(),
        )


def _views(store: FeatureStore, names: Sequence[str] | None) -> list[FeatureView]:
    online = {view.name: view for view in store.list_batch_feature_views() if view.online}
    if names is None:
        return [online[name] for name in sorted(online)]
    if unknown := [name for name in names if name not in online]:
        raise BadInput(f"views has {unknown[0]!r}; online are {', '.join(sorted(online)) or 'none'}")
    return [online[name] for name in names]


def _time(name: str, text: str) -> datetime:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}, expected a time in ISO 8601") from None
    if value.tzinfo is None:
        raise BadInput(f"{name} is {text!r}, expected a time with its zone, such as {text}+00:00")
    return value
