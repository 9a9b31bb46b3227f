"""SageMaker as a model server: an endpoint for each model, whose variants are the versions that it serves.

Clients ask the endpoint itself. SageMaker splits requests by the variants' weights, and writes captured ones to S3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api import config
from airflow_hops.core.serving_api.answers import ModelVersion
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.sagemaker.ml.endpoints import SageMakerEndpoints
from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.model_server.version_folders import version_folders


@dataclass(frozen=True)
class SageMakerServer(ModelServer):
    """Endpoints of SageMaker."""

    configs: _Unused
    shares: VariantWeights
    keeps_former: ClassVar[bool] = False
    why_no_counts: ClassVar[str] = (
        "SageMaker's API has neither requests nor errors of a version, which a rollout compares (CloudWatch is not "
        "read): judge the canary by SkewOperator and PerformanceOperator of its captured rows, and use "
        "SetTrafficOperator, PromoteModelOperator and RollbackModelOperator instead of RolloutOperator"
    )

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the endpoints of a connection; see :meth:`ModelServer.connect`."""
        places = SharedPlaces.of(services, store)
        folders = version_folders(places.base_path, places.storage_options, own_folder=True)
        shares = VariantWeights(SageMakerEndpoints(services, places, store))
        return cls(at, places, store, folders, _Unused(), shares)

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's variants, and of those that a change adds."""
        endpoint, record = self._endpoints.describe(model_name), self._endpoints.record(model_name)
        states: dict[int, ModelVersion] = {}
        if record.is_changing and record.intended is not None:
            state, reason = "LOADING", ""
            if endpoint.status and not endpoint.in_transit:
                state, reason = "END", endpoint.failure or "SageMaker did not add the variant"
            states = {number: ModelVersion(number, state, reason) for number in record.intended.versions}
        if endpoint.state is not None and endpoint.status not in ("Creating", "Failed", "Deleting"):
            there = [int(name) for name in endpoint.state.weights if name.isdigit()]
            states |= {number: ModelVersion(number, "AVAILABLE") for number in there}
        return [states[number] for number in sorted(states) if version in (None, number)]

    def serve(self, model_name: str, versions: list[int], labels: Mapping[str, int] | None = None) -> Any:
        """Makes the endpoint have a variant for each version; a new one gets no requests yet.

        Returns what was served before, for :meth:`restore`; see :meth:`ModelServer.serve`.
        """
        record = self._endpoints.checked(model_name)
        present = {} if record.state is None else {int(name): weight for name, weight in record.state.weights.items()}
        weights = {version: present.get(version, 0.0) for version in versions}
        if not any(weights.values()):
            weights[versions[0]] = 100.0
        staying = {label: version for label, version in record.labels.items() if version in versions}
        self._endpoints.change(model_name, weights, staying if labels is None else labels)
        if not present:
            return None
        served, source = self.configs.read(), self.configs.source
        config.put_model(served, source, model_name, self.folders.uri(model_name), sorted(present), record.labels)
        return config.take_model(served, model_name)

    def serve_again(self, model_name: str) -> None:
        """No-op: an endpoint keeps its variants."""

    def restore(self, model_name: str, previous: Any) -> None:
        """Undoes :meth:`serve` with its result."""
        if previous is None:
            self.withdraw(model_name)
        else:
            self.serve(model_name, list(previous.model_version_policy.specific.versions), dict(previous.version_labels))

    def withdraw(self, model_name: str) -> None:
        """Deletes the endpoint of a model."""
        self._endpoints.delete(model_name)

    def configured(self, model_name: str) -> list[int]:
        """Returns the versions that the endpoint has, or gets by a change that is under way.

        While it is deleted, they are those that it had, so that a killed deletion is taken up again.
        """
        record = self._endpoints.record(model_name)
        state = record.intended or record.state if record.is_changing else record.state
        return [] if state is None else state.versions

    def labels(self, model_name: str) -> dict[str, int]:
        """Returns the recorded labels of a model, which SageMaker does not know."""
        return dict(self._endpoints.record(model_name).labels)

    def set_labels(self, model_name: str, labels: Mapping[str, int]) -> None:
        """Records the labels."""
        if self.labels(model_name) != labels:
            record = self._endpoints.checked(model_name)
            weights = {} if record.state is None else record.state.weights
            self._endpoints.change(model_name, {int(name): weight for name, weight in weights.items()}, labels)

    def wait_until_available(
        self, model_name: str, version: int, timeout_s: float, *, on_state: Callable[[str], None] = lambda state: None
    ) -> None:
        """Waits until a variant is in service; see :meth:`ModelServer.wait_until_available`."""
        deadline_s, last = time.monotonic() + timeout_s, ""
        while True:
            state = next(iter(self.status(model_name, version)), ModelVersion(version, "START"))
            if state.state != last:
                on_state(last := state.state)
            if state.state == "AVAILABLE" and not self._endpoints.describe(model_name).in_transit:
                self._endpoints.checked(model_name)
                return
            if state.error:
                raise BadInput(f"endpoint {model_name!r}, variant 'v{version}': {state.error}")
            if time.monotonic() > deadline_s:
                raise HopsError(
                    f"endpoint {model_name!r}, variant 'v{version}', is {state.state} after {timeout_s:.0f} s"
                )
            time.sleep(self._endpoints.poll_s)

    def counts(self, model_name: str) -> dict[int, dict[str, Any]]:
        """Raises BadInput: SageMaker counts requests in CloudWatch only."""
        raise BadInput(f"model {model_name!r}: {self.why_no_counts}")

    @property
    def _endpoints(self) -> SageMakerEndpoints:
        return self.shares.endpoints


class VariantWeights:
    """The shares of versions, as weights of variants."""

    splits: ClassVar[bool] = True

    def __init__(self, endpoints: SageMakerEndpoints) -> None:
        self.endpoints = endpoints

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent. Raises BadInput if somebody else has changed the endpoint."""
        state = self.endpoints.checked(model_name).state
        weights = {} if state is None else state.weights
        return {int(name): round(weight) for name, weight in weights.items() if weight}

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Sets the weights, in effect on return.

        Raises:
            BadInput: Somebody else has changed the endpoint, or it does not have a version.
        """
        record = self.endpoints.checked(model_name)
        if percents is None or record.state is None:
            return
        if missing := set(percents) - set(record.state.versions):
            raise BadInput(f"endpoint {model_name!r} has no variant 'v{min(missing)}'; deploy the version first")
        weights = {version: float(percents.get(version, 0)) for version in record.state.versions}
        self.endpoints.change(model_name, weights, record.labels)
        self.endpoints.checked(model_name)


class _Unused:
    """Holds no ``ModelServerConfig``: the record of an endpoint takes its place."""

    source = "SageMaker"

    def read(self) -> Any:
        """Returns an empty config."""
        return config.parse_config("", self.source)

    def change(self, change: Callable[[Any], Any]) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError
