"""Sets a model server's models and traffic split: by the files that it reads, or by RPC.

A server that is configured by RPC cannot return its config, and forgets it when it restarts: the complete config is
stored in the artifact store, under ``_serving/<host>_<port>.config``, and always sent completely.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api import config, traffic_config
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import exclusive

# By file: change_config() rewrites the file atomically under its lock, and the server polls it. By RPC, under a lock in
# the store: write the complete config to the store, send it, and on refusal write and send the previous one. A kill
# between write and send leaves a config that the server does not have; the next change(), or serve_again(), sends it.
# Labels can only point to available versions, so after a restart the config is sent without labels first.


class ModelConfigs(Protocol):
    """The config of a server: its models, and the versions and labels of each.

    Attributes:
        source: Description of where the config is, for errors.
    """

    source: str

    def read(self) -> Any:
        """Returns the ``ModelServerConfig``; an empty one if there is none yet."""

    def change(self, change: Callable[[Any], Any]) -> Any:
        """Applies ``change`` to the config, so that the server follows, and returns its result.

        Raises:
            ConfigError: the changed config is not valid.
            HopsError: the server refuses it, or does not answer.
        """


class TrafficShares(Protocol):
    """The shares of a model's versions.

    Attributes:
        splits: Whether a version can get a share of the traffic.
    """

    splits: ClassVar[bool]

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent; empty if the newest version answers."""

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Sets the shares; None removes them. Raises BadInput if the server cannot split traffic so."""


class ConfigFile:
    """The server's ``--model_config_file``, on a file system that worker and server share."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, str(path)

    def read(self) -> Any:
        """Returns the ``ModelServerConfig`` of the file; an empty one if it does not exist."""
        return config.read_config(self.path) if self.path.exists() else config.parse_config("", "")

    def change(self, change: Callable[[Any], object]) -> Any:
        """Applies ``change`` to the file, which the server polls, and returns its result.

        Raises:
            ConfigError: the changed config is not valid.
        """
        return config.change_config(self.path, change)


class StoredConfig:
    """A config in the artifact store.

    Args:
        store: The artifact store.
        name: Name of the server in the store.
        lock_s: Seconds to wait for another change.
    """

    def __init__(self, store: ArtifactStore, name: str, lock_s: float = 300.0) -> None:
        self._store, self._lock_s = store, lock_s
        self.source = store.internal("_serving", f"{name}.config")
        self._lock = store.internal("_serving", f"{name}.lock")

    def read(self) -> Any:
        """Returns the ``ModelServerConfig`` that was written last."""
        try:
            return config.parse_config(self._store.read_text(self.source), self.source)
        except FileNotFoundError:
            return self._first_config()

    def change(self, change: Callable[[Any], object]) -> Any:
        """Applies ``change`` to the config, and returns its result. Raises ConfigError if it is not valid then."""
        with exclusive(self._store, self._lock, self.source, self._lock_s):
            original, changed = self.read(), self.read()
            result = change(changed)
            changed.model_config_list.SetInParent()
            config.check_config(changed, self.source)
            self._put(changed, original)
        return result

    def _first_config(self) -> Any:
        """Returns the config before the first change: an empty one."""
        return config.parse_config("", "")

    def _put(self, changed: Any, original: Any) -> None:
        """Makes a changed config that of the server."""
        self._store.write_text(self.source, config.format_config(changed))


class ConfigByRpc(StoredConfig):
    """A config that is stored in the artifact store, and sent by ``HandleReloadConfigRequest``.

    Args:
        store: The artifact store.
        name: Name of the server in the store.
        connect: Opens a client.
        first: File with the config that the server was started with; None if it began without models.
        load_timeout_s: Seconds that the server may take to answer, which it does once new versions are available.
    """

    def __init__(
        self,
        store: ArtifactStore,
        name: str,
        connect: Callable[[], ModelServerClient],
        *,
        first: Path | None = None,
        load_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(store, name, 3 * load_timeout_s)
        self._connect, self._first, self._load_timeout_s = connect, first, load_timeout_s

    def _first_config(self) -> Any:
        """Returns the config that the server was started with."""
        return config.read_config(self._first) if self._first else super()._first_config()

    def _put(self, changed: Any, original: Any) -> None:
        """Writes and sends the changed config; puts the previous one back if the server refuses it, or is away."""
        super()._put(changed, original)
        try:
            self._send(changed)
        except HopsError:
            super()._put(original, changed)
            with contextlib.suppress(HopsError):
                self._send(original)
            raise

    def _send(self, message: Any) -> None:
        with self._connect() as client:
            try:
                self._reload(client, message)
            except BadInput:
                # A restarted server has not loaded the labelled versions yet.
                if not any(model.version_labels for model in message.model_config_list.config):
                    raise
                unlabelled = type(message)()
                unlabelled.CopyFrom(message)
                for model in unlabelled.model_config_list.config:
                    model.version_labels.clear()
                self._reload(client, unlabelled)
                self._reload(client, message)

    def _reload(self, client: ModelServerClient, message: object) -> None:
        try:
            client.reload_config(message, timeout_s=self._load_timeout_s)
        except ModelServerError as error:
            # Otherwise a version did not load, or not in time, which its state reports with the reason.
            if isinstance(error, BadInput) or error.code.name == "UNAVAILABLE":
                raise


class TrafficFile:
    """The bundled server's ``--traffic_config_file``, on a file system that worker and server share."""

    splits: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent; empty if the newest version answers."""
        return dict(traffic_config.read_traffic_config(self._path).get(model_name, {}))

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Writes the shares into the file, which the server polls; None removes them."""
        traffic_config.set_traffic(self._path, model_name, percents)


class TrafficByRpc:
    """The bundled server's ``TrafficService``."""

    splits: ClassVar[bool] = True

    def __init__(self, connect: Callable[[], ModelServerClient]) -> None:
        self._connect = connect

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent; empty if the newest version answers."""
        with self._connect() as client:
            try:
                return dict(client.traffic(model_name).percents or {})
            except ModelServerError as error:
                if error.code.name == "NOT_FOUND":
                    return {}
                raise

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Sets the shares, in effect on return; None removes them."""
        with self._connect() as client:
            try:
                client.set_traffic(model_name, percents)
            except ModelServerError as error:
                if percents is not None or error.code.name != "NOT_FOUND":
                    raise


class NoTraffic:
    """A ``tensorflow_model_server``: requests without a version go to the newest loaded one."""

    splits: ClassVar[bool] = False

    def __init__(self, address: str, served: Callable[[str], list[int]]) -> None:
        self._address, self._served = address, served

    def read(self, model_name: str) -> dict[int, int]:
        """Returns the newest version with all of the traffic."""
        return dict.fromkeys(self._served(model_name)[-1:], 100)

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Checks that the shares are those of :meth:`read`.

        Raises:
            BadInput: they are not.
        """
        if percents is not None and dict(percents) != self.read(model_name):
            shares = ", ".join(f"version {version}: {percent}%" for version, percent in percents.items())
            raise BadInput(
                f"model {model_name!r}: {self._address} is a tensorflow_model_server, which does not split traffic "
                f"({shares}): requests that name no version go to the newest one. Put the bundled server in front of "
                f"it (airflow hops serve -- --upstream={self._address}), and name that one in the connection"
            )
