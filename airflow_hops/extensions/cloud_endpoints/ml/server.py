"""Endpoints of a cloud as a model server: one for each model, whose parts are the versions that it serves.

Clients ask the endpoint itself. The service splits requests by the parts' weights, and may capture them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api import config
from airflow_hops.core.serving_api.answers import ModelVersion
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.cloud_endpoints.ml.endpoints import CloudEndpoints
from airflow_hops.ml.captured.snapshot import logged_requests
from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.model_server.version_folders import own_folders
from airflow_hops.serving.models.lookups import refuse_lookup


@dataclass(frozen=True)
class EndpointServer(ModelServer):
    """Endpoints of a cloud; a subclass names the class that controls them."""

    configs: _Unused
    shares: CloudEndpoints
    endpoints: ClassVar[type[CloudEndpoints]]
    keeps_former: ClassVar[bool] = False
    has_stats: ClassVar[bool] = False
    reads_log: ClassVar[bool] = True

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the endpoints of a connection; see :meth:`ModelServer.connect`."""
        places, folders = own_folders(services, store)
        return cls(at, places, store, folders, _Unused(), cls.endpoints(services, places, folders, store))

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Copies a model to its version's folder; see :meth:`ModelServer.publish`."""
        refuse_lookup(model, self.shares.service)
        return super().publish(model, model_name, version, fingerprint)

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's versions, and of those that a change adds."""
        endpoint, record = self.shares.describe(model_name), self.shares.record(model_name)
        states: dict[int, ModelVersion] = {}
        if record.is_changing and record.intended is not None:
            state, reason = "LOADING", ""
            if endpoint.status and not endpoint.in_transit:
                state, reason = "END", endpoint.failure or f"{self.shares.service} did not add it"
            states = {number: ModelVersion(number, state, reason) for number in record.intended.versions}
        if endpoint.state is not None and endpoint.serves:
            there = [int(name) for name in endpoint.state.weights if name.isdigit()]
            states |= {number: ModelVersion(number, "AVAILABLE") for number in there}
        return [states[number] for number in sorted(states) if version in (None, number)]

    def serve(self, model_name: str, versions: list[int], labels: Mapping[str, int] | None = None) -> Any:
        """Makes the endpoint have a part for each version; a new one gets no requests yet.

        Returns what was served before, for :meth:`restore`; see :meth:`ModelServer.serve`.
        """
        record = self.shares.checked(model_name)
        present = {} if record.state is None else {int(name): weight for name, weight in record.state.weights.items()}
        weights = {version: present.get(version, 0.0) for version in versions}
        main = max(versions, key=weights.__getitem__)
        weights[main] += 100.0 - sum(weights.values())  # of the versions that end
        staying = {label: version for label, version in record.labels.items() if version in versions}
        self.shares.change(model_name, weights, staying if labels is None else labels)
        if not present:
            return None
        served, source = self.configs.read(), self.configs.source
        config.put_model(served, source, model_name, self.folders.uri(model_name), sorted(present), record.labels)
        return config.take_model(served, model_name)

    def serve_again(self, model_name: str) -> None:
        """No-op: an endpoint keeps its parts."""

    def restore(self, model_name: str, previous: Any) -> None:
        """Undoes :meth:`serve` with its result."""
        if previous is None:
            self.withdraw(model_name)
        else:
            self.serve(model_name, list(previous.model_version_policy.specific.versions), dict(previous.version_labels))

    def withdraw(self, model_name: str) -> None:
        """Deletes the endpoint of a model."""
        self.shares.delete(model_name)

    def configured(self, model_name: str) -> list[int]:
        """Returns the versions that the endpoint has, or gets by a change that is under way.

        While it is deleted, they are those that it had, so that a killed deletion is taken up again.
        """
        record = self.shares.record(model_name)
        state = record.intended or record.state if record.is_changing else record.state
        return [] if state is None else state.versions

    def labels(self, model_name: str) -> dict[str, int]:
        """Returns the recorded labels of a model, which the service does not know."""
        return dict(self.shares.record(model_name).labels)

    def set_labels(self, model_name: str, labels: Mapping[str, int]) -> None:
        """Records the labels."""
        if self.labels(model_name) != labels:
            record = self.shares.checked(model_name)
            weights = {} if record.state is None else record.state.weights
            self.shares.change(model_name, {int(name): weight for name, weight in weights.items()}, labels)

    def wait_until_available(
        self, model_name: str, version: int, timeout_s: float, *, on_state: Callable[[str], None] = lambda state: None
    ) -> None:
        """Waits until a version is in service; see :meth:`ModelServer.wait_until_available`."""
        deadline_s, last = time.monotonic() + timeout_s, ""
        part = f"endpoint {model_name!r}, {self.shares.part} 'v{version}'"
        while True:
            state = next(iter(self.status(model_name, version)), ModelVersion(version, "START"))
            if state.state != last:
                on_state(last := state.state)
            if state.state == "AVAILABLE" and not self.shares.describe(model_name).in_transit:
                self.shares.checked(model_name)
                return
            if state.error:
                raise BadInput(f"{part}: {state.error}")
            if time.monotonic() > deadline_s:
                raise HopsError(f"{part}, is {state.state} after {timeout_s:.0f} s")
            time.sleep(self.shares.poll_s)

    def counts(self, model_name: str, since: str | None = None) -> dict[int, dict[str, Any]]:
        """Returns the requests of each version since a time that are in the ingested windows of its log."""
        shares, unknown = self.shares.read(model_name), {"errors": 0, "client_errors": 0}
        requests = logged_requests(self.store, model_name, since) if since else {}
        return {
            each: {**unknown, "requests": requests.get(each, 0), "traffic_percent": float(shares.get(each, 0))}
            for each in self.configured(model_name)
        }

    def flush_capture(self) -> None:
        """No-op: the ingest of its log reads what the service has written."""


class _Unused:
    """Holds no ``ModelServerConfig``: the record of an endpoint takes its place."""

    source = "the endpoint"

    def read(self) -> Any:
        """Returns an empty config."""
        return config.parse_config("", self.source)

    def change(self, change: Callable[[Any], Any]) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError
