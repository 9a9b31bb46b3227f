"""Record of a served model: champion, challenger and history.

It is a JSON file in the store, ``<store>/_models/<model>.json``, for readers without MLflow. It is written before the
traffic changes, so that every share of a canary is recorded.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from airflow_hops.core.artifacts.artifact import Artifact, Producer, name_in
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, InvalidArgument, ModelNotFound, UnreadableFile
from airflow_hops.core.json_fields import JsonFields, omit_if_none
from airflow_hops.core.owners import check_owner
from airflow_hops.core.rollout.decision import RolloutDecision
from airflow_hops.core.rollout.progress import Progress
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.times import now

_FOLDER, _ENDING = "_models", ".json"
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,219}")  # temporary files have longer names
MODEL_NAME_IN_WORDS = "letters, digits, '_', '.' and '-', at most 220"

Role = Literal["champion", "challenger"]

_BEGINS, _ENDS = ("deployed", "canary"), ("deployed", "promoted", "rolled_back", "undeployed")
"""Events by which a version starts to serve, and those by which a trial or a reign begins or ends."""


@dataclass(frozen=True)
class ServedVersion(JsonFields):
    """A version that gets traffic.

    Attributes:
        version: Version number, the same in MLflow's registry, in the base path and on the server.
        statistics: URI of the statistics artifact that the model was trained on, or None.
        schema: URI of the schema artifact, or None.
        serving_path: The version's folder, or the address of an adopted endpoint.
        since: Start of its current role, ISO 8601 UTC.
        traffic_percent: Its decided share.
        baseline: For a challenger: the server's counts of each version at the start of the canary.
        rollout: For a challenger: the progress of its rollout, or None before its start.
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
    rollout: Progress | None = None

    @classmethod
    def of(cls, model: Artifact, version: int, serving_path: str, traffic_percent: int) -> ServedVersion:
        """Returns the entry of a model artifact that gets traffic from now on."""
        trained = ModelProperties.of(model)
        return cls(
            version=version,
            model=model,
            statistics=trained.statistics,
            schema=trained.schema,
            fingerprint=model.fingerprint,
            serving_path=serving_path,
            since=now(),
            traffic_percent=traffic_percent,
        )


@dataclass(frozen=True)
class ModelEvent(JsonFields):
    """A decision on a version.

    Attributes:
        at: Time, ISO 8601 UTC.
        event: ``deployed``, ``canary``, ``step``, ``approved``, ``traffic``, ``promoted``, ``rolled_back``, ``left``,
            ``undeployed`` or ``owners``.
        why: Reason, in words.
        by: ``dag_id``, ``run_id``, ``task_id`` and, if it has them, ``map_index`` and ``iteration`` of a task, or
            ``dag_id``, ``user`` and ``request_id`` of a person; for an approval, the person's name.
        traffic: The decided shares, version to percent.
        to: The version that a rollback went to.
        note: A person's note with an approval.
        fingerprint: Fingerprint of the model if the version began to serve, became the champion or was rolled back.
        model: URI of the model artifact if the version began to serve or became the champion by a person's decision.
        owners: The DAGs that own the model from then on.
        decision: The basis of a rollout's decision.
    """

    at: str
    event: str
    version: int
    why: str = ""
    by: Mapping[str, Any] | str | None = omit_if_none()
    traffic: Mapping[int, int] | None = omit_if_none()
    to: int | None = omit_if_none()
    note: str | None = omit_if_none()
    fingerprint: str | None = omit_if_none()
    model: str | None = omit_if_none()
    owners: tuple[str, ...] | None = omit_if_none()
    decision: RolloutDecision | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads the JSON object."""
        decision = None
        if "reasons" in value:
            decision = RolloutDecision.of_event(value["event"], value)
            value = {name: item for name, item in value.items() if name not in decision.numbers()}
        return super().from_dict({**value, "decision": decision})

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object, including the numbers of a rollout's decision."""
        fields = super().to_dict()
        del fields["decision"]
        return {**fields, **(self.decision.numbers() if self.decision else {})}

    @property
    def made_by(self) -> Mapping[str, Any]:
        """Returns the task or person that decided, by name; empty if not recorded."""
        return self.by if isinstance(self.by, Mapping) else {}


