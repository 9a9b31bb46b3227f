"""The ``hops`` connection: its fields, completed from the configuration and defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow.sdk import Connection

from airflow_hops.airflow_internals.tasks import conf, mask_secret
from airflow_hops.core.errors import BadInput, ConnectionFieldError, ConnectionNotFound
from airflow_hops.core.profiles import base_of
from airflow_hops.core.redaction import without_password
from airflow_hops.core.serving_api.server_kinds import BUNDLED, model_server_kinds
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.connections import (
    SPARK_CONN_ID,
    check_options,
    find_connection,
    in_team,
    name_and_team,
    read_extra,
    similar_connections,
    storage_options_of,
)
from airflow_hops.runner.environments.named import find_named, is_name

CONN_TYPE = "hops"
DEFAULT_CONN_ID = "hops_default"
NO_CONNECTION = "no connection: defaults of [hops] apply"
_LOCAL = ("127.0.0.1", "localhost")
_PLACES = {
    "serving_base_path": "models",
    "serving_config_file": "models.config",
    "serving_traffic_file": "traffic.json",
    "serving_capture_path": "captured",
}


@dataclass(frozen=True)
class Settings:
    """Settings: the ``hops`` connection's fields, completed from the ``[hops]`` configuration section.

    Attributes:
        extra: All further fields of the connection, among them those of extensions.
        source: Where the connection was found.
        launcher: Name of the launcher of steps that run on this machine otherwise; empty for none.
        launcher_options: Its keyword arguments.
        spark_conn_id: Connection of the steps on Spark.
        ranks_conn_id: Connection of the ranks of trainings; None for the machine of the step.
    """

    store: str
    runtime: Path
    tracking_uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    services: Mapping[str, str] = field(repr=False)
    extra: Mapping[str, Any] = field(repr=False, default_factory=dict)
    source: str = ""
    launcher: str = ""
    launcher_options: Mapping[str, Any] = field(default_factory=dict)
    spark_conn_id: str = SPARK_CONN_ID
    ranks_conn_id: str | None = None


def read_settings(hops_conn_id: str, runtime: str | None = None) -> Settings:
    """Reads the fields of a connection.

    Args:
        hops_conn_id: The connection; a missing ``hops_default`` means the defaults of the ``[hops]`` section, and a
            missing ``hops_<kind>``, of a kind of model servers without a process, ``hops_default`` with this kind.
        runtime: Name of a runtime environment, instead of the connection's.

    Raises:
        BadInput: a field does not parse, or there is no field or option of its name.
    """
    name, team = name_and_team(hops_conn_id)
    check_options()
    configured = find_connection(hops_conn_id, CONN_TYPE)
    kind = None if configured else _kind_of_name(name)
    if kind is not None:
        configured = find_connection(in_team(DEFAULT_CONN_ID, team), CONN_TYPE)
    elif configured is None and name != DEFAULT_CONN_ID:
        raise ConnectionNotFound(hops_conn_id).with_text(
            f"there is no connection {hops_conn_id!r}; add one of type hops, or set "
            f"AIRFLOW_CONN_{name.upper()}{similar_connections(hops_conn_id)}"
        )
    connection, source = configured or (Connection(conn_id=DEFAULT_CONN_ID, conn_type=CONN_TYPE), NO_CONNECTION)
    extra = read_extra(hops_conn_id, connection)
    if kind is not None:
        extra = {name: value for name, value in extra.items() if not name.startswith("serving_")}
        extra["serving_kind"] = kind
    home = Path(os.environ.get("AIRFLOW_HOME") or Path("~/airflow").expanduser())

    def setting(name: str, default: str) -> str:
        return str(extra.get(name) or conf.get("hops", name, fallback="") or default)

    services = {"serving_host": connection.host or "127.0.0.1", "serving_port": str(connection.port or 8500)}
    services |= {
        name: json.dumps(value) if isinstance(value, Mapping) else str(value)
        for name, value in extra.items()
        if name.startswith("serving_") and value
    }
    if connection.password:
        services["serving_token"] = connection.password
    rest_port = services.get("serving_rest_port", "1")
    if not rest_port.isdigit() or not 0 < int(rest_port) < 65536:
        raise _bad_field(hops_conn_id, "serving_rest_port", rest_port, "a port from 1 to 65535")
    store = setting("store", str(home / "hops"))
    if "://" not in store and not Path(store).expanduser().is_absolute():
        raise _bad_field(hops_conn_id, "store", store, "a URI or an absolute path")
    folder = _runtime_folder(hops_conn_id, runtime, str(extra.get("runtime") or ""), home / "hops-runtime")
    tracking_uri = setting("tracking_uri", f"sqlite:///{home}/mlflow.db")
    storage_options, launcher_options = (
        json_object(extra.get(name), f"connection {hops_conn_id!r}: field {name!r}")
        for name in ("storage_options", "launcher_options")
    )
    if extra.get("storage_conn_id"):
        storage_options = storage_options_of(in_team(str(extra["storage_conn_id"]), team)) | storage_options
    opened = ArtifactStore(store, storage_options=storage_options)
    # Airflow 3.3: masks fields of a connection by name, but not secrets within JSON or addresses in them.
    secrets = {**opened.storage_options, "tracking_password": without_password(tracking_uri)[1]}
    if any(secrets.values()):
        mask_secret({name: value for name, value in secrets.items() if value})
    return Settings(
        store=opened.root,
        runtime=folder,
        tracking_uri=tracking_uri,
        storage_options=opened.storage_options,
        services={"tracking_uri": tracking_uri, **with_default_places(services, home, opened.root)},
        extra=extra,
        source=source,
        launcher=str(extra.get("launcher") or ""),
        launcher_options=launcher_options,
        spark_conn_id=in_team(str(extra.get("spark_conn_id") or SPARK_CONN_ID), team),
        ranks_conn_id=in_team(str(extra["ranks_conn_id"]), team) if extra.get("ranks_conn_id") else None,
    )


def _kind_of_name(conn_id: str) -> str | None:
    """Returns the kind without a process that a connection is named for, or None."""
    name = conn_id.removeprefix("hops_")
    kind = model_server_kinds().get(name) if name != conn_id else None
    return None if kind is None or kind.has_process else name


def _runtime_folder(hops_conn_id: str, runtime: str | None, field: str, default: Path) -> Path:
    """Returns the environment of a name, or else of the connection's field, which has a path or a name, too."""
    configured = Path(conf.get("hops", "runtime", fallback="") or default).expanduser()
    name = runtime or (field if is_name(field) else None)
    if field and not is_name(field):
        configured = Path(field).expanduser()
    if not configured.is_absolute():
        raise _bad_field(hops_conn_id, "runtime", str(configured), "an absolute path, or the name of an environment")
    return configured if name is None else find_named(base_of(configured), name)


def _bad_field(hops_conn_id: str, name: str, value: Any, expected: str) -> BadInput:
    return ConnectionFieldError(name, conn_id=hops_conn_id).with_text(
        f"connection {hops_conn_id!r}: field {name!r} is {value!r}, expected {expected}"
    )


def with_default_places(services: Mapping[str, str], home: Path, store: str = "") -> dict[str, str]:
    """Default paths of a local bundled server, all below one folder, for a connection without paths.

    Those of a kind without a process are in the artifact store.

    Args:
        services: The connection's ``serving_*`` entries.
        home: ``AIRFLOW_HOME``.
        store: Address of the artifact store.
    """
    kind = model_server_kinds().get(services.get("serving_kind", BUNDLED))
    if kind is not None and not kind.has_process:
        folder = f"{store}/_serving"
        return {"serving_base_path": f"{folder}/models", "serving_capture_path": f"{folder}/captured", **services}
    is_other = services.get("serving_kind", BUNDLED) != BUNDLED or services["serving_host"] not in _LOCAL
    if is_other or any(services.get(name) for name in _PLACES):
        return dict(services)
    places = {name: str(home / "hops-serving" / file) for name, file in _PLACES.items()}
    return {"serving_rest_port": "8501", **places, **services}
