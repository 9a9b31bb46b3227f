"""Tables that the rows of artifacts are written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import WrittenTableProperties
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.sources.sources import REJECTED_FOLDER, scheme_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.core.sources import LAKES, SQL, lake_options

BATCH, FOLDER = "hops_batch", "hops_folder"
"""Columns with the batch that a row was written in, and the folder of the artifact that it comes from."""

PARQUET = "parquet"
"""Scheme of a folder of Parquet files, one for each batch."""
_MAY_BE_EMPTY = ("quarantine", REJECTED_FOLDER)
"""Folders that an artifact only has if they contain rows."""


@dataclass(frozen=True)
class Table:
    """A table to write to: of a database, ``Table(conn_id=…, name=…)``, or of a lake, ``Table("delta:///lake/late")``.

    Attributes:
        uri: ``iceberg://catalog/namespace.table``, or ``delta://`` or ``parquet://`` with an absolute path or a URI. Of
            a database it is ``sql://`` with the connection's id and the name, and need not be given.
        conn_id: Connection of a database: of type ``postgres``, or of any other that a provider's hook (``DbApiHook``)
            connects to.
        name: Name of the table in that database, also ``schema.table``.
        storage_options: Options of pyiceberg's catalogue, deltalake or, for Parquet, fsspec. Airflow stores them with
            the task's rendered fields, so put credentials into a connection.
        storage_conn_id: Connection with the credentials of a lake on S3 (of type ``aws``), or of Parquet's storage.
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
        elif self.conn_id or self.name or scheme_of(self.uri) not in (*LAKES, PARQUET):
            raise BadInput(
                f"table: uri is {self.uri!r}, conn_id {self.conn_id!r} and name {self.name!r}; expected a uri "
                "iceberg://catalog/namespace.table, delta://path or parquet://path, or else conn_id and name, and no "
                "storage_conn_id"
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
            raise InvalidArgument("table", value, f"; expected a Table, a URI, or a mapping of {', '.join(known)}")
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value, which :meth:`from_value` reads."""
        return asdict(self)

    def with_options(self, options: Mapping[str, Mapping[str, object]]) -> Self:
        """Returns the table with the options of its connection.

        Raises:
            BadInput: a connection for a lake has options that are not for S3.
        """
        conn_id = self.conn_id or self.storage_conn_id
        if conn_id is None:
            return self
        known = options[conn_id]
        if scheme_of(self.uri) in LAKES:
            known = lake_options(self.uri, conn_id, known)
        return replace(self, storage_options={**known, **self.storage_options})


@dataclass(frozen=True)
class TableWriteProperties(WrittenTableProperties):
    """Properties of a ``table_write``; its version is Iceberg's snapshot or Delta's version, None of a database.

    Attributes:
        batch: Value of the column ``hops_batch`` of the written rows.
    """

    batch: str = ""


def batch_of(store: ArtifactStore, artifact: Artifact) -> str:
    """Returns the default of ``hops_batch``: the artifact's path in the store."""
    return artifact.uri.removeprefix(store.root).strip("/")


def folders_of(store: ArtifactStore, artifact: Artifact, folders: Sequence[str] | None) -> list[tuple[str, str]]:
    """Returns folder and path of each Parquet file that is written.

    Args:
        store: Store of the artifact.
        artifact: The rows.
        folders: Folders to write; None for all except rejected records.

    Raises:
        BadInput: there is no such folder, or there are no rows.
    """
    if isinstance(folders, str) or (folders is not None and not folders):
        raise InvalidArgument("folders", folders, "; expected a list of folders, or None for all")
    paths = sorted(entry.path for entry in store.manifest(artifact.uri).files if entry.path.endswith(".parquet"))
    files = [(path.rpartition("/")[0], path) for path in paths]
    known = dict.fromkeys(folder for folder, _ in files)
    for folder in folders or ():
        if folder not in known and not folder.startswith(_MAY_BE_EMPTY):
            raise BadInput(f"{artifact.uri}: folders names {folder!r}; rows are in {', '.join(known) or 'no folder'}")
    may_be_empty = artifact.kind == "anomalies" or artifact.metrics.get("rows") == 0
    if not known and folders is None and not may_be_empty:
        raise BadInput(f"{artifact.uri}: {artifact.kind} has no rows; expected an artifact with Parquet files")
    wanted = folders if folders is not None else [name for name in known if name.split("/")[0] != REJECTED_FOLDER]
    return [(folder, path) for folder, path in files if folder in wanted]


def check_count(uri: str, batch: str, rows: int, written: int) -> None:
    """Raises BadInput if a database holds another number of rows of a batch than were written."""
    if rows != written:
        raise BadInput(
            f"table {uri!r} holds {rows} rows of batch {batch!r} after {written} were written; a trigger, rule or "
            "conflict clause of the table keeps, drops or changes rows: remove it, or write to another table"
        )
