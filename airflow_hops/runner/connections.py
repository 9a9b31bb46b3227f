"""Finds connections in the same order as tasks do, and rejects unknown fields and types."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Self, TypeVar

from airflow.sdk import BaseHook

from airflow_hops.airflow_internals.tasks import (
    AirflowNotFoundException,
    call_secrets_backend_method,
    conf,
    mask_secret,
    secrets_backends,
)
from airflow_hops.core.errors import BadInput, ConnectionFieldError, ConnectionNotFound, HopsError
from airflow_hops.core.names import suggestion
from airflow_hops.core.sources.source_files import fingerprint_of_sources
from airflow_hops.core.sources.sources import AnySource
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.provider_info import provider_info

_OPTION_PREFIX = "AIRFLOW__HOPS__"
_VARIABLE = "AIRFLOW_CONN_"
SPARK_CONN_ID = "spark_default"
"""Connection of the steps on Spark, which need not exist."""
_DEFAULT_NAMES = ("hops_default", SPARK_CONN_ID)
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"

S = TypeVar("S", bound=AnySource)

_in_command = False
_printed = set[str]()
"""Lines that this command has printed about connections."""
_team_of_command: str | None = None


class TeamConnection(str):
    """Id of a connection as a DAG of a team has it, for processes that serve all teams.

    It differs from the same id of another team, and from every text, whatever a DAG file has as an id.

    Args:
        conn_id: The id.
        team: The team's name.
    """

    __slots__ = ("conn_id", "team")
    conn_id: str
    team: str

    def __new__(cls, conn_id: str, team: str) -> Self:
        """Returns the id."""
        self = super().__new__(cls, f"{team}|{conn_id}")
        self.conn_id, self.team = conn_id, team
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TeamConnection) and (self.conn_id, self.team) == (other.conn_id, other.team)

    def __ne__(self, other: object) -> bool:  # that of str would compare the texts
        return not self == other

    def __hash__(self) -> int:
        return hash((self.conn_id, self.team))

    def __repr__(self) -> str:
        return f"{self.conn_id!r} of team {self.team!r}"


def in_team(conn_id: str, team: str | None) -> str:
    """Returns the id of a connection for a team; unchanged without one."""
    return conn_id if team is None else TeamConnection(conn_id, team)


def name_and_team(conn_id: str) -> tuple[str, str | None]:
    """Returns the id of a connection as Airflow has it, and the team for which it is looked up."""
    return (conn_id.conn_id, conn_id.team) if isinstance(conn_id, TeamConnection) else (conn_id, _team_of_command)


@cache
def _types() -> dict[str, dict[str, Any]]:
    """Returns the provider information of each connection type of this distribution."""
    return {each["connection-type"]: each for each in provider_info()["connection-types"]}


@contextmanager
def connections_of_tasks(*, team: str | None = None, dag_id: str | None = None) -> Iterator[None]:
    """Makes a command find connections as a task would, and print where each was found.

    Args:
        team: Team of the tasks.
        dag_id: DAG whose team it is, if ``team`` is None.

    Raises:
        BadInput: there is no such team.
    """
    global _in_command, _team_of_command
    context = os.environ.get(_CONTEXT)
    # Airflow 3.3: does not ask its database otherwise; `airflow connections test` does this, too.
    os.environ[_CONTEXT], _in_command = "server", True
    try:
        _team_of_command = _find_team(team, dag_id)
        yield
    finally:
        _in_command, _team_of_command = False, None
        _printed.clear()
        os.environ.pop(_CONTEXT)
        if context is not None:
            os.environ[_CONTEXT] = context


def find_connection(conn_id: str, *types: str) -> tuple[Any, str] | None:
    """Returns a connection of one of the types, or of any without types, and where it was found; None if it is missing.

    Raises:
        BadInput: the connection cannot be parsed or has another type.
        HopsError: a secrets backend failed, and no later backend has the connection.
    """
    connection_and_source = None
    name, team = name_and_team(conn_id)
    if not _in_command and team is None:
        with suppress(AirflowNotFoundException):
            connection_and_source = BaseHook.get_connection(name), "Airflow"
    connection_and_source = connection_and_source or _ask_backends(name, team)
    if _in_command:
        source = connection_and_source[1] if connection_and_source else "there is none"
        line = f"Connection {in_team(name, team)!r}: {source}"
        if line not in _printed:
            print(line, file=sys.stderr)
            _printed.add(line)
    if connection_and_source and types and (conn_type := connection_and_source[0].conn_type) not in types:
        advice = "; if that was not to choose from, install its provider where Airflow's API server runs"
        raise BadInput(
            f"connection {conn_id!r} is of type {conn_type!r}, expected {' or '.join(map(repr, types))}"
            + advice * (conn_type == "generic")
        )
    return connection_and_source


def similar_connections(conn_id: str) -> str:
    """Returns the end of a message about a connection that does not exist: similar names, or empty text.

    Those of environment variables and the defaults are known; a task cannot list those of other backends.
    """
    in_environment = [name.removeprefix(_VARIABLE) for name in os.environ if name.startswith(_VARIABLE)]
    return suggestion(conn_id, [*_DEFAULT_NAMES, *map(str.lower, in_environment)])


def read_extra(conn_id: str, connection: Any) -> dict[str, object]:
    """Returns the fields in a connection's extra.

    Raises:
        BadInput: the extra is not a JSON object, or a field does not exist for this type of connection.
    """
    # Airflow 3.3: treats an extra that does not parse as empty.
    extra = json_object(connection.extra, f"connection {conn_id!r}: field 'extra'")
    unused = _types()[connection.conn_type]["ui-field-behaviour"]["hidden-fields"]
    known = field_names(connection.conn_type)
    for name, value in [*extra.items(), *((name, getattr(connection, name)) for name in unused)]:
        if value not in (None, "") and name not in known:
            raise ConnectionFieldError(name, conn_id=conn_id).with_text(
                f"connection {conn_id!r}: connections of type {connection.conn_type!r} have no field {name!r}"
                + (suggestion(name, known) or f"; the fields in extra are {', '.join(known)}")
            )
    return extra


def has_own_fields(conn_type: str) -> bool:
    """Returns whether this distribution defines a connection type, and so the fields that its extra may have."""
    return conn_type in _types()


def field_names(conn_type: str) -> list[str]:
    """Returns the names of the fields that a connection's extra may have, by the connection's type."""
    names = dict.fromkeys(_types()[conn_type]["conn-fields"])
    if conn_type == "hops":  # the extra may have the model server's address and token, too
        names |= dict.fromkeys(("serving_host", "serving_port", "serving_token"))
    return list(names)


_STORAGE_FIELDS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "aws": (
        {"login": "key", "password": "secret"},
        {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_session_token": "token",
            "endpoint_url": "endpoint_url",
            "profile_name": "profile",
            "region_name": "client_kwargs.region_name",
        },
    ),
    "google_cloud_platform": ({}, {"key_path": "token", "keyfile_dict": "token", "project": "project"}),
    "wasb": (
        {"login": "account_name", "password": "account_key"},
        {"connection_string": "connection_string", "sas_token": "sas_token"},
    ),
    "webhdfs": ({"host": "host", "port": "port", "login": "user", "password": "password"}, {"use_ssl": "use_https"}),
}
"""Argument of fsspec's file system for each field of a connection and of its extra, by the type of the connection.

