"""Files of a source: the Airflow side lists them for the cache key, the ML side to read them."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.extensions import SOURCES, extensions
from airflow_hops.core.processes.remote_files import open_url, without_markers
from airflow_hops.core.sources.sources import AnySource, RowSource, Source, SourceFile, scheme_of

_GLOB_CHARACTERS = frozenset("*?[")
_TABLE_MARKS = {
    "_delta_log": ("a Delta", "use TableSource('delta://{}')"),
    "metadata/*.metadata.json": ("an Iceberg", "use TableSource('iceberg://catalog/namespace.table')"),
    ".hoodie": ("a Hudi", "use TableSource('spark://database.table'), or write its rows to Parquet files"),
}
"""Marks of tables in their folders, with what they are and how to read them."""
_MOST_CHECKED = 20
"""Maximum folders of a source in which marks of tables are looked for; each costs requests to an object store."""
# Fields that identify an object's version, by file system: S3, GCS, Azure, HTTP, then plain modification times.
_VERSION_FIELDS = (
    *("ETag", "etag", "checksum", "md5Hash", "content_md5", "mtime", "LastModified", "updated", "modified"),
    *("modification_time", "modificationTime"),  # HDFS, WebHDFS
)


def list_files(source: AnySource, *, may_be_empty: bool = False) -> tuple[Any, tuple[SourceFile, ...]]:
    """Returns the fsspec file system and the files of a source, in the order of their names.

    Args:
        source: The source.
        may_be_empty: Whether its folder, or in an object store its bucket, need only exist.

    Raises:
        BadInput: the URI is relative, nothing matches it, it may not be read, or its protocol is not installed.
        HopsError: its file system fails, possibly temporarily.
    """
    if (scheme := scheme_of(source.uri)) and scheme in (ingested := extensions(SOURCES)):
        raise BadInput(f"source {source.uri!r}: only IngestOperator reads {scheme}://; ingest it first")
    if "://" not in source.uri and not Path(source.uri).expanduser().is_absolute():
        raise BadInput(f"source {source.uri!r} is a relative path; expected an absolute one, or a URI")
    uri = source.uri if "://" in source.uri else str(Path(source.uri).expanduser())
    try:
        fs, path = open_url(uri, source.storage_options)
        # A listing cached by the file system may be outdated.
        fs.invalidate_cache()
        result = _match(fs, path)
        is_there = bool(result) or (may_be_empty and _has_folder(fs, path))
    except (ImportError, ValueError) as error:
        others = f"; besides files, IngestOperator reads {', '.join(sorted(ingested))}" if scheme else ""
        raise BadInput(f"source {source.uri!r}: {error}{others}") from error
    except OSError as error:
        kind = BadInput if isinstance(error, PermissionError) else HopsError
        raise kind(f"source {source.uri!r} cannot be listed ({type(error).__name__}: {error})") from error
    if not is_there:
        raise BadInput(f"source {source.uri!r}: no file matches" + ", and its folder does not exist" * may_be_empty)
    if isinstance(source, Source):
        _check_no_table(fs, source, uri, result)
    for name, info in result.items():
        _check_file(fs, name, info, is_name_kept=not isinstance(source, Source))
    return fs, tuple(_describe(fs, name, info) for name, info in result.items())


def check_unchanged(source: AnySource, listed: Sequence[SourceFile]) -> None:
    """Raises HopsError if the files of a source are not the listed ones any more."""
    try:
        again = {file.name: file for file in list_files(source)[1]}
    except (BadInput, FileNotFoundError):
        again = {}
    for file in listed:
        if again.pop(file.name, None) != file:
            raise HopsError(f"{file.name}: the file changed while it was read; retry when its writer has finished")
    if again:
        raise HopsError(f"{next(iter(again))}: the file appeared while {source.uri!r} was read; retry")


def source_root(fs: Any, uri: str) -> str:
    """Returns the path of the folder that a source's files lie below: the folder itself, or that before a pattern."""
    path = str(fs._strip_protocol(uri)).rstrip("/")
    if fs.isdir(path):
        return path
    parts = path.split("/")[:-1]
    fixed = itertools.takewhile(lambda part: not _GLOB_CHARACTERS & set(part), parts)
    return "/".join(fixed)


