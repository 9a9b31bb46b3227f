"""Connections of databases, and the states of tables that an ingest reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_hops.connections import required_connection
from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.core.sources import KeyedSource, TableSource
from airflow_hops.hooks.sources import Planning

_LIBPQ_EXTRA = (
    *("application_name", "channel_binding", "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval"),
    *("options", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs"),
)
"""Fields of the extra of a connection of type ``postgres`` that are parameters of libpq."""


def database_options_of(conn_id: str) -> dict[str, Any]:
    """Returns the parameters of a database connection: ``dialect``, and libpq's parameters or SQLite's ``path``.

    Args:
        conn_id: Connection of type ``postgres`` or ``sqlite``.

    Raises:
        BadInput: there is no such connection, or it has a field that a step cannot use.
    """
    connection, extra = required_connection("conn_id", conn_id, "postgres", "sqlite")
    known = _LIBPQ_EXTRA if connection.conn_type == "postgres" else ()
    for name, value in extra.items():
        if name not in known and value not in (None, ""):
            raise BadInput(
                f"connection {conn_id!r}: conn_id cannot use the field {name!r} of its extra; "
                + (f"it uses {', '.join(known)}" if known else "a connection of type 'sqlite' needs none")
            )
    if connection.conn_type == "sqlite":
        path = connection.host or connection.schema or ""
        if not path.startswith("/"):
            raise BadInput(f"connection {conn_id!r}: its host is {path!r}, expected the absolute path of the database")
        return {"dialect": "sqlite", "path": path}
    fields = {"host": "host", "port": "port", "login": "user", "password": "password", "schema": "dbname"}
    values = {word: getattr(connection, name) for name, word in fields.items()} | extra
    return {"dialect": "postgres", **{word: str(value) for word, value in values.items() if value not in (None, "")}}


def plan(sources: Mapping[str, KeyedSource], planning: Planning) -> dict[str, Any]:
    """Returns the state of each table, as :class:`~airflow_hops.hooks.sources.Planner`; a step asks for all of them."""
    spec = StepSpec(
        step=planning.producer.task_id,
        entry="airflow_hops.extensions.tables.ml.read.tables:states_of",
        params={"sources": {table: source.to_dict() for table, source in sources.items()}},
        producer=planning.producer,
    )
    states = dict(planning.hook.run(spec, launcher=planning.launcher, cache=False).value)
    for table, source in sources.items():
        if isinstance(source, TableSource) and source.is_lake:
            states[table] = first_state(planning.hook.store, planning.producer, table, source, states[table])
    return states


def first_state(store: ArtifactStore, producer: Producer, table: str, source: TableSource, state: str) -> str:
    """Returns the state that the first try of a run found, so that all its tries read the same rows."""
    identity = json.dumps([producer.run_id, source.uri, source.version])
    name = f"{table}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.json"
    uri = store.internal("_state", "tasks", producer.dag_id, producer.task, "states", name)
    with contextlib.suppress(FileExistsError):
        store.create_text(uri, json.dumps({"state": state}))
    return str(store.read_json(uri)["state"])
