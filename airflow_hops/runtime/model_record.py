"""What is known of a served model: its champion, its challenger, and how they came to be.

The record is a JSON file of the store, ``<store>/_models/<model>.json``, for readers that have no MLflow. It is
written before the traffic changes: a share that a canary has is one that was decided, and is written down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_hops.artifacts import Artifact, BadInput, Producer
from airflow_hops.store import ArtifactStore

_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ServedVersion:
    """A version that takes traffic.

    Attributes:
        version: Its number, the same in MLflow's registry, in the base path and on the server.
        model: The model artifact.
        statistics: URI of the statistics artifact that the model was trained on, or None.
        schema: URI of the schema artifact, or None.
        fingerprint: The model artifact's.
        serving_path: The version's folder.
        since: When it became what it is, ISO 8601 UTC.
        traffic_percent: Share that was decided for it.
        baseline: A challenger's: what the server had counted of each version when the canary began.
        rollout: A challenger's: how far its rollout is (:class:`airflow_hops.runtime.rollout.progress.Progress`), or
            None before it began.
    """

    version: int
    model: Artifact
    statistics: str | None
    schema: str | None
    fingerprint: str
    serving_path: str
    since: str
    traffic_percent: int = 100
    baseline: Mapping[str, Any] = field(default_factory=dict)
    rollout: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, model: Artifact, version: int, serving_path: str, traffic_percent: int) -> ServedVersion:
        """A model artifact that begins to take traffic now."""
        return cls(
            version=version,
            model=model,
            statistics=model.properties.get("statistics"),
            schema=model.properties.get("schema"),
            fingerprint=model.fingerprint,
            serving_path=serving_path,
            since=now(),
            traffic_percent=traffic_percent,
        )


@dataclass(frozen=True)
class ModelRecord:
    """A model's champion, challenger and history.

    Attributes:
        champion: The version that serves, or None before the first.
        challenger: The version that is tried as a canary, or None.
        history: Events, oldest first: ``at``, ``event`` (``deployed``, ``canary``, ``step``, ``approved``,
            ``promoted``, ``rolled_back``, ``left``), ``version``, ``why``, and the numbers of the decision.
    """

    champion: ServedVersion | None = None
    challenger: ServedVersion | None = None
    history: tuple[Mapping[str, Any], ...] = ()

    def after(self, event: str, version: int, why: str, **numbers: Any) -> ModelRecord:
        """The record with one event more."""
        entry = {"at": now(), "event": event, "version": version, "why": why, **numbers}
        return replace(self, history=(*self.history, entry))

    @property
    def traffic(self) -> dict[int, int]:
        """The shares that were decided, version to percent; of nothing before the first champion."""
        if self.champion is None:
            return {}
        if self.challenger is None:
            return {self.champion.version: 100}
        share = self.challenger.traffic_percent
        shares = {self.champion.version: 100 - share, self.challenger.version: share}
        return {version: percent for version, percent in shares.items() if percent}

    def champions(self) -> list[int]:
        """Versions that are or were champions and were not taken back since, the latest first, each once."""
        versions = [entry["version"] for entry in self.history if entry["event"] in ("deployed", "promoted")]
        taken_back = {version for version in versions if self._last_end(version) in ("rolled_back", "undeployed")}
        return [version for version in dict.fromkeys(reversed(versions)) if version not in taken_back]

    def _last_end(self, version: int) -> str | None:
        """How the newest of a version's trials and reigns began or ended."""
        ends = ("deployed", "promoted", "rolled_back", "undeployed")
        found = (e["event"] for e in reversed(self.history) if e["version"] == version and e["event"] in ends)
        return next(found, None)

    def last_event(self, version: int) -> Mapping[str, Any] | None:
        """The newest event of a version, or None."""
        return next((entry for entry in reversed(self.history) if entry["version"] == version), None)


def read_record(store: ArtifactStore, model_name: str) -> ModelRecord:
    """Reads the record of a model; an empty one where there is none.

    Raises:
        BadInput: the name is not one, or the file is not a record.
    """
    uri = record_uri(store, model_name)
    try:
        value = json.loads(store.read_text(uri))
        return ModelRecord(
            champion=_served(value.get("champion")),
            challenger=_served(value.get("challenger")),
            history=tuple(value.get("history") or ()),
        )
    except FileNotFoundError:
        return ModelRecord()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{uri}: not a model record ({type(error).__name__}: {error})") from error


def write_record(store: ArtifactStore, model_name: str, record: ModelRecord) -> None:
    """Writes the record of a model atomically."""
    store.write_text(record_uri(store, model_name), json.dumps(asdict(record), indent=1) + "\n")


def record_uri(store: ArtifactStore, model_name: str) -> str:
    """Address of a model's record.

    Raises:
        BadInput: the name holds more than letters, digits, ``_``, ``.`` and ``-``.
    """
    if not _MODEL_NAME.fullmatch(model_name):
        raise BadInput(f"model_name is {model_name!r}; expected letters, digits, '_', '.' and '-'")
    return store.uri("_models", f"{model_name}.json")


def by_whom(producer: Producer) -> dict[str, str]:
    """Who decides, for an event of the history: the DAG, its run and the task."""
    return {"dag_id": producer.dag_id, "run_id": producer.run_id, "task_id": producer.task_id}


def now() -> str:
    """The time in ISO 8601 UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _served(value: Mapping[str, Any] | None) -> ServedVersion | None:
    return ServedVersion(**{**value, "model": Artifact.from_dict(value["model"])}) if value else None
