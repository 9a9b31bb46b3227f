"""Sources of raw tables and images, and their files."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.extensions.streams.core.topic_ranges import TOPIC_SCHEME, VALUE_FORMATS, check_offsets

FORMATS = ("csv", "jsonl", "parquet", "arrow", "tfrecord")
SQL = "sql"
TABLE_SCHEMES = (SQL, "spark", "hive", "iceberg", "delta")
"""Schemes of the URIs of tables, which only ingest reads."""
LAKES = ("iceberg://", "delta://")
"""Beginnings of the URIs of tables that are read and written without Spark."""
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
class _DeclaredSource:
    """Base of the sources that a DAG declares."""

    uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, kw_only=True)
    storage_conn_id: str | None = field(default=None, kw_only=True)

    @classmethod
    def from_value(cls, name: str, value: Self | str | Mapping[str, Any]) -> Self:
        """Returns the source for a value in a DAG: a source, a URI, or a mapping of fields.

        Raises:
            BadInput: the value has another type, or an unknown field.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise BadInput(
                f"sources[{name!r}] is of type {type(value).__name__}; expected a URI, a mapping of fields, or a value "
                f"of type {cls.__name__}"
            )
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise BadInput(f"sources[{name!r}] has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
        if not {"uri", "sql"} & set(value):
            raise BadInput(f"sources[{name!r}] lacks 'uri'; it has {', '.join(sorted(value)) or 'no field'}")
        # JSON has no tuples.
        arguments: dict[str, Any] = {
            field: tuple(item) if isinstance(item, list) else item for field, item in value.items()
        }
        return cls(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value, which :meth:`from_value` reads."""
        # Not a deep copy, since the URI may be the future output of another task.
        value = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(item) if isinstance(item, tuple) else item for name, item in value.items()}

    def with_options(self, options: Mapping[str, Mapping[str, Any]]) -> Self:
        """Returns the source with the fsspec options of its connection, by the connection's id.

        Raises:
            BadInput: a connection for a lake has options that are not for S3.
        """
        if self.storage_conn_id is None:
            return self
        known = options[self.storage_conn_id]
        if self.uri.startswith(LAKES):
            known = lake_options(self.uri, self.storage_conn_id, known)
        return replace(self, storage_options={**known, **self.storage_options}, storage_conn_id=None)


@dataclass(frozen=True)
class Source(_DeclaredSource):
    """The source of one raw table's rows.

    Attributes:
        uri: Absolute local path or fsspec URI (``s3://bucket/flights``): one file, a glob, or a folder, with all files
            in it and its subfolders in the order of their names, except names that begin with ``.`` or ``_``. For
            ingest also ``kafka://topic``, whose records the window selects by their time in Kafka, and the tables
            ``spark://database.table``, ``hive://database.table``, ``iceberg://catalog/namespace.table`` and
            ``delta://path-or-uri``. Of a query, it is ``sql://`` with the connection's id, and need not be given.
        format: ``csv``, ``jsonl`` (one JSON object per line) or ``parquet``; for statistics also ``arrow`` (IPC) or
            ``tfrecord``. None infers it from each file's name, or else from its content. Compression (gzip, zip, bzip2,
            Zstandard) is always recognised by content. Of a topic's values: ``json``, ``avro`` or ``protobuf``; None is
            JSON, or what the schema registry says if there is one.
        time_column: Column by which the window selects rows; None takes the whole table. A timestamp without a zone is
            UTC, an integer is seconds since the epoch.
        columns: Columns to use; None for all.
        schema: Types of columns that should not be inferred, by name: ``int64``, ``float64``, ``string``, ``bool``,
            ``date32``, ``timestamp`` (UTC), any other Arrow alias, or in CSV and JSON the layout of times or dates for
            strptime, such as ``%d/%m/%Y``.
        delimiter: Delimiter of CSV files.
        quote: Quote around values of CSV files; empty if quotes are plain characters. None is ``"``, and an error if
            quotes may be plain characters as well.
        escape: Character before quotes and before itself within quotes of CSV files, as Spark writes backslashes; empty
            if quotes are doubled. None is empty, and an error if backslashes may be escapes as well.
        null_values: Strings that mean a missing value in CSV files.
        encoding: Encoding of CSV files.
        decimal: Decimal mark of numbers in CSV files.
        thousands: Thousands separator in CSV files; empty for none.
        units: Currency signs or other units beside numbers in CSV files, such as ``%``, which are removed.
        offsets: For a topic: first offset and the one after the last, by partition, instead of the window.
        allow_gaps: For a topic: whether records that compaction has removed may be missing.
        storage_options: fsspec options. Airflow stores them with the task's rendered fields, so put credentials into
            a connection.
        storage_conn_id: Connection with further options, such as ``aws_default``; see the field of that name of the
            connection of type ``hops``. For a topic: the connection of type ``kafka``, by default ``kafka_default``.
            For an Iceberg or Delta table on S3: a connection of type ``aws``.
        conn_id: Connection of type ``postgres`` or ``sqlite``, for ``sql``.
        sql: Query whose rows are the table; the window is added to it.
        partition_column: Column of the query, a number or a time, by whose ranges it is read in parallel.
        num_partitions: Number of these ranges.
        key: Columns whose values identify a row of a table or query; duplicates are an error.
        version: Query whose only value changes whenever the rows do; None if unknown, and the rows are always read. Of
            an Iceberg or Delta table: the snapshot or version to read; None for that of the run's first try.
    """

    format: str | None = None
    time_column: str | None = None
    columns: tuple[str, ...] | None = None
    schema: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ","
    quote: str | None = None
    escape: str | None = None
    null_values: tuple[str, ...] = ("", "NA")
    encoding: str = "utf8"
    decimal: str = "."
    thousands: str = ""
    units: tuple[str, ...] = ()
    offsets: Mapping[str, tuple[int, int]] | None = None
    allow_gaps: bool = False
    conn_id: str | None = field(default=None, kw_only=True)
    sql: str | None = field(default=None, kw_only=True)
    partition_column: str | None = field(default=None, kw_only=True)
    num_partitions: int = field(default=1, kw_only=True)
    key: tuple[str, ...] = field(default=(), kw_only=True)
    version: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.sql is not None and self.conn_id and not self.uri:
            object.__setattr__(self, "uri", f"{SQL}://{self.conn_id}")
        if not isinstance(self.key, tuple):
            object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        if isinstance(self.version, int):  # of a lake
            object.__setattr__(self, "version", str(self.version))
        if self.columns is not None and not self.columns:
            raise BadInput(f"source {self.uri!r}: columns is empty; name at least one column, or leave it out for all")
        if self.sql is not None or self.is_table:
            self._check_table()
        elif misplaced := [name for name in _OF_QUERIES if getattr(self, name) != _default(name)]:
            raise BadInput(f"source {self.uri!r}: {misplaced[0]!r} is for tables; a source of files has no such field")
        if not self.uri:
            raise BadInput("a source's uri is empty; expected a path or a URI")
        if self.is_topic and self.storage_conn_id is None and not self.storage_options:
            object.__setattr__(self, "storage_conn_id", "kafka_default")
        if not self.is_topic and (self.offsets is not None or self.allow_gaps):
            raise BadInput(f"source {self.uri!r}: offsets and allow_gaps are for topics, such as kafka://flights")
        check_offsets(self.uri, self.offsets)
        formats = VALUE_FORMATS if self.is_topic else FORMATS
        if self.format is not None and self.format not in formats:
            raise BadInput(f"source {self.uri!r}: format is {self.format!r}, expected one of {', '.join(formats)}")
        if self.decimal not in (".", ",") or self.thousands == self.decimal:
            raise BadInput(
                f"source {self.uri!r}: decimal is {self.decimal!r} and thousands {self.thousands!r}; expected '.' or "
                "',' as decimal mark, and another one for thousands, or none"
            )
        marks = {"delimiter": self.delimiter, "quote": self.quote or '"', "escape": self.escape or "\\"}
        for name, mark in marks.items():
            if len(mark.encode()) != 1 or mark in "\r\n" or (name != "delimiter" and mark == self.delimiter):
                raise BadInput(
                    f"source {self.uri!r}: {name} is {mark!r}; expected one ASCII character, and another one than the "
                    "delimiter"
                )
        if self.escape and self.quote == "":
            raise BadInput(f"source {self.uri!r}: escape is {self.escape!r}, which needs a quote, but quote is empty")
        try:
            codecs.lookup(self.encoding)
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise BadInput(
                f"source {self.uri!r}: encoding is {self.encoding!r}, which is not a text encoding that Python knows"
            ) from None

    @property
    def is_topic(self) -> bool:
        """Whether the rows are records of a Kafka topic."""
        return isinstance(self.uri, str) and self.uri.startswith(TOPIC_SCHEME)  # or the output of another task

    @property
    def is_table(self) -> bool:
        """Whether the rows are those of a table or query instead of files."""
        return str(self.uri).startswith(tuple(f"{scheme}://" for scheme in TABLE_SCHEMES))

    def _check_table(self) -> None:
        is_query = self.sql is not None
        if is_query and (not self.conn_id or self.uri != f"{SQL}://{self.conn_id}" or not str(self.sql).strip()):
            raise BadInput(
                f"source {self.uri!r}: a query needs 'conn_id' and 'sql', and no 'uri'; found "
                f"conn_id={self.conn_id!r}, sql={self.sql!r}"
            )
        if not is_query and self.uri.startswith(f"{SQL}://"):
            raise BadInput(f"source {self.uri!r}: a query needs 'conn_id' and 'sql', and no 'uri'; 'sql' is missing")
        of_queries: tuple[str, ...] = _OF_QUERIES if self.uri.startswith(("spark://", "hive://")) else _OF_QUERIES[:-1]
        of_queries = () if is_query else tuple(name for name in of_queries if name != "key")
        if misplaced := [name for name in of_queries if getattr(self, name) != _default(name)]:
            raise BadInput(f"source {self.uri!r}: {misplaced[0]!r} is not for tables of this kind")
        of_files = _OF_FILES if self.uri.startswith(LAKES) else (*_OF_FILES, "storage_conn_id")
        if misplaced := [name for name in of_files if getattr(self, name) != _default(name)]:
            raise BadInput(f"source {self.uri!r}: {misplaced[0]!r} is for files; a table has no such field")
        if layouts := [name for name, type_ in self.schema.items() if "%" in type_]:
            raise BadInput(
                f"source {self.uri!r}: schema gives {layouts[0]!r} a layout of times, which only CSV and JSON have; "
                "convert it in the query"
            )
        if not isinstance(self.num_partitions, int) or self.num_partitions < 1:
            raise BadInput(f"source {self.uri!r}: num_partitions is {self.num_partitions!r}, expected 1 or more")
        if (self.num_partitions > 1) != (self.partition_column is not None):
            raise BadInput(
                f"source {self.uri!r}: partition_column is {self.partition_column!r} and num_partitions "
                f"{self.num_partitions}; a parallel read needs both, a column and more than one range"
            )

    def with_options(self, options: Mapping[str, Mapping[str, Any]]) -> Self:
        """Returns the source with the options of its connection, of a storage or of a database."""
        if self.conn_id is None:
            return super().with_options(options)
        return replace(self, storage_options=options[self.conn_id])


_OF_FILES = ("format", "delimiter", "quote", "escape", "null_values", "encoding", "decimal", "thousands", "units")
_OF_QUERIES = ("conn_id", "sql", "partition_column", "num_partitions", "key", "version")


def _default(name: str) -> Any:
    return next(item.default for item in fields(Source) if item.name == name)


@dataclass(frozen=True)
class FileSource(_DeclaredSource):
    """A source of files of any kind.

    Attributes:
        uri: Absolute local path or fsspec URI: a folder, with all files in it and its subfolders except those whose
            names begin with ``.`` or ``_``, or a glob.
        storage_options: fsspec options. Airflow stores them with the task's rendered fields, so put credentials into
            a connection.
        storage_conn_id: Connection with further options, such as ``aws_default``; see the field of that name of the
            connection of type ``hops``.
    """


@dataclass(frozen=True)
class ImageSource(_DeclaredSource):
    """A source of labelled images.

    Attributes:
        uri: Absolute local path or fsspec URI: a folder with a folder of image files for each class; such files
            packed by ``PackOperator``; Parquet files (one, a glob, or a folder of them) with a column of encoded
            images; or an IDX file of images, like MNIST's.
        labels: For IDX: the IDX file of the labels.
        image_column: For Parquet: the encoded images, binary, or a struct with a field ``bytes``.
        label_column: For Parquet: names or numbers of the classes.
        key_column: For Parquet: keys of the images; None derives them from the file's name and the row's number.
        storage_options: fsspec options. Airflow stores them with the task's rendered fields, so put credentials into
            a connection.
        storage_conn_id: Connection with further options, such as ``aws_default``; see the field of that name of the
            connection of type ``hops``.
    """

    labels: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    key_column: str | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        path: Path within its file system.
        name: The path with the protocol.
        size_bytes: Size; 0 if the file system does not report it.
        version: A string that changes with the file: an etag, a checksum, or the time of modification.
    """

    path: str
    name: str
    size_bytes: int
    version: str