def fingerprint_of_sources(sources: Mapping[str, AnySource]) -> str:
    """Returns the SHA-256 (hex) over the names, sizes and versions of all files, without reading them.

    Which rows a source with a planner has is unknown here, so a fingerprint with one differs each time.
    """
    state: dict[str, Any] = {}
    for table, source in sources.items():
        if isinstance(source, RowSource) and source.planner:
            state[table] = uuid.uuid4().hex
        else:
            files = [file for uri in source.uris for file in list_files(replace(source, uri=uri))[1]]
            state[table] = [[file.name, file.size_bytes, file.version] for file in files]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _match(fs: Any, path: str) -> dict[str, Mapping[str, Any]]:
    """Returns the facts of each file by path, in the order of the paths."""
    # An existing name with a glob's characters is not a pattern.
    info: Mapping[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        info = fs.info(path)  # not isfile() or isdir(), which are also False if the file system fails
    # An empty object may mark a folder.
    below = fs.find(path, detail=True) if info.get("type") == "directory" or info.get("size") == 0 else {}
    if info and info.get("type") != "directory" and below.keys() <= {path}:
        return {path: info}
    if info:
        entries = without_markers(below.values())
        listed = {entry["name"]: entry for entry in entries if not _is_hidden(entry["name"], path)}
    elif _GLOB_CHARACTERS & set(path):
        entries = without_markers(fs.glob(path, detail=True).values())
        fixed = "/".join(itertools.takewhile(lambda part: not _GLOB_CHARACTERS & set(part), path.split("/")))
        # A pattern such as ".snapshot/*" asks for hidden files.
        asked = any(part.startswith((".", "_")) for part in path.removeprefix(fixed).split("/"))
        shown = (entry for entry in entries if asked or not _is_hidden(entry["name"], fixed))
        listed = {entry["name"]: entry for entry in shown if not _is_folder(fs, entry)}
    else:
        listed = {}
    return dict(sorted(listed.items()))


def _has_folder(fs: Any, path: str) -> bool:
    """Returns whether the folder of a path or pattern exists; object stores have only buckets."""
    root = source_root(fs, path)
    bucket = root.partition("/")[0]
    return bool(fs.isdir(root) or (bucket and fs.isdir(bucket)))


def _check_no_table(fs: Any, source: Source, uri: str, files: Iterable[str]) -> None:
    """Raises BadInput if Parquet files are those of a Delta, Iceberg or Hudi table, whose metadata say which count."""
    paths = [PurePosixPath(path) for path in files if source.format == "parquet" or ".parquet" in path]
    # Files are in folders of partitions or buckets, in Iceberg below "data".
    folders = [str(parent) for parent in dict.fromkeys(path.parent for path in paths)][:_MOST_CHECKED]
    roots = [source_root(fs, uri)] if folders else []
    tables = dict.fromkeys(above for folder in roots + folders for above in _tables_of(folder))
    for folder, (mark, (kind, remedy)) in itertools.product(tables, _TABLE_MARKS.items()):
        is_table = False
        with contextlib.suppress(Exception):  # a store may only let its user see a part; an HTTP server, none
            is_table = bool(fs.glob(f"{glob.escape(folder)}/{mark}"))
        if is_table:
            raise BadInput(
                f"source {source.uri!r}: {folder!r} is {kind} table, in which files may hold replaced or deleted rows; "
                + remedy.format(fs.unstrip_protocol(folder).removeprefix("file://"))
            )


def _tables_of(folder: str) -> Iterator[str]:
    """Yields the folders of which ``folder`` may hold a table's data."""
    yield folder
    path = PurePosixPath(folder)
    while "=" in path.name or path.name == "data":
        path = path.parent
        yield str(path)


def _is_folder(fs: Any, entry: Mapping[str, object]) -> bool:
    return entry["type"] == "directory" or (bool(entry.get("islink")) and fs.isdir(entry["name"]))


def _check_file(fs: Any, path: str, info: Mapping[str, object], *, is_name_kept: bool) -> None:
    """Raises BadInput if a path is not a regular file; ``is_name_kept`` for a file whose name is kept as text."""
    if info.get("islink"):
        if not fs.exists(path):
            raise BadInput(f"{path!r} is a link to {info.get('destination')!r}, which does not exist; remove the link")
        if fs.isdir(path):
            raise BadInput(
                f"{path!r} is a link to the folder {info.get('destination')!r}, which is not followed; replace it with "
                "a copy of that folder, or name that folder as the source"
            )
    elif info.get("type") == "other":
        raise BadInput(f"{path!r} is neither a file nor a folder; remove it from the source")
    if is_name_kept:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{path!r}: the name is not in UTF-8; rename the file") from None


def _is_hidden(path: str, folder: str) -> bool:
    """Returns whether a path below a folder is a marker, a checksum or an unfinished copy, such as those of Hadoop."""
    parts = PurePosixPath(path.removeprefix(folder)).parts
    return any(part.startswith((".", "_")) for part in parts) or path.endswith((".crc", "._COPYING_"))


def _describe(fs: Any, path: str, info: Mapping[str, Any]) -> SourceFile:
    version = next((str(info[name]) for name in _VERSION_FIELDS if info.get(name)), None) or fs.ukey(path)
    is_local = "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)
    return SourceFile(
        path=path,
        name=path if is_local else fs.unstrip_protocol(path),
        size_bytes=int(info.get("size") or 0),
        version=str(version),
    )
