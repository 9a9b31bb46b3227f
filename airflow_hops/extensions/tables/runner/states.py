"""Connections of databases, and the states of tables that an ingest reads."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer, segment
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.plans import Plans
from airflow_hops.core.store.task_state import task_state
from airflow_hops.extensions.tables.core.sources import (
    FETCHED,
    KeyedSource,
    QuerySource,
    TableSource,
    name_of_query,
    state_in,
)
from airflow_hops.extensions.tables.core.tables import Table
from airflow_hops.runner.connections import required_connection
from airflow_hops.runner.sources import Planning

_LIBPQ_EXTRA = (
    *("application_name", "channel_binding", "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval"),
    *("options", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs"),
)
"""Fields of the extra of a connection of type ``postgres`` that are parameters of libpq."""


def database_options_of(conn_id: str) -> dict[str, object]:
    """Returns the parameters of a database connection: ``dialect``, and of PostgreSQL those of libpq.

    Of other databases there are none: their rows are read by the worker.

    Raises:
        BadInput: there is no such connection, or it has a field that a step cannot use.
    """
    connection, extra = required_connection("conn_id", conn_id)
    if connection.conn_type != "postgres":
        return {"dialect": FETCHED}
    for name, value in extra.items():
        if name not in _LIBPQ_EXTRA and value not in (None, ""):
            raise BadInput(
                f"connection {conn_id!r}: conn_id cannot use the field {name!r} of its extra; it uses "
                f"{', '.join(_LIBPQ_EXTRA)}"
            )
    fields = {"host": "host", "port": "port", "login": "user", "password": "password", "schema": "dbname"}
    values = {word: getattr(connection, name) for name, word in fields.items()} | extra
    return {"dialect": "postgres", **{word: str(value) for word, value in values.items() if value not in (None, "")}}


def plan(sources: Mapping[str, KeyedSource], planning: Planning) -> dict[str, Any]:
    """Returns the state of each table, as :class:`~airflow_hops.runner.sources.Planner`.

    A step asks for those of tables that it reads itself.
    """
    states = {
        table: _fetched_state(source)
        for table, source in sources.items()
        if isinstance(source, QuerySource) and database_options_of(str(source.conn_id))["dialect"] == FETCHED
    }
    asked = {table: source for table, source in sources.items() if table not in states}
    return {**states, **(_asked_states(asked, planning) if asked else {})}


def _fetched_state(source: QuerySource) -> str:
    """Returns the state of a query whose rows the worker reads; unknown, it is new each time."""
    query = _query_module()

    if source.num_partitions > 1:
        raise BadInput(
            f"{name_of_query(source, source.sql)}: only ranges of PostgreSQL read one state of the table, so "
            f"num_partitions must be 1; it is {source.num_partitions}"
        )
    if source.version is None:
        return uuid.uuid4().hex
    name = name_of_query(source, source.version)
    hook = query.hook_of(required_connection("conn_id", str(source.conn_id))[0])
    return state_in(query.rows_of(hook, source.version, name), name)


@contextmanager
def fetch(fields: Mapping[str, Any], spec: StepSpec, store: ArtifactStore) -> Iterator[dict[str, dict[str, Any]]]:
    """Yields options with which a step reaches rows that the worker has read, as ``fetcher`` of sources.

    Rows of a step that writes a table are written first, and the step records it.

    Raises:
        BadInput: the query is refused, or a column or value cannot be used.
        HopsError: the database failed.
    """
    conn_id = fields.get("conn_id", "")
    options = dict(spec.source_options.get(conn_id, {}))
    if "sql" in fields and options.get("dialect") != FETCHED:
        yield {}
        return
    query = _query_module()

    hook = query.hook_of(required_connection("conn_id", conn_id)[0])
    if "sql" not in fields:
        from airflow_hops.extensions.tables.runner.write import write_rows

        yield {conn_id: {"dialect": FETCHED, "written": write_rows(Table.from_value(fields), spec, store, hook)}}
        return
    source = QuerySource.from_value("rows", fields)
    with query.fetched(source, spec, store, hook) as artifact:
        rows = {**options.get("rows", {}), source.sql: artifact.to_dict()}
        yield {conn_id: {**options, "store": store.root, "store_options": dict(store.storage_options), "rows": rows}}


def check_table(table: Table, columns: Sequence[str]) -> None:
    """Checks the columns of a database's table, as :meth:`WriteTableOperator.check_table`."""
    hook = _query_module().hook_of(required_connection("conn_id", str(table.conn_id))[0])
    from airflow_hops.extensions.tables.runner.write import opened_table

    with opened_table(table, hook, writes=False) as (session, _):
        session.columns(columns, are_all=False)


def _query_module() -> Any:
    """Imports the module that reads queries. Raises BadInput if Airflow's environment lacks Arrow."""
    try:
        from airflow_hops.extensions.tables.runner import query
    except ImportError as error:
        raise BadInput(f"rows of this database need 'airflow-hops[databases]' beside Airflow ({error})") from error
    return query


def _asked_states(sources: Mapping[str, KeyedSource], planning: Planning) -> dict[str, object]:
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
    name = segment(f"{table}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.json")
    return str(Plans(store, task_state(store, producer, "states")).first(name, lambda: {"state": state})["state"])
