"""Controls a model server for the steps of deploy, rollout and the traffic operators.

All operations are idempotent, so that a task that was killed at any point can be retried.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.files import locked
from airflow_hops.core.serving_api import config
from airflow_hops.core.serving_api.answers import ModelVersion
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.serving_api.server_kinds import model_server_kinds
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import exclusive
from airflow_hops.ml.model_server.steering import (
    ConfigByRpc,
    ConfigFile,
    ModelConfigs,
    NoTraffic,
    TrafficByRpc,
    TrafficFile,
    TrafficShares,
)
from airflow_hops.ml.model_server.version_folders import LocalFolders, VersionFolders, check_model, version_folders
from airflow_hops.ml.step.context import resolve

_POLL_S = 0.05


@dataclass(frozen=True)
class ModelServer:
    """A running server of this package; subclasses control other kinds of servers.

    Attributes:
        places: Folders and files that it shares with the worker.
        folders: Folders of its models' versions.
        configs: Its config, with the models and versions to serve.
        shares: Its split of the traffic.
        keeps_former: Whether it can serve former champions beside champion and canary.
        has_stats: Whether its counts are at a URL, ``/v1/stats``.
        reads_log: Whether its counts and captured rows are those of its ingested log, without failed requests.
    """

    at: ServerAddress
    places: SharedPlaces
    store: ArtifactStore
    folders: VersionFolders
    configs: ModelConfigs
    shares: TrafficShares

    keeps_former: ClassVar[bool] = True
    has_stats: ClassVar[bool] = True
    reads_log: ClassVar[bool] = False

    @staticmethod
    def of(services: Mapping[str, str], store: ArtifactStore) -> ModelServer:
        """Returns the server of the connection, from a step's services.

        The store holds the config of a server without a config file.

        Raises:
            BadInput: a field of the connection is missing or invalid.
        """
        address = ServerAddress.of(services)
        control: type[ModelServer] = resolve(model_server_kinds()[address.kind].control)  # type: ignore[assignment]
        return control.connect(address, services, store)

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the server at an address; arguments and errors as for :meth:`of`."""
        places = SharedPlaces.of(services, store)
        configs = ConfigFile(places.config_file) if places.config_file else _config_by_rpc(at, places, store)
        folders = version_folders(places.base_path, places.storage_options)
        return cls(at, places, store, folders, configs, traffic_of(at, places))

    @property
    def splits_traffic(self) -> bool:
        """Whether it can give a version a share of the traffic; a ``tensorflow_model_server`` cannot."""
        return self.shares.splits

    @property
    def starts_from_files(self) -> bool:
        """Whether it reads its models and its split from files when it starts."""
        return isinstance(self.configs, ConfigFile) and isinstance(self.shares, TrafficFile)

    def exclusive(self, model_name: str, timeout_s: float = 300.0) -> contextlib.AbstractContextManager[None]:
        """Locks a model for one task: concurrent deployments or decisions would undo each other.

        Raises:
            LockHeld: another task has held it for ``timeout_s`` seconds.
        """
        if isinstance(self.folders, LocalFolders):
            return locked(Path(self.folders.uri(model_name)) / ".lock", timeout_s)
        folder = self.store.internal("_serving", f"{model_name}.lock")
        return exclusive(self.store, folder, f"model {model_name!r}", timeout_s)

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's versions, or of one; empty if the server knows none.

        Raises:
            HopsError: the server does not answer.
        """
        with self.at.client() as client:
            return client.status(model_name, version)

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Copies a model of any format to its version's folder, atomically, with the model artifact's fingerprint.

        Returns:
            False if the folder already existed with the same model.

        Raises:
            BadInput: ``model`` is not a model, or the folder holds another model.
        """
        check_model(model, served_by=self.at.kind)
        return self.folders.publish(model, model_name, version, fingerprint)

    def serve(self, model_name: str, versions: list[int], labels: Mapping[str, int] | None = None) -> Any:
        """Makes the server serve some versions of a model; returns the model's previous config for :meth:`restore`.

        If ``labels`` (label to version) is None, the labels of versions that stay are kept.
        """

        def put(message: object) -> Any:
            staying = {label: v for label, v in _labels(message, model_name).items() if v in versions}
            path = f"{self.places.server_base_path}/{model_name}"
            new = staying if labels is None else labels
            return config.put_model(message, self.configs.source, model_name, path, versions, new)

        return self.configs.change(put)

    def serve_again(self, model_name: str) -> None:
        """Sends the config of a model if the server has lost it in a restart, as it does if it is configured by RPC.

        Raises:
            HopsError: the server does not answer.
        """
        if not self.status(model_name) and (versions := self.configured(model_name)):
            self.serve(model_name, versions)

    def restore(self, model_name: str, previous: object) -> None:
        """Undoes :meth:`serve` with its result."""
        if previous is None:
            self.withdraw(model_name)
        else:
            self.configs.change(lambda message: config.put_back_model(message, previous))

    def withdraw(self, model_name: str) -> None:
        """Makes the server unload all versions of a model."""
        self.configs.change(lambda message: config.take_model(message, model_name))

    def configured(self, model_name: str) -> list[int]:
        """Returns the configured versions of a model."""
        return _configured(self.configs.read(), model_name)

    def labels(self, model_name: str) -> dict[str, int]:
        """Returns the configured labels of a model."""
        return _labels(self.configs.read(), model_name)

    def set_labels(self, model_name: str, labels: Mapping[str, int]) -> None:
        """Sets the labels in a separate reload, because a label of a version that is not loaded yet is refused."""
        if self.labels(model_name) != labels:
            self.serve(model_name, self.configured(model_name), labels)

    def set_traffic(self, model_name: str, percents: Mapping[int, int]) -> None:
        """Sets the shares of the versions, without those of 0%."""
        self.shares.set(model_name, {version: percent for version, percent in percents.items() if percent})

    def last_error(self, model_name: str, version: int) -> str:
        """Returns the server's error of a version."""
        return next((state.error for state in self.status(model_name, version)), "")

    def wait_until_available(
        self, model_name: str, version: int, timeout_s: float, *, on_state: Callable[[str], None] = lambda state: None
    ) -> None:
        """Waits until the server answers requests with a version.

        Raises:
            BadInput: the server could not load it.
            HopsError: it is not available in time, or the server does not answer.
        """
        try:
            with self.at.client() as client:
                client.wait_until_available(model_name, version, timeout_s, on_state=on_state)
        except BadInput as error:
            raise BadInput(f"{error} (in {self.folders.uri(model_name, version)})") from error
        except HopsError as error:
            raise HopsError(f"{error}; {self.why_not_available(model_name)}") from error

    def why_not_available(self, model_name: str) -> str:
        """Returns a possible reason why a model is not available in time."""
        return f"does the server read {self.configs.source} (--model_config_file_poll_wait_seconds)?"

    def wait_until_gone(self, model_name: str, version: int, timeout_s: float) -> bool:
        """Waits until the server has unloaded a version; returns False if it has not in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with contextlib.suppress(HopsError):
                if all(state.state == "END" and not state.error for state in self.status(model_name, version)):
                    return True
            time.sleep(_POLL_S)
        return False

    def counts(self, model_name: str, since: str | None = None) -> dict[int, dict[str, Any]]:
        """Returns the server's counts of each version since it started (``GET /v1/stats?histograms=1``).

        Without ``has_stats``, they are those since a time, ISO 8601 UTC.

        Raises:
            BadInput: the connection has no REST port.
            HopsError: the server does not answer.
        """
        answer = self.at.rest_client().call("GET", "/v1/stats?histograms=1")
        versions = answer.get("models", {}).get(model_name, {}).get("versions", {})
        return {int(version): {**figures, "server_since": answer.get("since")} for version, figures in versions.items()}

    def flush_capture(self) -> None:
        """Makes the server write the requests captured so far."""
        self.at.rest_client().call("POST", "/v1/capture:flush")


class TensorFlowModelServer(ModelServer):
    """TensorFlow Serving's server, which is configured by RPC, and does not split traffic."""

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the server at an address; see :meth:`ModelServer.connect`."""
        places = SharedPlaces.of(services, store)
        configs = _config_by_rpc(at, places, store)
        shares = NoTraffic(str(at), lambda model_name: _configured(configs.read(), model_name))
        return cls(at, places, store, version_folders(places.base_path, places.storage_options), configs, shares)


def traffic_of(at: ServerAddress, places: SharedPlaces) -> TrafficShares:
    """Returns the traffic split of the bundled server, in its file or by RPC."""
    return TrafficFile(places.traffic_file) if places.traffic_file is not None else TrafficByRpc(at.client)


def _config_by_rpc(address: ServerAddress, places: SharedPlaces, store: ArtifactStore) -> ConfigByRpc:
    return ConfigByRpc(store, f"{address.host}:{address.grpc_port}", address.client, first=places.config_file)


def _configured(message: Any, model_name: str) -> list[int]:
    models = [model for model in message.model_config_list.config if model.name == model_name]
    return sorted(version for model in models for version in model.model_version_policy.specific.versions)


def _labels(message: Any, model_name: str) -> dict[str, int]:
    models = (model for model in message.model_config_list.config if model.name == model_name)
    return next((dict(model.version_labels) for model in models), {})
