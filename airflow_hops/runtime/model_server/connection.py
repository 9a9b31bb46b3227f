"""What a connection says of a model server: the ``serving_*`` entries of a step's services."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput
from airflow_hops.serving_api.client import TlsFiles

BUNDLED = "bundled"
TENSORFLOW_MODEL_SERVER = "tensorflow_model_server"
KINDS = (BUNDLED, TENSORFLOW_MODEL_SERVER)


@dataclass(frozen=True)
class ServerAddress:
    """Where a model server is, and what it shares with the worker.

    Attributes:
        kind: ``bundled``, the server of this package, by itself or in front of others; or
            ``tensorflow_model_server``, which has no traffic split.
        host: Its host.
        grpc_port: Its gRPC port.
        rest_port: Its REST port, or None where it has none.
        base_path: Folder of the models as the worker sees it: absolute path, or URI that fsspec opens; versions lie in
            ``<base_path>/<model>/<version>``.
        server_base_path: The same folder as the server sees it.
        storage_options: Passed to fsspec, for the base path.
        config_file: Its ``--model_config_file``, on a file system that worker and server share; None where there is
            none, and the config is sent by ``HandleReloadConfigRequest``.
        traffic_file: Its ``--traffic_config_file``, likewise; None to set the traffic by REST.
        capture_path: Its ``--capture_base_path``, or None.
        tls: Files of the gRPC connection, or None.
        timeout_s: Deadline of a call, seconds.
    """

    kind: str
    host: str
    grpc_port: int
    rest_port: int | None
    base_path: str
    server_base_path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    config_file: Path | None = None
    traffic_file: Path | None = None
    capture_path: Path | None = None
    tls: TlsFiles | None = None
    timeout_s: float = 10.0

    @classmethod
    def of(cls, services: Mapping[str, str]) -> ServerAddress:
        """Reads the fields of a connection.

        Raises:
            BadInput: a field is missing, or is not what it should be.
        """
        kind = services.get("serving_kind") or BUNDLED
        if kind not in KINDS:
            raise BadInput(f"connection field 'serving_kind' is {kind!r}; expected {' or '.join(KINDS)}")
        base_path = _base_path(services, "serving_base_path")
        return cls(
            kind=kind,
            host=services.get("serving_host") or "127.0.0.1",
            grpc_port=_port(services, "serving_port") or 8500,
            rest_port=_port(services, "serving_rest_port"),
            base_path=base_path,
            server_base_path=(services.get("serving_server_base_path") or base_path).rstrip("/"),
            storage_options=_storage_options(services),
            config_file=_path(services, "serving_config_file"),
            traffic_file=_path(services, "serving_traffic_file"),
            capture_path=_path(services, "serving_capture_path"),
            tls=_tls(services),
            timeout_s=_seconds(services, "serving_timeout") or 10.0,
        )

    @property
    def address(self) -> str:
        """``host:port`` of the gRPC port."""
        return f"{self.host}:{self.grpc_port}"


def _port(services: Mapping[str, str], name: str) -> int | None:
    text = services.get(name)
    if not text:
        return None
    if not str(text).isdigit() or not 0 < int(text) < 65536:
        raise BadInput(f"connection field {name!r} is {text!r}; expected a port from 1 to 65535")
    return int(text)


def _seconds(services: Mapping[str, str], name: str) -> float | None:
    text = services.get(name)
    try:
        value = float(text) if text else None
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value < float("inf"):
        raise BadInput(f"connection field {name!r} is {text!r}; expected a number of seconds, more than 0")
    return value


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


def _storage_options(services: Mapping[str, str]) -> Mapping[str, Any]:
    text = services.get("serving_storage_options")
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadInput(f"connection field 'serving_storage_options' is {text!r}; expected a JSON object")
    return value


def _tls(services: Mapping[str, str]) -> TlsFiles | None:
    files = {name: services.get(f"serving_{name}") or None for name in ("ca_file", "cert_file", "key_file")}
    if bool(files["cert_file"]) != bool(files["key_file"]):
        raise BadInput(
            f"connection fields 'serving_cert_file' is {files['cert_file']!r} and 'serving_key_file' "
            f"{files['key_file']!r}; expected both or neither"
        )
    for name, file in files.items():
        if file and not Path(file).is_file():
            raise BadInput(f"connection field 'serving_{name}' is {file!r}; there is no such file")
    return TlsFiles(**files) if any(files.values()) else None
