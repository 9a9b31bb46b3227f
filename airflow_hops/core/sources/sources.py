"""Sources of raw tables and images, and their files."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import SOURCES, extensions, load_class
from airflow_hops.core.names import check_known

FORMATS = ("csv", "jsonl", "parquet")
REJECTED_FOLDER = "rejected"
"""Folder of a snapshot with a folder for each table some of whose records cannot be decoded."""


@dataclass(frozen=True)
class AnySource:
    """Base of the sources that a DAG declares.

    Attributes:
        connection_options: ``module:function`` on Airflow's side: takes a connection's id and returns its options.
        fetcher: ``module:function`` on Airflow's side for rows that only it can read. Takes a source's fields, the spec
            of a step that is about to start and the store; its context manager, which ends with the step, yields
            options of connections for the step. None for no such rows.
    """

    uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, kw_only=True)
    storage_conn_id: str | None = field(default=None, kw_only=True)
    connection_options: ClassVar[str] = "airflow_hops.runner.connections:storage_options_of"
    fetcher: ClassVar[str | None] = None

    @classmethod
    def from_value(cls, name: str, value: AnySource | str | Mapping[str, Any]) -> Self:
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
        if "uri" not in value:
            raise BadInput(f"sources[{name!r}] lacks 'uri'; it has {', '.join(sorted(value)) or 'no field'}")
        # JSON has no tuples.
        arguments: dict[str, Any] = {
            field: tuple(item) if isinstance(item, list) else item for field, item in value.items()
        }
        return cls(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """Returns the URI and the fields that differ from their defaults as JSON, which :meth:`from_value` reads."""
        # Not a deep copy, since the URI may be the future output of another task.
        result = {}
        for item in fields(self):
            value = getattr(self, item.name)
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            if item.name == "uri" or value != default:
                result[item.name] = list(value) if isinstance(value, tuple) else value
        return result

    @property
    def connection_id(self) -> str | None:
        """Id of the connection with further options; None if there is none."""
        return self.storage_conn_id

    @property
    def uris(self) -> tuple[str, ...]:
        """URIs of all files of the source."""
        return (self.uri,)

    def with_options(self, options: Mapping[str, Mapping[str, object]]) -> Self:
        """Returns the source with the options of its connection, by the connection's id."""
        if self.storage_conn_id is None:
            return self
        known = options[self.storage_conn_id]
        return replace(self, storage_options={**known, **self.storage_options}, storage_conn_id=None)


@dataclass(frozen=True)
class RowSource(AnySource):
    """Base of the sources of a raw table's rows, which an ingest reads.

    The entry-point group ``airflow_hops.sources`` has a class for each URI scheme that is not of files. The class is
    imported on both sides. ``planner`` and ``reader`` name functions that only one side imports.

    Attributes:
        time_column: Column by which the window selects rows; None takes the whole table. A timestamp without a zone is
            UTC, an integer is seconds since the epoch.
        columns: Columns to use; None for all.
        schema: Types of columns that should not be inferred, by name: ``int64``, ``float64``, ``string``, ``bool``,
            ``date32``, ``timestamp`` (UTC), or any other Arrow alias.
        schemes: URI schemes of the class; empty for files.
        planner: ``module:function`` on Airflow's side, as :class:`~airflow_hops.runner.sources.Planner`. It decides
            before the step which rows all tries of a run read. None for files: the cache key has their state.
        committer: ``module:function`` on Airflow's side, as :class:`~airflow_hops.runner.sources.Committer`; None if
            nothing has to be recorded once the step has succeeded.
        reader: ``module:function`` on the runtime's side, as :class:`~airflow_hops.ml.ingest.reader.Reader`.
        may_be_empty: Whether a window without rows becomes a table without rows, as of captured requests; otherwise the
            ingest fails.

    Raises:
        BadInput: the URI has another scheme, or ``columns`` is empty.
    """

    time_column: str | None = field(default=None, kw_only=True)
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)
    schema: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    may_be_empty: bool = field(default=False, kw_only=True)
    schemes: ClassVar[tuple[str, ...]] = ()
    planner: ClassVar[str | None] = None
    committer: ClassVar[str | None] = None
    reader: ClassVar[str]

    def __post_init__(self) -> None:
        if self.columns is not None and not self.columns:
            raise BadInput(f"source {self.uri!r}: columns is empty; name at least one column, or leave it out for all")
        if not self.uri:
            raise BadInput("a source's uri is empty; expected a path or a URI")
        if self.schemes and not _is_template(self.uri) and scheme_of(self.uri) not in self.schemes:
            expected = " or ".join(f"{scheme}://" for scheme in self.schemes)
            raise BadInput(f"source {self.uri!r}: a {type(self).__name__} begins with {expected}")


