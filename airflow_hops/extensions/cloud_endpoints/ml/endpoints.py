"""Endpoints of a cloud: what was written to them last, and changes that survive a kill.

``<store>/_serving/<kind>_<endpoint>.json`` has an endpoint's models and weights as they were written last.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.model_server.version_folders import VersionFolders

# A change: wait until no other one is under way; compare the endpoint with the record, which must be the state that was
# written last, or the one that was intended; write the intended state; apply it; once the service is done, write it as
# the present one. So a kill at any point leaves an endpoint that equals one of both, and a retry goes on from there. An
# endpoint that equals neither was changed by somebody else, and stays as it is.


@dataclass(frozen=True)
class EndpointState(JsonFields):
    """Config and weights of an endpoint.

    Attributes:
        config: What tells which models it has: the name of its config, or their list.
        weights: Version to weight.
    """

    config: str
    weights: Mapping[str, float]

    @property
    def versions(self) -> list[int]:
        """The versions, in order."""
        return sorted(map(int, self.weights))


@dataclass(frozen=True)
class EndpointRecord(JsonFields):
    """Record of what was written to an endpoint.

    Attributes:
        state: What it had after the last change; None if it did not exist.
        intended: What the change under way makes of it; None if that removes it.
        is_changing: Whether a change is under way.
        labels: Label to version, which the service does not know.
    """

    state: EndpointState | None = None
    intended: EndpointState | None = None
    is_changing: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as its service describes it.

    Attributes:
        status: Its status; empty if it does not exist.
        in_transit: Whether the service changes it.
        serves: Whether it answers by ``state``, also while it is changed.
        failure: Reason of the last failure.
        state: Its config and weights, by version; None if it does not exist, or was never in service.
        pending: Config that it gets by the change under way; empty if that is not known.
    """

    status: str = ""
    in_transit: bool = False
    serves: bool = False
    failure: str = ""
    state: EndpointState | None = None
    pending: str = ""