See the constructors of ``s3fs.S3FileSystem``, ``gcsfs.GCSFileSystem``, ``adlfs.AzureBlobFileSystem`` and
``fsspec.implementations.webhdfs.WebHDFS``.
"""


def storage_options_of(conn_id: str) -> dict[str, Any]:
    """Returns fsspec's options for the storage that a connection of another provider describes.

    Args:
        conn_id: Connection of type ``aws``, ``google_cloud_platform``, ``wasb`` or ``webhdfs``.

    Raises:
        BadInput: there is no such connection, or it has a field for which fsspec has no option.
    """
    connection, extra = required_connection("storage_conn_id", conn_id, *_STORAGE_FIELDS)
    fields, extra_fields = _STORAGE_FIELDS[connection.conn_type]
    values = {name: getattr(connection, name) for name in ("login", "password", "host", "port", "schema")}
    options: dict[str, Any] = {}
    for known, fields_of_connection in ((fields, values), (extra_fields, extra)):
        for name, value in fields_of_connection.items():
            if value in (None, ""):
                continue
            if name not in known:
                raise ConnectionFieldError(name, conn_id=conn_id).with_text(
                    f"connection {conn_id!r}: storage_conn_id cannot use the field {name!r} of a connection of type "
                    f"{connection.conn_type!r}; it uses {', '.join([*fields, *extra_fields])}. Put other options "
                    "into 'storage_options'"
                )
            outer, _, inner = known[name].partition(".")
            if name == "keyfile_dict" and isinstance(value, str):
                value = json_object(value, f"connection {conn_id!r}: field 'keyfile_dict'")
            options[outer] = {inner: value} if inner else value
    return options


def required_connection(argument: str, conn_id: str, *types: str) -> tuple[Any, dict[str, Any]]:
    """Returns a connection of one of the types, or of any without types, and its extra.

    Raises:
        BadInput: there is none, or its extra is not a JSON object; the message names the argument.
    """
    configured = find_connection(conn_id, *types)
    if configured is None:
        raise ConnectionNotFound(conn_id).with_text(
            f"{argument}: there is no connection {conn_id!r}; add it, or correct the name{similar_connections(conn_id)}"
        )
    return configured[0], json_object(configured[0].extra, f"connection {conn_id!r}: field 'extra'")


def with_storage_options(sources: Mapping[str, S]) -> dict[str, S]:
    """Returns sources with the options of the connections that they name.

    Raises:
        BadInput: there is no such connection, or it has a field that the source cannot use.
    """
    options = {
        source.connection_id: pkgutil.resolve_name(source.connection_options)(source.connection_id)
        for source in sources.values()
        if source.connection_id is not None
    }
    return {name: source.with_options(options) for name, source in sources.items()}


def state_of_sources(sources: Mapping[str, AnySource]) -> str:
    """Returns the state of sources' files, for a cache key; raises as :func:`with_storage_options`."""
    return fingerprint_of_sources(with_storage_options(sources))


