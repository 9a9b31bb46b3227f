"""Paths that worker and model server share, from the ``serving_*`` entries of a step's services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import ConnectionFieldError
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.store import ArtifactStore


@dataclass(frozen=True)
class SharedPlaces:
    """Folders and files that worker and model server share.

    Attributes:
        base_path: Folder of the models as the worker sees it: absolute path, or URI that fsspec opens; versions are in
            ``<base_path>/<model>/<version>``.
        server_base_path: The same folder as the server sees it.
        storage_options: fsspec options of the base path.
        config_file: The server's ``--model_config_file``, on a file system that worker and server share; None to send
            the config with ``HandleReloadConfigRequest``.
        traffic_file: The server's ``--traffic_config_file``, likewise; None to set the traffic by RPC.
    """

    base_path: str
    server_base_path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    config_file: Path | None = None
    traffic_file: Path | None = None

    @classmethod
    def of(cls, services: Mapping[str, str], store: ArtifactStore) -> SharedPlaces:
        """Reads the fields of a connection. Raises BadInput if a field is missing or invalid."""
        base_path = _location(services, "serving_base_path")
        if base_path is None:
            raise ConnectionFieldError("serving_base_path").with_text(
                "the connection's field 'serving_base_path' is empty; expected a path that the model server reads too"
            )
        return cls(
            base_path=base_path,
            server_base_path=(services.get("serving_server_base_path") or base_path).rstrip("/"),
            storage_options=storage_options_of(services, base_path, store),
            config_file=local_path(services, "serving_config_file"),
            traffic_file=local_path(services, "serving_traffic_file"),
        )


def capture_path(services: Mapping[str, str]) -> str | None:
    """Returns the server's ``--capture_base_path`` as the worker sees it, an absolute path or a URI; None if not set.

    Raises:
        BadInput: it is neither.
    """
    return _location(services, "serving_capture_path")


def storage_options_of(services: Mapping[str, str], location: str, store: ArtifactStore) -> Mapping[str, object]:
    """Returns the fsspec options of a location: the connection's, or the artifact store's if it has the same protocol.

    Raises:
        BadInput: the connection's field is not a JSON object.
    """
    name = "serving_storage_options"
    value = json_object(services.get(name), f"connection field {name!r}")
    if not value and location.partition("://")[0] == store.root.partition("://")[0]:
        return store.storage_options
    return value


def local_path(services: Mapping[str, str], name: str) -> Path | None:
    """Returns a file on a file system that worker and model server share, by the name of its entry; None if not set.

    Raises:
        BadInput: it is not an absolute path.
    """
    text = services.get(name)
    if not text:
        return None
    path = Path(text.removeprefix("file://"))
    if "://" in text.removeprefix("file://") or not path.is_absolute():
        raise ConnectionFieldError(name, f" is {text!r}; expected an absolute path of a local file system")
    return path


def _location(services: Mapping[str, str], name: str) -> str | None:
    text = services.get(name)
    if text and "://" in text.removeprefix("file://"):
        return text.rstrip("/")
    path = local_path(services, name)
    return None if path is None else str(path)
