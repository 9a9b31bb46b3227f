"""Sources of the rows of tables and of queries of databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import RowSource, scheme_of

SQL = "sql"
"""Scheme of the tables and queries of databases: ``sql://`` with the id of the connection."""
FETCHED = "fetched"
"""Dialect of the databases whose rows the worker reads, through the hook of Airflow's provider."""
FAULTS = ("01", "08P01", "0A", "21", "22", "23", "25006", "28", "3D", "3F", "42", "44", "54", "P0001")
"""Beginnings of SQLSTATE that another try would meet again, such as those of data, constraints, access and syntax."""
LAKES = ("iceberg", "delta")
"""Schemes of the tables that are read and written without Spark."""
_S3_OPTIONS = {
    "key": ("s3.access-key-id", "AWS_ACCESS_KEY_ID"),
    "secret": ("s3.secret-access-key", "AWS_SECRET_ACCESS_KEY"),
    "token": ("s3.session-token", "AWS_SESSION_TOKEN"),
    "endpoint_url": ("s3.endpoint", "AWS_ENDPOINT_URL"),
    "region_name": ("s3.region", "AWS_REGION"),
}
"""Options of pyiceberg and of deltalake for those of s3fs."""


def lake_options(uri: str, conn_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Returns pyiceberg's or deltalake's options for S3, from fsspec's options of a connection.

    Raises:
        BadInput: the connection has an option that is not for S3.
    """
    region = {"region_name": None, **options.get("client_kwargs", {})}["region_name"]
    values = {**options, "region_name": region} if region else options
    number = 0 if uri.startswith("iceberg://") else 1
    result = {}
    for name, value in values.items():
        if name == "client_kwargs":
            continue
        if name not in _S3_OPTIONS:
            raise BadInput(
                f"{uri}: storage_conn_id {conn_id!r} has the option {name!r}; tables of Iceberg and Delta take only "
                f"connections of type 'aws', of which they use {', '.join(_S3_OPTIONS)}"
            )
        result[_S3_OPTIONS[name][number]] = str(value)
    if number and str(options.get("endpoint_url", "")).startswith("http://"):
        result["AWS_ALLOW_HTTP"] = "true"
    return result


@dataclass(frozen=True)
class KeyedSource(RowSource):
    """Base of the sources of tables and queries.

    Attributes:
        key: Columns that identify a row; duplicates are an error.
        version: Identifier of the rows' state.
    """

    planner = "airflow_hops.extensions.tables.runner.states:plan"
    reader = "airflow_hops.extensions.tables.ml.read.tables:copy_table"
    key: tuple[str, ...] = field(default=(), kw_only=True)
    version: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.key, tuple):
            object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        if layouts := [name for name, type_ in self.schema.items() if "%" in type_]:
            raise BadInput(
                f"source {self.uri!r}: schema gives {layouts[0]!r} a layout of times, which only CSV and JSON have; "
                "convert it in the query"
            )


def name_of_query(source: KeyedSource, query: str | None) -> str:
    """Returns a name for messages: the connection and the beginning of its query."""
    text = " ".join((query or "").split())
    return f"connection {source.connection_id!r}, query {text[:200]!r}{'…' * (len(text) > 200)}"


def state_in(rows: Sequence[Sequence[object]], where: str) -> str:
    """Returns the one value that a ``version`` query returned. Raises BadInput if it returned others."""
    if len(rows) != 1 or len(rows[0]) != 1 or rows[0][0] is None:
        raise BadInput(f"{where}: 'version' returned {rows[:3]}; expected one row with one value that is not null")
    return str(rows[0][0])


@dataclass(frozen=True)
class QuerySource(KeyedSource):
    """The source of the rows of a query of a database.

    Attributes:
        uri: ``sql://`` with the connection's id; it need not be given.
        conn_id: Connection whose hook is a ``DbApiHook`` of Airflow's provider ``common.sql``.
        sql: Query that returns the table. In PostgreSQL, the window is added to it; in others, it may name
            ``:window_start`` and ``:window_end``, which become texts such as ``'2013-01-01 00:00:00'``, in UTC.
        time_column: Column by which the window selects rows; None takes the whole table. A timestamp without a zone is
            UTC, an integer is seconds since the epoch.
        columns: Columns to use; None for all.
        schema: Types of columns that should not be inferred, as of :class:`~airflow_hops.operators.Source`, without
            layouts of times.
        partition_column: Numeric or time column of PostgreSQL; the query is read in parallel by its ranges.
        num_partitions: Number of these ranges.
        key: Columns that identify a row; duplicates are an error.
        version: Query for one value that changes with the rows; None if unknown: then the rows are always read.
    """

    schemes = (SQL,)
    connection_options = "airflow_hops.extensions.tables.runner.states:database_options_of"
    fetcher = "airflow_hops.extensions.tables.runner.states:fetch"
    conn_id: str | None = field(default=None, kw_only=True)
    sql: str = field(default="", kw_only=True)
    partition_column: str | None = field(default=None, kw_only=True)
    num_partitions: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.conn_id and not self.uri:
            object.__setattr__(self, "uri", f"{SQL}://{self.conn_id}")
        if not self.conn_id and str(self.uri).startswith(f"{SQL}://"):
            object.__setattr__(self, "conn_id", self.uri.removeprefix(f"{SQL}://"))
        if not self.conn_id or self.uri != f"{SQL}://{self.conn_id}" or not self.sql.strip() or self.storage_conn_id:
            raise BadInput(
                f"source {self.uri!r}: a query needs 'conn_id' and 'sql', and no other 'uri'; found "
                f"conn_id={self.conn_id!r}, sql={self.sql!r}, storage_conn_id={self.storage_conn_id!r}"
            )
        super().__post_init__()
        if not isinstance(self.num_partitions, int) or self.num_partitions < 1:
            raise BadInput(f"source {self.uri!r}: num_partitions is {self.num_partitions!r}, expected 1 or more")
        if (self.num_partitions > 1) != (self.partition_column is not None):
            raise BadInput(
                f"source {self.uri!r}: partition_column is {self.partition_column!r} and num_partitions "
                f"{self.num_partitions}; a parallel read needs both, a column and more than one range"
            )

    @property
    def connection_id(self) -> str | None:
        """Id of the database's connection."""
        return self.conn_id

    def with_options(self, options: Mapping[str, Mapping[str, object]]) -> Self:
        """Returns the source with the parameters for the database connection."""
        return replace(self, storage_options=options[str(self.conn_id)])


@dataclass(frozen=True)
class TableSource(KeyedSource):
    """The source of the rows of a table in Spark's catalogue or of a lake.

    Attributes:
        uri: ``spark://database.table``, ``hive://database.table``, ``iceberg://catalog/namespace.table`` or
            ``delta://path-or-uri``.
        time_column: Column by which the window selects rows; None takes the whole table. A timestamp without a zone is
            UTC, an integer is seconds since the epoch.
        columns: Columns to use; None for all.
        schema: Types of columns that should not be inferred, as of :class:`~airflow_hops.operators.Source`, without
            layouts of times.
        key: Columns that identify a row; duplicates are an error.
        version: Of an Iceberg or Delta table: the snapshot or version to read; None for that of the run's first try.
        storage_options: Options of pyiceberg's catalogue or of deltalake. Airflow stores them with the task's rendered
            fields, so put credentials into a connection.
        storage_conn_id: Connection of type ``aws`` with the credentials of an Iceberg or Delta table on S3.
    """

    schemes = ("spark", "hive", *LAKES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.version, int):
            object.__setattr__(self, "version", str(self.version))
        if not self.is_lake and (self.version is not None or self.storage_conn_id):
            name = "version" if self.version is not None else "storage_conn_id"
            raise BadInput(f"source {self.uri!r}: {name!r} is for tables of Iceberg and Delta")

    @property
    def is_lake(self) -> bool:
        """Whether earlier states of the table can be read."""
        return scheme_of(self.uri) in LAKES

    def with_options(self, options: Mapping[str, Mapping[str, object]]) -> Self:
        """Returns the source with the options of its connection. Raises BadInput if they are not for S3."""
        if (conn_id := self.storage_conn_id) is None:
            return self
        return super().with_options({conn_id: lake_options(self.uri, conn_id, options[conn_id])})
