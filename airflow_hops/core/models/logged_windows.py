"""Windows of models' logs that were ingested: the snapshots whose rows a rollout compares.

``<store>/_serving/logs/<model>/<log>.json`` has those of one log, by the window's name, so that a window that is
ingested again replaces its snapshot. The newest stays, and those with rows since the canary's start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.models.model_record import find_record
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.times import as_utc


@dataclass(frozen=True)
class LoggedWindow(JsonFields):
    """A window of a model's log.

    Attributes:
        snapshot: URI of the snapshot with its rows.
        table: Their table in it.
        last_us: Time of the last one, in microseconds since the epoch; 0 without rows.
    """

    model_name: str
    snapshot: str
    table: str
    last_us: int = 0

    def has_rows_since(self, since: str) -> bool:
        """Returns whether rows were captured since a time, ISO 8601."""
        return self.last_us >= as_utc(since).timestamp() * 1e6


def note_window(store: ArtifactStore, log: str, name: str, window: LoggedWindow) -> None:
    """Records a window of a log by its name; the caller holds the log's lock."""
    uri = f"{_folder(store, window.model_name)}/{hashlib.sha256(log.encode()).hexdigest()[:16]}.json"
    record, others = find_record(store, window.model_name), dict[str, LoggedWindow]()
    if record is not None and record.challenger is not None:
        others = {key: each for key, each in _read(store, uri).items() if each.has_rows_since(record.challenger.since)}
    store.write_text(uri, json.dumps({key: each.to_dict() for key, each in {**others, name: window}.items()}))


def logged_windows(store: ArtifactStore, model_name: str) -> list[list[LoggedWindow]]:
    """Returns the recorded windows of each log of a model."""
    folder = _folder(store, model_name)
    return [[*_read(store, f"{folder}/{name}").values()] for name in store.names(folder) if name.endswith(".json")]


def _read(store: ArtifactStore, uri: str) -> Mapping[str, LoggedWindow]:
    with suppress(FileNotFoundError):
        return {name: LoggedWindow.from_dict(value) for name, value in store.read_json(uri).items()}
    return {}


def _folder(store: ArtifactStore, model_name: str) -> str:
    return store.internal("_serving", "logs", model_name)
