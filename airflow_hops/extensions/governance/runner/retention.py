"""Garbage collection of all stores of a connection of type ``hops``: store, captured requests and MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.shared_places import capture_path, storage_options_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.governance.core.collection import GarbageCollection
from airflow_hops.extensions.governance.core.rule import IsActive, RetentionRule, Track
from airflow_hops.runner.runtime import RuntimeHook

_SQLITE = "sqlite:///"


def garbage_collection(hook: RuntimeHook, rule: RetentionRule, is_active: IsActive, track: Track) -> GarbageCollection:
    """Returns the garbage collection of a connection's places; the arguments are its attributes.

    Raises:
        BadInput: a field of the connection is invalid.
    """

    def tracked(delete: Sequence[str]) -> list[dict[str, object]]:
        uri = hook.settings.tracking_uri
        if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE).partition("?")[0]).exists():
            return []
        spec = StepSpec(
            "tracked-models", "airflow_hops.extensions.governance.ml.tracked:run", params={"delete": list(delete)}
        )
        entries: list[dict[str, Any]] = hook.run(spec, cache=False, on_line=lambda line: None).value
        return entries

    store, services = hook.store, hook.settings.services
    path, captures = capture_path(services), None
    if path is not None:
        captures = ArtifactStore(path, storage_options=storage_options_of(services, path, store))
    return GarbageCollection(store, rule, is_active, captures=captures, tracked=tracked, track=track)