class CloudEndpoints(ABC):
    """The endpoints of models, one for each, as the shares of a server; the part ``v3`` serves version 3.

    Args:
        services: The services of a connection.
        places: Folders of the models.
        folders: Their versions.
        store: The artifact store.
        change_timeout_s: Seconds for which a change waits for one that is under way.

    Attributes:
        poll_s: Seconds between two descriptions of an endpoint that the service changes.
        kind: Name of the kind of server.
        service: Name of the service.
        part: The service's word for what serves one version.
        names: Pattern of an endpoint's name, and its description.

    Raises:
        BadInput: A field of the connection is missing or invalid.
    """

    splits: ClassVar[bool] = True
    poll_s: ClassVar[float] = 2.0
    kind: ClassVar[str]
    service: ClassVar[str]
    part: ClassVar[str]
    names: ClassVar[tuple[str, str]]

    def __init__(
        self,
        services: Mapping[str, str],
        places: SharedPlaces,
        folders: VersionFolders,
        store: ArtifactStore,
        change_timeout_s: float = 1800.0,
    ) -> None:
        self._folders, self._store, self._change_timeout_s = folders, store, change_timeout_s

    @abstractmethod
    def _describe(self, name: str) -> Endpoint:
        """Returns an endpoint as it is."""

    @abstractmethod
    def _intend(self, name: str, present: EndpointState | None, weights: Mapping[str, float]) -> EndpointState:
        """Returns the state with these versions and weights. Raises BadInput if a version cannot be served."""

    @abstractmethod
    def _apply(self, name: str, present: EndpointState | None, intended: EndpointState) -> None:
        """Begins to make an endpoint of a state; creates it if it does not exist."""

    @abstractmethod
    def _delete_endpoint(self, name: str) -> None:
        """Deletes an endpoint, if it exists."""

    @abstractmethod
    def _remove_unused(self, name: str, former: EndpointState | None, state: EndpointState | None) -> None:
        """Deletes what was made for a former state, and is not used by another."""

    def record(self, name: str) -> EndpointRecord:
        """Returns what was written to an endpoint."""
        try:
            return EndpointRecord.from_dict(json.loads(self._store.read_text(self._uri(name))))
        except FileNotFoundError:
            return EndpointRecord()

    def describe(self, name: str) -> Endpoint:
        """Returns an endpoint as it is. Raises HopsError if the service does not answer."""
        pattern, expected = self.names
        if not re.fullmatch(pattern, name):
            raise BadInput(
                f"model_name is {name!r}, which cannot be the name of an endpoint; expected {expected}: rename the "
                "model"
            )
        return self._describe(name)

    def checked(self, name: str) -> EndpointRecord:
        """Waits for a change that is under way, and returns the record, which then is what the endpoint has.

        Raises:
            BadInput: Somebody else has changed the endpoint.
            HopsError: The change takes too long, or the service does not answer.
        """
        endpoint, record = self._wait(name), self.record(name)
        if endpoint.status and not endpoint.serves:
            if record.state is not None or not record.is_changing:
                raise BadInput(
                    f"endpoint {name!r} is {endpoint.status} ({endpoint.failure or 'without a reason'}); repair it in "
                    f"{self.service}, or undeploy the model"
                )
            self._delete_endpoint(name)  # it was never created, and can only be deleted
            endpoint = self._wait(name)
        if record.is_changing and endpoint.state == record.intended:
            self._remove_unused(name, record.state, record.intended)
            record = replace(record, state=record.intended, intended=None, is_changing=False)
            self._write(name, record)
        elif endpoint.state != record.state:
            raise BadInput(f"endpoint {name!r}: {self._difference(record, endpoint.state)}")
        return record

    def change(self, name: str, weights: Mapping[int, float], labels: Mapping[str, int]) -> None:
        """Makes an endpoint have some versions and weights; it returns once the service has begun.

        Raises:
            BadInput: Somebody else has changed the endpoint, or the service refuses the change.
            HopsError: Another change takes too long, or the service does not answer.
        """
        record = self.checked(name)
        present = record.state
        intended = self._intend(name, present, {str(version): float(w) for version, w in sorted(weights.items())})
        if intended != record.intended:
            self._remove_unused(name, record.intended, present)  # of a change that did not happen
        if intended == present:
            self._write(name, replace(record, labels=dict(labels), is_changing=False, intended=None))
            return
        self._write(name, replace(record, intended=intended, is_changing=True, labels=dict(labels)))
        self._apply(name, present, intended)

    def delete(self, name: str) -> None:
        """Deletes an endpoint with all that was made for it.

        Raises:
            BadInput: Somebody else has made or changed the endpoint.
            HopsError: The service does not answer, or takes too long.
        """
        endpoint, record = self._wait(name), self.record(name)
        if not endpoint.status or endpoint.serves or record == EndpointRecord():
            record = self.checked(name)
        if record.state is not None:
            self._remove_unused(name, record.intended, record.state)  # before the record forgets it
            self._write(name, replace(record, intended=None, is_changing=True))
        self._delete_endpoint(name)
        self._wait(name)
        self._remove_unused(name, record.state or record.intended, None)
        self._write(name, EndpointRecord())

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent. Raises BadInput if somebody else has changed the endpoint."""
        state = self.checked(model_name).state
        weights = {} if state is None else state.weights
        return {int(name): round(weight) for name, weight in weights.items() if weight}

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Sets the weights, in effect on return.

        Raises:
            BadInput: Somebody else has changed the endpoint, or it does not have a version.
            HopsError: The service did not make the change, or does not answer.
        """
        record = self.checked(model_name)
        if percents is None or record.state is None:
            return
        if missing := set(percents) - set(record.state.versions):
            raise BadInput(f"endpoint {model_name!r} has no {self.part} 'v{min(missing)}'; deploy the version first")
        weights = {version: float(percents.get(version, 0)) for version in record.state.versions}
        self.change(model_name, weights, record.labels)
        if self.checked(model_name).is_changing:
            reason = self.describe(model_name).failure or "without a reason"
            raise HopsError(f"endpoint {model_name!r} keeps its weights: {self.service} failed to set them ({reason})")

    def _wait(self, name: str) -> Endpoint:
        """Returns an endpoint once it is not changed any more.

        Raises:
            BadInput: Somebody else changes it.
            HopsError: The change takes too long.
        """
        deadline_s = time.monotonic() + self._change_timeout_s
        while (endpoint := self.describe(name)).in_transit:
            record = self.record(name)
            if endpoint.pending not in ("", *(state.config for state in (record.state, record.intended) if state)):
                raise BadInput(
                    f"endpoint {name!r} is {endpoint.status}: somebody else is changing it to {endpoint.pending!r}; "
                    "wait until that has ended, put back what was there, and clear the task"
                )
            if time.monotonic() > deadline_s:
                raise HopsError(
                    f"endpoint {name!r} is {endpoint.status} for more than {self._change_timeout_s:.0f} s; try again"
                )
            time.sleep(self.poll_s)
        return endpoint

    def _uri(self, name: str) -> str:
        return self._store.internal("_serving", f"{self.kind}_{name}.json")

    def _write(self, name: str, record: EndpointRecord) -> None:
        self._store.write_text(self._uri(name), json.dumps(record.to_dict(), indent=1))

    def _difference(self, record: EndpointRecord, shown: EndpointState | None) -> str:
        """Describes what somebody else has changed, and what to do."""
        expected = record.state
        if expected is None:
            assert shown is not None
            return (
                f"it exists, with the config {shown.config!r}, and was not made with this store; delete it, or give "
                "the model another name"
            )
        if shown is None:
            return f"it was deleted, and had the config {expected.config!r}; make it again, or undeploy the model"
        for name in sorted({*expected.weights, *shown.weights}):
            part = f"the {self.part} {part_name(name)!r}"
            weights = expected.weights.get(name), shown.weights.get(name)
            if weights[0] != weights[1]:
                what = (
                    f"{part} was removed"
                    if weights[1] is None
                    else f"{part} is new"
                    if weights[0] is None
                    else f"{part} has the weight {weights[1]:g}, and was given {weights[0]:g}"
                )
                return f"{what}: somebody else has changed it, which is not overwritten; put it back"
        return (
            f"its config is {shown.config!r}, and was {expected.config!r}: somebody else has changed it, which is not "
            "overwritten; put it back"
        )


def by_version(weights: Mapping[str, float]) -> dict[str, float]:
    """Returns the weights by version; a part that is not ours keeps its name."""
    return {
        name[1:] if re.fullmatch(r"v\d+", name) else f"part {name}": weight for name, weight in sorted(weights.items())
    }


def part_name(name: str) -> str:
    """Returns the service's name of a part, by its name in :func:`by_version`."""
    return f"v{name}" if name.isdigit() else name.removeprefix("part ")