@dataclass(frozen=True)
class ModelRecord(JsonFields):
    """A model's champion, challenger and history.

    Attributes:
        champion: The serving version, or None before the first.
        challenger: The version that runs as a canary, or None.
        history: Decisions, oldest first.
        owners: DAGs that may deploy the model and decide on its serving: the first that deployed it, until a person
            names others. Empty before that.
    """

    champion: ServedVersion | None = None
    challenger: ServedVersion | None = None
    history: tuple[ModelEvent, ...] = ()
    owners: tuple[str, ...] = ()

    def is_owned_by(self, dag_id: str) -> bool:
        """Returns whether a DAG may deploy the model and decide on it: it is an owner, or there is none yet."""
        return not self.owners or dag_id in self.owners

    def check_owner(self, model_name: str, dag_id: str) -> None:
        """Checks that a DAG may deploy the model and decide on its serving.

        Raises:
            BadInput: the model has owners, and the DAG is none of them.
        """
        advice = (
            f"use another model_name, or have an owner added on the model's page, or by: airflow hops models owners "
            f"{model_name} DAG ..."
        )
        check_owner(self.owners, dag_id, f"model {model_name!r}", advice)

    def after(self, event: str, version: int, why: str, **facts: Any) -> ModelRecord:
        """Returns the record with one more event; ``facts`` are further fields of :class:`ModelEvent`."""
        return replace(self, history=(*self.history, ModelEvent(now(), event, version, why, **facts)))

    @property
    def traffic(self) -> dict[int, int]:
        """Returns the decided shares, version to percent; empty before the first champion."""
        if self.champion is None:
            return {}
        if self.challenger is None:
            return {self.champion.version: 100}
        share = self.challenger.traffic_percent
        shares = {self.champion.version: 100 - share, self.challenger.version: share}
        return {version: percent for version, percent in shares.items() if percent}

    @property
    def serving(self) -> dict[Role, ServedVersion]:
        """Returns champion and challenger, if they exist."""
        results: dict[Role, ServedVersion | None] = {"champion": self.champion, "challenger": self.challenger}
        return {role: version for role, version in results.items() if version is not None}

    def served(self, version: int) -> ServedVersion | None:
        """Returns a version if it is champion or challenger, otherwise None."""
        return next((each for each in self.serving.values() if each.version == version), None)

    def champions(self) -> list[int]:
        """Returns current and former champions that were not rolled back since, latest first, without duplicates."""
        versions = [entry.version for entry in self.history if entry.event in ("deployed", "promoted")]
        ends = {version: self._last(version, _ENDS) for version in versions}
        taken_back = {version for version, end in ends.items() if end and end.event in ("rolled_back", "undeployed")}
        return [version for version in dict.fromkeys(reversed(versions)) if version not in taken_back]

    def rollback_of(self, version: int, fingerprint: str) -> ModelEvent | None:
        """Returns the rollback that last judged a model, or None if it was promoted since or never judged.

        Args:
            version: A version of the model.
            fingerprint: Fingerprint of the model artifact, since the same model may be registered under another number.
        """
        for event in reversed(self.history):
            if event.fingerprint == fingerprint or (event.fingerprint is None and event.version == version):
                if event.event in ("deployed", "promoted"):
                    return None
                # A superseded canary was not judged: it has neither ``to`` nor ``decision``.
                if event.event == "rolled_back" and (event.to is not None or event.decision is not None):
                    return event
        return None

    def versions(self) -> list[int]:
        """Returns the versions that were deployed, ascending."""
        return sorted({event.version for event in self.history})

    def last_event(self, version: int) -> ModelEvent | None:
        """Returns the newest event of a version, or None."""
        return self._last(version)

    def began(self, version: int) -> ModelEvent | None:
        """Returns the newest event by which a version started to serve, as champion or canary; None if not recorded."""
        return self._last(version, _BEGINS)

    def registered(self) -> dict[int, ModelEvent]:
        """Returns the event by which each version first came to serve, by version."""
        first: dict[int, ModelEvent] = {}
        for event in self.history:
            if event.event in ("promoted", *_BEGINS):
                first.setdefault(event.version, event)
        return first

    def _last(self, version: int, events: Iterable[str] | None = None) -> ModelEvent | None:
        of_it = (entry for entry in reversed(self.history) if entry.version == version)
        return next((entry for entry in of_it if events is None or entry.event in events), None)


