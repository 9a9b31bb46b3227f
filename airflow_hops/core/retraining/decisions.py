"""Decisions on retraining in the store, and claims of requests by runs.

``<store>/_state/tasks/<dag>/<task>/decisions/000001.json`` and so on are the decisions of a monitor, each written once
and never changed. ``<store>/_state/claims/<cause>/<dag>.json`` names the run of a DAG that trains for a cause.
``<store>/_state/requested/<asset>/<model>/000001.json`` and so on are the requests of all monitors, which are noted
before the decision is written, so that two monitors that decide at the same time do not both request a retraining.
"""

# Files of a request, each created exclusively, so that one of several processes succeeds:
# 1. ``_state/requested/<asset>/<model>/<number>.json``: the request, by which monitors of one model see each other's.
# 2. ``_state/tasks/<dag>/<task>/decisions/<number>.json``: the decision of one task, with its requests so far. A task
#    whose number was taken reads the new decisions, and decides again.
# 3. ``_state/claims/<cause>/<dag>.json``: the run that claimed the request; a second run of that DAG with the same
#    cause finds it claimed.
# The asset event follows 2, when the task succeeds. A kill in between leaves a request without an event: a retry of the
# task repeats its recorded request, and a later run of the monitor repeats it with the same cause.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import UnreadableFile
from airflow_hops.core.models.model_record import by_whom
from airflow_hops.core.retraining.decision import RetrainingDecision, RetrainingRequest
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.task_state import earlier_address, in_use, task_state
from airflow_hops.core.times import now

_REQUESTED = ("_state", "requested")
_CLAIMS = ("_state", "claims")
_NO_NEW_ROWS = "no_new_rows"
_FIRST = "000001.json"


@dataclass(frozen=True)
class RecordedDecision:
    """A decision in the store; ``by`` has ``dag_id``, ``run_id`` and ``task_id`` of its author."""

    uri: str
    decision: RetrainingDecision
    by: Mapping[str, Any]


class DecisionLog:
    """The decisions of one task that requests retrainings, oldest first."""

    def __init__(self, store: ArtifactStore, producer: Producer) -> None:
        self._store, self._by = store, by_whom(producer)
        self.folder = task_state(store, producer, "decisions")

    def names(self) -> list[str]:
        """Returns the names of the files, oldest first."""
        return [name for name in self._store.names(self.folder) if name.endswith(".json")]

    def newest(self, names: list[str]) -> list[RecordedDecision]:
        """Returns the newest decision and, if this run made it, earlier ones up to another run's; newest first."""
        results: list[RecordedDecision] = []
        for name in reversed(names):
            results.append(self.read(name))
            if results[-1].by != self._by:
                break
        return results

    def append(self, names: list[str], decision: RetrainingDecision) -> RecordedDecision:
        """Writes a decision that is based on those with the ``names``.

        Raises:
            FileExistsError: another decision was written since.
        """
        last = int(names[-1].removesuffix(".json")) if names else 0
        uri = f"{self.folder}/{last + 1:06d}.json"
        value = {**decision.to_dict(), "by": self._by, "made": now()}
        self._store.create_text(uri, json.dumps(value, indent=1) + "\n")
        return RecordedDecision(uri, decision, self._by)

    def read(self, name: str) -> RecordedDecision:
        """Reads the decision in a file. Raises BadInput if it is not a decision."""
        uri = f"{self.folder}/{name}"
        try:
            value = dict(self._store.read_json(uri))
            by, _ = value.pop("by"), value.pop("made")
            return RecordedDecision(uri, RetrainingDecision.from_dict(value), by)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UnreadableFile(
                uri,
                f": not a decision ({type(error).__name__}: {error}); restore it, or remove the folder to begin "
                "again without cooldown and budget spent",
            ) from error


def note_request(store: ArtifactStore, asset: str, model: str | None, request: RetrainingRequest, number: int) -> None:
    """Records a request for other monitors of the model (None for two spans) that use the same asset.

    Raises:
        FileExistsError: another monitor has made the request with this number.
    """
    uri = f"{_requested(store, asset, model)}/{number:06d}.json"
    store.create_text(uri, json.dumps(request.to_dict()) + "\n")


def newest_request(store: ArtifactStore, asset: str, model: str | None) -> tuple[int, RetrainingRequest | None]:
    """Returns the number of the newest request of any monitor, and the request; 0 and None if there is none."""
    folder = _requested(store, asset, model)
    names = sorted(name for name in store.names(folder) if name.removesuffix(".json").isdecimal())
    if not names:
        return 0, None
    return int(names[-1].removesuffix(".json")), RetrainingRequest.from_dict(store.read_json(f"{folder}/{names[-1]}"))


def _requested(store: ArtifactStore, asset: str, model: str | None) -> str:
    folder = store.internal(*_REQUESTED, asset, model or "@")  # which is not the name of a model
    return in_use(store, folder, earlier_address(store, *_REQUESTED, asset, *([model] if model else [])), _FIRST)


def claim_request(store: ArtifactStore, cause: str, producer: Producer) -> Mapping[str, Any]:
    """Claims a request, unless another run of the DAG has done so.

    Returns:
        ``dag_id``, ``run_id`` and ``task_id`` of the claimant: this run or an earlier one.
    """
    uri, by = f"{store.internal(*_CLAIMS, cause, producer.dag_id)}.json", by_whom(producer)
    try:
        store.create_text(uri, json.dumps({**by, "at": now()}) + "\n")
        return by
    except FileExistsError:
        return dict(store.read_json(uri))


def note_no_new_rows(store: ArtifactStore, cause: str, producer: Producer, no_new_rows: bool) -> None:
    """Records whether the run that claimed a request found no row that the champion was not trained on."""
    uri = f"{store.internal(*_CLAIMS, cause, producer.dag_id)}.json"
    claim = dict(store.read_json(uri))
    if claim["run_id"] == producer.run_id and claim.get(_NO_NEW_ROWS, False) != no_new_rows:
        store.write_text(uri, json.dumps({**claim, _NO_NEW_ROWS: no_new_rows}) + "\n")


def found_no_new_rows(store: ArtifactStore, cause: str) -> bool:
    """Returns whether a request was claimed, and by runs that found no new rows only."""
    claims = claimants(store, cause)
    return bool(claims) and all(claim.get(_NO_NEW_ROWS, False) for claim in claims)


def cost_of(store: ArtifactStore, cause: str) -> tuple[float, float]:
    """Returns the cost so far of the artifacts of the runs of a request: CPU seconds, and GPU seconds."""
    folders = [store.uri(by["dag_id"], by["run_id"]) for by in claimants(store, cause)]
    costs = [store.manifest(uri).cost for folder in folders for uri in store.artifacts(folder)]
    return sum(each.get("core_s", 0.0) for each in costs), sum(each.get("gpu_s", 0.0) for each in costs)


def claimants(store: ArtifactStore, cause: str) -> list[Mapping[str, Any]]:
    """Returns the first run of each DAG that has claimed a request."""
    folder = store.internal(*_CLAIMS, cause)
    return [dict(store.read_json(f"{folder}/{name}")) for name in store.names(folder) if name.endswith(".json")]
