"""Tables that the rows of artifacts are written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from airflow_hops.core.artifacts.properties import WrittenTableProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import scheme_of
from airflow_hops.extensions.tables.core.sources import LAKES, SQL, lake_options


@dataclass(frozen=True)
class Table:
    """A table to write to: of a database, ``Table(conn_id=…, name=…)``, or of a lake, ``Table("delta:///lake/late")``.

    Attributes:
        uri: ``iceberg://catalog/namespace.table``, or ``delta://`` with an absolute path or a URI. Of a database it is
            ``sql://`` with the connection's id and the name, and need not be given.
        conn_id: Connection of type ``postgres`` or ``sqlite``.
        name: Name of the table in that database; in PostgreSQL also ``schema.table``.
        storage_options: Options of pyiceberg's catalogue or of deltalake. Airflow stores them with the task's rendered
            fields, so put credentials into a connection.
        storage_conn_id: Connection of type ``aws`` with the credentials of a lake on S3.
    """

    uri: str = ""
    conn_id: str | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, kw_only=True)
    storage_conn_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        own = f"{SQL}://{self.conn_id}/{self.name}"
        if self.conn_id and self.name and self.uri in ("", own) and self.storage_conn_id is None:
            object.__setattr__(self, "uri", own)
        elif self.conn_id or self.name or scheme_of(self.uri) not in LAKES:
            raise BadInput(
                f"table: uri is {self.uri!r}, conn_id {self.conn_id!r} and name {self.name!r}; expected a uri "
                "iceberg://catalog/namespace.table or delta://path, or else conn_id and name, and no storage_conn_id"
            )

    @classmethod
    def from_value(cls, value: Self | str | Mapping[str, Any]) -> Self:
        """Returns the table for a value in a DAG: a table, a URI, or a mapping of fields.

        Raises:
            BadInput: the value has another type, or an unknown field.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        known = [item.name for item in fields(cls)]
        if not isinstance(value, Mapping) or set(value) - set(known):
            raise BadInput(f"table is {value!r}; expected a Table, a URI, or a mapping of {', '.join(known)}")
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value, which :meth:`from_value` reads."""
        return asdict(self)

    def with_options(self, options: Mapping[str, Mapping[str, Any]]) -> Self:
        """Returns the table with the options of its connection.

        Raises:
            BadInput: a connection for a lake has options that are not for S3.
        """
        conn_id = self.conn_id or self.storage_conn_id
        if conn_id is None:
            return self
        if self.conn_id is not None:
            return replace(self, storage_options=options[conn_id])
        return replace(
            self, storage_options={**lake_options(self.uri, conn_id, options[conn_id]), **self.storage_options}
        )


@dataclass(frozen=True)
class TableWriteProperties(WrittenTableProperties):
    """Properties of a ``table_write``; its version is Iceberg's snapshot or Delta's version, None of a database.

    Attributes:
        batch: Value of the column ``hops_batch`` of the written rows.
    """

    batch: str = ""