def orphan_timeout_s() -> float:
    """Returns the seconds after which a step that outlives its worker ends, unless another worker follows it."""
    return conf.getfloat("hops", "orphan_timeout", fallback=1800.0)


def check_options() -> None:
    """Checks the names of the options in ``[hops]``.

    Raises:
        BadInput: a name in Airflow's configuration or in the environment is unknown.
    """
    in_file = conf.options("hops") if conf.has_section("hops") else []
    in_environment = [name for name in os.environ if name.startswith(_OPTION_PREFIX)]
    known = provider_info()["config"]["hops"]["options"]
    for name in [*in_environment, *in_file]:
        option = name.removeprefix(_OPTION_PREFIX).lower()
        if option not in known:
            where = name if name in in_environment else f"[hops] {name} in Airflow's configuration"
            raise BadInput(
                f"{where}: there is no option {option!r}"
                + (suggestion(option, known) or f"; the options of [hops] are {', '.join(known)}")
            )


def _find_team(team: str | None, dag_id: str | None) -> str | None:
    """Returns the team of a command: the named one, or that of a DAG; None if Airflow has no teams."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        if team is not None:
            raise BadInput(f"--team is {team!r}, but Airflow has no teams; set [core] multi_team, or omit it")
        return None
    if team is None and dag_id is None:
        return None
    from airflow_hops.airflow_internals.database import team_names, teams_of_dags

    if team is None:
        return teams_of_dags([str(dag_id)]).get(str(dag_id))
    if team not in (names := team_names()):
        raise BadInput(f"--team is {team!r}; the teams are {', '.join(sorted(names)) or 'none'}")
    return team


def _ask_backends(conn_id: str, team: str | None) -> tuple[Any, str] | None:
    """Asks each secrets backend, since Airflow treats a backend that fails like one without the connection."""
    of_team = f"AIRFLOW_CONN__{team.upper()}___{conn_id.upper()}" if team is not None else ""
    variable = of_team if of_team in os.environ else f"AIRFLOW_CONN_{conn_id.upper()}"
    failure: HopsError | None = None
    for backend in secrets_backends(in_command=_in_command):
        name = type(backend).__name__
        try:
            connection = call_secrets_backend_method(backend.get_connection, team_name=team, conn_id=conn_id)
            if connection:
                connection.get_uri()  # decrypts the whole connection
        except Exception as error:
            if name == "EnvironmentVariablesBackend":
                failure = BadInput(
                    f"connection {conn_id!r}: {variable} cannot be read; expected a URI hops://, or a JSON "
                    "object with conn_type, host, port (a number) and extra"
                )
            elif name != "MetastoreBackend" or _has_tables():
                # Omits the error's message, which may contain parts of the unparsable value.
                failure = HopsError(f"connection {conn_id!r}: {_source(name, variable)} failed: {type(error).__name__}")
            continue
        if connection:
            mask_secret(connection.password)
            return connection, _source(name, variable)
    if failure:
        raise failure
    return None


def _source(backend: str, variable: str) -> str:
    known = {
        "EnvironmentVariablesBackend": f"environment variable {variable}",
        "MetastoreBackend": "Airflow's database",
    }
    return known.get(backend, f"secrets backend {backend}")


def _has_tables() -> bool:
    """Returns False only if Airflow's database has no tables yet (before ``airflow db migrate``)."""
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_hops.airflow_internals.database import settings

    try:
        return inspect(settings.engine).has_table("connection")
    except SQLAlchemyError:
        return True