def by_whom(producer: Producer) -> dict[str, object]:
    """Returns the author of an event in the history: the DAG, its run, the task, its iteration and map index."""
    positions = {"map_index": producer.map_index, "iteration": producer.iteration}
    return {
        "dag_id": producer.dag_id,
        "run_id": producer.run_id,
        "task_id": producer.task_id,
        **{name: position for name, position in positions.items() if position >= 0},
    }


def record_uri(store: ArtifactStore, model_name: str) -> str:
    """Returns the address of a model's record.

    Raises:
        BadInput: the name has characters other than letters, digits, ``_``, ``.`` and ``-``, or too many.
    """
    if not MODEL_NAME.fullmatch(model_name):
        raise InvalidArgument("model_name", model_name, f"; expected {MODEL_NAME_IN_WORDS}")
    return store.internal(_FOLDER, model_name) + _ENDING


def find_record(store: ArtifactStore, model_name: str) -> ModelRecord | None:
    """Returns the record of a model; None if there is none.

    Raises:
        BadInput: the name is invalid, or the file is not a record.
    """
    uri = record_uri(store, model_name)
    try:
        return ModelRecord.from_dict(store.read_json(uri))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableFile(uri, f": not a model record ({type(error).__name__}: {error})") from error


def read_record(store: ArtifactStore, model_name: str) -> ModelRecord:
    """Returns the record of a model; an empty one if there is none.

    Raises:
        BadInput: the name is invalid, or the file is not a record.
    """
    return find_record(store, model_name) or ModelRecord()


def deployed_model(store: ArtifactStore, model_name: str, version: int | str) -> tuple[Artifact, int]:
    """Returns the artifact of a deployed model, and its version.

    Args:
        store: The artifact store.
        model_name: Name of the model.
        version: ``champion``, ``challenger``, or the number of a version that serves or has served.

    Returns:
        The artifact, without properties if the version no longer serves and the store no longer has it.

    Raises:
        BadInput: there is no such version.
    """
    record = read_record(store, model_name)
    if version in ("champion", "challenger"):
        role = record.champion if version == "champion" else record.challenger
        if role is None:
            raise ModelNotFound(model_name, str(version))
        return role.model, role.version
    if isinstance(version, bool) or not str(version).isdigit():
        raise InvalidArgument("version", version, "; expected 'champion', 'challenger' or a version's number")
    number = int(version)
    if (served := record.served(number)) is not None:
        return served.model, number
    # Numbers repeat after a reset of MLflow's registry; the newest event is that of the present one.
    last = next((each for each in reversed(record.history) if each.version == number and each.model), None)
    if last is None or last.model is None:
        known = ", ".join(map(str, record.versions())) or "none"
        raise ModelNotFound(model_name, number).with_text(
            f"model {model_name!r} has no version {number} that was deployed; versions: {known}"
        )
    uri, fingerprint = last.model, last.fingerprint or ""
    with contextlib.suppress(BadInput):
        if (artifact := store.manifest(uri).reference(uri)).fingerprint == fingerprint:
            return artifact, number
    return Artifact(uri, "model", fingerprint), number


def read_records(store: ArtifactStore) -> Iterator[tuple[str, ModelRecord]]:
    """Yields the records of all models, with their names."""
    return ((name, read_record(store, name)) for name in recorded_models(store))


def recorded_models(store: ArtifactStore) -> list[str]:
    """Returns the names of the models with a record."""
    names = store.names(store.internal(_FOLDER))
    return sorted(name_in(name.removesuffix(_ENDING)) for name in names if name.endswith(_ENDING))


def write_record(store: ArtifactStore, model_name: str, record: ModelRecord) -> None:
    """Writes the record of a model atomically."""
    store.write_text(record_uri(store, model_name), json.dumps(record.to_dict(), indent=1) + "\n")