def scheme_of(uri: object) -> str:
    """Returns the scheme of a URI; an empty text of a path, or of the future output of another task."""
    return uri.partition("://")[0] if isinstance(uri, str) and "://" in uri else ""


def _is_template(uri: object) -> bool:
    return not isinstance(uri, str) or "{{" in uri


@dataclass(frozen=True)
class Source(RowSource):
    """The source of one raw table's rows in files.

    Attributes:
        uri: Absolute local path or fsspec URI (``s3://bucket/flights``): one file, a glob, or a folder, with all files
            in it and its subfolders in the order of their names, except names that begin with ``.`` or ``_``.
        format: ``csv``, ``jsonl`` (one JSON object per line) or ``parquet``. None infers it from each file's name, or
            else from its content. Compression (gzip, zip, bzip2, Zstandard) is always recognised by content.
        time_column: Column by which the window selects rows; None takes the whole table. A timestamp without a zone is
            UTC, an integer is seconds since the epoch.
        columns: Columns to use; None for all.
        schema: Types of columns that should not be inferred, by name: ``int64``, ``float64``, ``string``, ``bool``,
            ``date32``, ``timestamp`` (UTC), any other Arrow alias, or in CSV and JSON the layout of times or dates for
            strptime, such as ``%d/%m/%Y``.
        header: Names of the columns of CSV files that have none. None or True if they are in the first row; with None,
            a file is refused whose first row looks like the rows below it.
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
        may_be_empty: Whether a window without rows becomes a table without rows; otherwise the ingest fails.
        storage_options: fsspec options. Airflow stores them with the task's rendered fields, so put credentials into
            a connection.
        storage_conn_id: Connection with further options, such as ``aws_default``; see the field of that name of the
            connection of type ``hops``.
    """

    reader = "airflow_hops.ml.ingest.files:copy_files"
    format: str | None = None
    header: tuple[str, ...] | bool | None = None
    delimiter: str = ","
    quote: str | None = None
    escape: str | None = None
    null_values: tuple[str, ...] = ("", "NA")
    encoding: str = "utf8"
    decimal: str = "."
    thousands: str = ""
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format is not None:
            check_known(f"source {self.uri!r}: format", self.format, FORMATS)
        if self.header is not None and self.header is not True:
            names = self.header if isinstance(self.header, tuple | list) else ()
            if not names or not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
                raise BadInput(
                    f"source {self.uri!r}: header is {self.header!r}; expected names, each once, True or None"
                )
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


@dataclass(frozen=True)
class FileSource(AnySource):
    """A source of files of any kind.

    Attributes:
        uri: Absolute local path or fsspec URI: a folder, with all files in it and its subfolders except those whose
            names begin with ``.`` or ``_``, or a glob.
        storage_options: fsspec options. Airflow stores them with the task's rendered fields, so put credentials into
            a connection.
        storage_conn_id: Connection with further options, such as ``aws_default``; see the field of that name of the
            connection of type ``hops``.

    Example:
        >>> from airflow_hops import FileSource
        >>> FileSource("s3://bucket/pictures/*.jpg", storage_conn_id="aws_default").uri
        's3://bucket/pictures/*.jpg'
    """


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


def source_class(uri: object) -> type[AnySource]:
    """Returns the class of the sources with a URI's scheme; that of files if none is registered."""
    scheme = scheme_of(uri)
    return load_class(SOURCES, scheme, AnySource) if scheme in extensions(SOURCES) else Source


def row_source(name: str, value: RowSource | str | Mapping[str, object]) -> RowSource:
    """Returns the source of a table's rows for a value in a DAG, of the class that its URI's scheme has.

    Raises:
        BadInput: as :meth:`AnySource.from_value`, the value is of another class, or its class cannot be imported.
    """
    uri = value.uri if isinstance(value, AnySource) else value.get("uri") if isinstance(value, Mapping) else value
    kind = source_class(uri)
    if isinstance(value, RowSource) and type(value) is Source is not kind:
        raise BadInput(f"sources[{name!r}]: {uri!r} does not name files; pass a {kind.__name__}, or only the URI")
    return value if isinstance(value, RowSource) else kind.from_value(name, value)  # type: ignore[return-value]
