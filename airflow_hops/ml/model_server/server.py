"""The model server as deploy, rollout and the traffic operators steer it.

Everything here can be done twice with the same outcome, so that a task which was killed at any point can be retried.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.serving_api import config
from airflow_hops.core.serving_api.answers import ModelVersion
from airflow_hops.core.serving_api.server_address import TENSORFLOW_MODEL_SERVER, ServerAddress
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.shared_places import SharedPlaces
from airflow_hops.ml.model_server.locks import file_lock, store_lock
from airflow_hops.ml.model_server.steering import (
    ConfigByRpc,
    ConfigFile,
    ModelConfigs,
    NoTraffic,
    Traffic,
    TrafficByRpc,
    TrafficFile,
)
from airflow_hops.ml.model_server.version_folders import (
    LocalFolders,
    VersionFolders,
    check_model,
    version_folders,
)

_POLL_S = 0.05


@dataclass(frozen=True)
class ModelServer:
    """A running server.

    Attributes:
        at: Where it is.
        places: What it shares with the worker.
        store: The artifact store.
        folders: The versions of its models.
        configs: What it is to serve.
        shares: How it splits the traffic.
    """

    at: ServerAddress
    places: SharedPlaces
    store: ArtifactStore
    folders: VersionFolders
    configs: ModelConfigs
    shares: Traffic

    @classmethod
    def of(cls, services: Mapping[str, str], store: ArtifactStore) -> ModelServer:
        """The server that the connection names.

        Args:
            services: A step's services.
            store: The artifact store, which keeps the config of a server that has no file for it.

        Raises:
            BadInput: a field is missing, or is not what it should be.
        """
        at, places = ServerAddress.of(services), SharedPlaces.of(services, store)
        foreign = at.kind == TENSORFLOW_MODEL_SERVER
        configs: ModelConfigs
        if foreign or places.config_file is None:
            configs = ConfigByRpc(store, f"{at.host}_{at.grpc_port}", at.client, first=places.config_file)
        else:
            configs = ConfigFile(places.config_file)
        shares: Traffic
        if foreign:
            shares = NoTraffic(str(at), lambda model_name: _configured(configs.read(), model_name))
        elif places.traffic_file is not None:
            shares = TrafficFile(places.traffic_file)
        else:
            shares = TrafficByRpc(at.client)
        folders = version_folders(places.base_path, places.storage_options)
        return cls(at, places, store, folders, configs, shares)

    @property
    def splits_traffic(self) -> bool:
        """Whether it can give a version a share of the traffic: a ``tensorflow_model_server`` cannot."""
        return self.shares.splits

    def exclusive(self, model_name: str, timeout_s: float = 300.0) -> contextlib.AbstractContextManager[None]:
        """Holds a model for one task: two that deploy or decide at once would undo each other's work.

        Raises:
            HopsError: another task has held it for ``timeout_s`` seconds.
        """
        what = f"model {model_name!r}"
        if isinstance(self.folders, LocalFolders):
            return file_lock(Path(self.folders.uri(model_name)) / ".lock", what, timeout_s)
        return store_lock(self.store, self.store.uri("_serving", f"{model_name}.lock"), what, timeout_s)

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """States of a model's versions, or of one; an empty list where the server knows none.

        Raises:
            HopsError: the server does not answer.
        """
        with self.at.client() as client:
            return client.status(model_name, version)

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Copies a model to its version's folder, which appears whole or not at all.

        Args:
            model: Folder of the model, of any format.
            model_name: Model name.
            version: Version number.
            fingerprint: The model artifact's, left in the folder.

        Returns:
            False if the folder was there already, with this very model.

        Raises:
            BadInput: there is no model, or the folder holds another model.
        """
        check_model(model, served_by=self.at.kind)
        return self.folders.publish(model, model_name, version, fingerprint)

    def serve(self, model_name: str, versions: list[int], labels: Mapping[str, int] | None = None) -> Any:
        """Has the server serve some versions of a model; what it was to serve before is returned.

        Args:
            model_name: Model name.
            versions: Version numbers.
            labels: Label to version; None keeps those there are, as far as their versions stay.
        """

        def put(message: Any) -> Any:
            staying = {label: v for label, v in _labels(message, model_name).items() if v in versions}
            path = f"{self.places.server_base_path}/{model_name}"
            new = staying if labels is None else labels
            return config.put_model(message, self.configs.source, model_name, path, versions, new)

        return self.configs.change(put)

    def serve_again(self, model_name: str) -> None:
        """Has a server that knows no version of a model serve what it is to: one that is told by RPC forgets it.

        Raises:
            HopsError: the server does not answer.
        """
        if not self.status(model_name) and (versions := self.configured(model_name)):
            self.serve(model_name, versions)

    def restore(self, model_name: str, previous: Any) -> None:
        """Undoes :meth:`serve` with what it returned."""
        if previous is None:
            self.withdraw(model_name)
        else:
            self.configs.change(lambda message: config.put_back_model(message, previous))

    def withdraw(self, model_name: str) -> None:
        """Has the server serve no version of a model any more."""
        self.configs.change(lambda message: config.take_model(message, model_name))

    def configured(self, model_name: str) -> list[int]:
        """The versions that the server is to serve of a model."""
        return _configured(self.configs.read(), model_name)

    def labels(self, model_name: str) -> dict[str, int]:
        """The labels that the server is to know."""
        return _labels(self.configs.read(), model_name)

    def set_labels(self, model_name: str, labels: Mapping[str, int]) -> None:
        """Moves the labels, in a reload of their own: a label on a version that is not loaded yet is refused."""
        if self.labels(model_name) != labels:
            self.serve(model_name, self.configured(model_name), labels)

    def set_traffic(self, model_name: str, percents: Mapping[int, int]) -> None:
        """Sets the shares of the versions; a share of nothing is left out."""
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
            HopsError: it is not available in time, or the server has gone.
        """
        try:
            with self.at.client() as client:
                client.wait_until_available(model_name, version, timeout_s, on_state=on_state)
        except BadInput as error:
            raise BadInput(f"{error} (in {self.folders.uri(model_name, version)})") from error
        except HopsError as error:
            raise HopsError(
                f"{error}; does the server read {self.configs.source} (--model_config_file_poll_wait_seconds)?"
            ) from error

    def wait_until_gone(self, model_name: str, version: int, timeout_s: float) -> bool:
        """Waits until the server has unloaded a version; whether it had in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with contextlib.suppress(HopsError):
                if all(state.state == "END" and not state.error for state in self.status(model_name, version)):
                    return True
            time.sleep(_POLL_S)
        return False

    def counts(self, model_name: str) -> dict[int, dict[str, Any]]:
        """Returns the server's counts of each version since it started (``GET /v1/stats?histograms=1``).

        Raises:
            BadInput: the connection names no REST port.
            HopsError: the server does not answer.
        """
        answer = self.at.rest_client().call("GET", "/v1/stats?histograms=1")
        versions = answer.get("models", {}).get(model_name, {}).get("versions", {})
        return {int(version): {**figures, "server_since": answer.get("since")} for version, figures in versions.items()}

    def flush_capture(self) -> None:
        """Has the server write what it captured so far."""
        self.at.rest_client().call("POST", "/v1/capture:flush")


def _configured(message: Any, model_name: str) -> list[int]:
    models = [model for model in message.model_config_list.config if model.name == model_name]
    return sorted(version for model in models for version in model.model_version_policy.specific.versions)


def _labels(message: Any, model_name: str) -> dict[str, int]:
    models = (model for model in message.model_config_list.config if model.name == model_name)
    return next((dict(model.version_labels) for model in models), {})
