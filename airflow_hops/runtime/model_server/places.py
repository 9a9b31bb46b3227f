"""What worker and model server share, as a connection says: the ``serving_*`` paths of a step's services."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput


@dataclass(frozen=True)
class SharedPlaces:
    """Folders and files.

    Attributes:
        base_path: Folder of the models as the worker sees it: absolute path, or URI that fsspec opens; versions lie in
            ``<base_path>/<model>/<version>``.
        server_base_path: The same folder as the server sees it.
        storage_options: Passed to fsspec, for the base path.
        config_file: The server's ``--model_config_file``, on a file system that worker and server share; None where
            there is none, and the config is sent by ``HandleReloadConfigRequest``.
        traffic_file: Its ``--traffic_config_file``, likewise; None to set the traffic by RPC.
        capture_path: Its ``--capture_base_path``, or None.
    """

    base_path: str
    server_base_path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    config_file: Path | None = None
    traffic_file: Path | None = None
    capture_path: Path | None = None

    @classmethod
    def of(cls, services: Mapping[str, str]) -> SharedPlaces:
        """Reads the fields of a connection.

        Raises:
            BadInput: a field is missing, or is not what it should be.
        """
        base_path = _base_path(services, "serving_base_path")
        return cls(
            base_path=base_path,
            server_base_path=(services.get("serving_server_base_path") or base_path).rstrip("/"),
            storage_options=_storage_options(services, "serving_storage_options"),
            config_file=_path(services, "serving_config_file"),
            traffic_file=_path(services, "serving_traffic_file"),
            capture_path=_path(services, "serving_capture_path"),
        )


def _path(services: Mapping[str, str], name: str) -> Path | None:
    text = services.get(name)
    if not text:
        return None
    path = Path(text.removeprefix("file://"))
    if "://" in text.removeprefix("file://") or not path.is_absolute():
        raise BadInput(f"connection field {name!r} is {text!r}; expected an absolute path of a local file system")
    return path


def _base_path(services: Mapping[str, str], name: str) -> str:
    text = services.get(name)
    if not text:
        raise BadInput(f"the connection's field {name!r} is empty; expected a path that the model server reads too")
    if "://" in text.removeprefix("file://"):
        return text.rstrip("/")
    return str(_path(services, name))


def _storage_options(services: Mapping[str, str], name: str) -> Mapping[str, Any]:
    text = services.get(name)
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadInput(f"connection field {name!r} is {text!r}; expected a JSON object")
    return value
