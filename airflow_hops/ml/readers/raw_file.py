"""File of a source: its format, its compression, and its bytes."""

from __future__ import annotations

import codecs
import gzip
import lzma
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.arrow_hotfix import why_refused
from airflow_hops.core.errors import BadInput, HopsError, UnreadableFile
from airflow_hops.core.sources.sources import Source, SourceFile
from airflow_hops.ml.readers.csv_quotes import without_quoted
from airflow_hops.ml.readers.notices import Notices

MAX_ROW_BYTES = 64 << 20
"""Limit for a row of CSV or JSON lines, a TFRecord, or a Parquet value."""
MAX_COLUMNS = 50_000
"""Limit for columns of a table, or fields of a JSON object."""
MAX_ROW_GROUP_BYTES = 16 << 30
"""Limit for a decoded Parquet row group."""
_FIELD = re.compile(rb'"((?:[^"\\]|\\.)*+)"\s*+:')
_SAMPLES, _SAMPLE_BYTES, _MANY_FIELDS = 16, 8 << 10, 1000

BLOCK_BYTES = 4 << 20
_NAMES = {
    "csv": "csv", "tsv": "csv", "json": "jsonl", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet",
}  # fmt: skip
_COMPRESSED = frozenset({"gz", "zip", "bz2", "zst"})
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_NEVER_EMPTY = frozenset({"parquet"})
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


_JSON, _ARRAY = "JSON objects", "a JSON array"
_LOOKS = {
    rb"(?i)<(!doctype html|html|head|body)\b": "an HTML page, such as that of an error or a login",
    rb"<\?xml ": "XML",
    rb"\[\s*([\[{]|\])": _ARRAY,
    rb'\{\s*("(?:[^"\\]|\\.)*"\s*:|\}\s*$)': _JSON,
    rb"(?s)PAR1.*\0": "Parquet",
    rb"(?s)ARROW1.*\0|\xff\xff\xff\xff": "Arrow",
    rb"Obj\x01": "Avro",
    rb"(?s)ORC.*\0": "ORC",
    rb"SQLite format 3": "a database of SQLite",
    rb"PK\x03\x04|\xd0\xcf\x11\xe0": "an Excel workbook",
    rb"%PDF-": "PDF",
    rb"\x1f\x8b": "a file that was compressed twice",
}
"""Names of formats that a text file may have by mistake, by patterns of their beginnings."""
_HEAD_BYTES = 1 << 16
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_UNREADABLE = (
    pa.ArrowException, ValueError, ArithmeticError, EOFError, NotImplementedError, RecursionError, struct.error,
    zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions that libraries raise for the contents of a file."""
_UNKNOWN_FEATURE = re.compile(
    r"(?i)not (yet )?(implemented|supported|recognised)|un(recognised|supported|known)|only supports"
)


class EmptyFile(BadInput):
    """Raised for a file without a single byte, in a format that allows this."""


@dataclass(frozen=True)
class RawFile:
    """File of a source, with its format.

    Attributes:
        fs: The file's fsspec file system.
        file: The file.
        source: The source that the file belongs to.
        format: ``csv``, ``jsonl`` or ``parquet``.
        compression: ``gzip``, ``zip``, ``bz2``, ``zstd``, or None.
        row_groups: Row groups to read, of Parquet; None for all.
        first_row: Number of the first of their rows in the file.
        notices: Counts what its readers do to values; None to log what the first rows show.
    """

    fs: Any
    file: SourceFile
    source: Source
    format: str
    compression: str | None
    row_groups: range | None = None
    first_row: int = 0
    notices: Notices | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return self.file.name

    @property
    def is_text(self) -> bool:
        """Whether values are stored as text, so that their types have to be inferred."""
        return self.format in ("csv", "jsonl")

    @property
    def is_local(self) -> bool:
        """Whether the file is on a local disk, uncompressed, so that its path can be read."""
        return self.compression is None and isinstance(self.fs, LocalFileSystem)

    @property
    def partitions(self) -> dict[str, str | None]:
        """Columns named by folders below the source, as Hive and Spark write them: ``country=DE``."""
        parts = PurePosixPath(self.file.path).parent.parts
        named = [part.partition("=") for part in parts if f"/{part}/" not in f"{self.source.uri}/"]
        values = {unquote(name): unquote(value) for name, mark, value in named if name and mark}
        return {name: None if value == _NO_PARTITION else value for name, value in values.items()}

    @contextmanager
    def stream(self) -> Iterator[tuple[Any, Any]]:
        """Opens the file; yields its decompressed bytes, and the raw stream, whose position shows progress."""
        # fsspec 2026.9: connections do not survive a fork; in the same process, it returns its cached instance.
        fs = type(self.fs)(*self.fs.storage_args, **self.fs.storage_options)
        with explained(self.name), fs.open(self.file.path, "rb", block_size=2 * BLOCK_BYTES) as raw:
            if self.compression is None:
                yield raw, raw
            elif self.compression == "zip":
                with zipfile.ZipFile(raw) as archive, archive.open(_only_member(archive, self.name)) as member:
                    yield member, raw
            else:
                yield pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), self.compression), raw


def identify(fs: Any, file: SourceFile, source: Source) -> RawFile:
    """Detects a file's compression from its first bytes, and its format from the source, its name or its content.

    Raises:
        EmptyFile: the file is empty.
        BadInput: the format is not recognised.
    """
    with fs.open(file.path, "rb", block_size=1 << 10) as stream:  # s3fs 2026.9: would read 50 MiB
        head = stream.read(8)
    parts = [suffix.lstrip(".").lower() for suffix in PurePosixPath(file.path).suffixes]
    while parts and parts[-1] in _COMPRESSED:
        parts.pop()
    format_ = source.format or (_NAMES.get(parts[-1]) if parts else None)
    if not head:
        error = BadInput if format_ in _NEVER_EMPTY else EmptyFile
        raise error(f"{file.name}: the file is empty; expected {format_ or 'CSV, JSON lines or Parquet'}")
    compression = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if encoding and codecs.lookup(source.encoding).name == "utf-8":
        what_to_do = f"give the source encoding={encoding!r}, or airflow hops init --encoding={encoding}"
        if format_ == "jsonl":
            what_to_do = "rewrite it in UTF-8"
        raise UnreadableFile(file.name, f": the file is in {encoding}, not in UTF-8; {what_to_do}")
    if format_ == "parquet" and compression not in (None, "zip"):
        raise BadInput(f"{file.name}: a Parquet file within {compression} cannot be read in parts; decompress it first")
    raw = RawFile(fs, file, source, format_ or "", compression)
    return raw if format_ else RawFile(fs, file, source, _format_from_content(raw), compression)


class TextLines:
    """Checks that a text file is of its format, and has its lines end in newlines if all end in carriage returns.

    Args:
        file: The file.
    """

    def __init__(self, file: RawFile) -> None:
        self._file = file
        self._is_checked = False
        self.has_returns: bool | None = None
        """Whether all lines end in carriage returns, as on old Macs; None as long as this is not known."""

    def of(self, text: bytes, *, is_whole: bool = False) -> bytes:
        """Returns text that was read from the beginning, or further text; ``is_whole`` if no text follows.

        Raises:
            BadInput: the file looks like one of another format.
        """
        if not self._is_checked and (is_whole or len(text) >= _HEAD_BYTES or b"\n" in text):
            self._is_checked = True
            _check_looks(text, self._file)
        if self.has_returns is None and (is_whole or b"\n" in text or len(text) >= _HEAD_BYTES):
            # A last one may be the first half of the end of a line.
            self.has_returns = b"\n" not in text and b"\r" in (text if is_whole else text[:-1])
        return text.replace(b"\r", b"\n") if self.has_returns else text


def _check_looks(text: bytes, file: RawFile) -> None:
    """Raises BadInput if the first text of a CSV or JSON lines file is that of another format."""
    head = text[:_HEAD_BYTES].lstrip()
    looks = next((name for pattern, name in _LOOKS.items() if re.match(pattern, head)), None)
    if looks is None or (looks == _JSON and file.format == "jsonl"):
        return
    what_to_do = "convert it to CSV, JSON lines or Parquet"
    if looks == _JSON:
        what_to_do = "if each line is an object, name format='jsonl' in the source"
    elif looks == _ARRAY:
        what_to_do = "write one object a line instead, as JSON lines"
    raise UnreadableFile(file.name, f": the file looks like {looks}, not like {file.format}; {what_to_do}")


def without_mark(stream: Any) -> bytes:
    """Returns the first bytes of UTF-8 text, without the byte order mark that some programs of Windows write."""
    return bytes(stream.read(len(codecs.BOM_UTF8))).removeprefix(codecs.BOM_UTF8)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns library errors about a file's contents into errors that name the file and are not retried."""
    try:
        yield
    except HopsError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(name, error) from error
    except RuntimeError as error:
        why = why_refused(error)
        if why is None:
            raise
        raise UnreadableFile(name, f": refused: {why}") from None
    except OSError as error:
        # PyArrow 10.0: raises an OSError without errno for damaged contents; all others come from the file system.
        if type(error) is not OSError or error.errno is not None:
            raise
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> BadInput:
    why = "the file is damaged, truncated or of another format"
    if _UNKNOWN_FEATURE.search(str(error)):
        why = (
            f"the runtime environment (PyArrow {pa.__version__}) does not know this feature of the format; write the "
            "file anew without it, with older encodings and types"
        )
    elif isinstance(error, UnicodeError):
        why = "the text is not in the encoding that the source names, which is UTF-8 by default"
    return UnreadableFile(name, f": cannot be read: {error}; {why}")


def _only_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
    if "xl/workbook.xml" in archive.namelist():
        raise UnreadableFile(name, ": the file is an Excel workbook; save its sheet as CSV")
    if len(members) != 1:
        raise UnreadableFile(name, f": the archive holds {len(members)} files, expected one")
    if stat.S_ISLNK(members[0].external_attr >> 16):
        raise UnreadableFile(name, f": {members[0].filename!r} is a link; expected a file: pack what it leads to")
    if members[0].flag_bits & 1:
        raise UnreadableFile(name, f": {members[0].filename!r} is encrypted; expected a file without a password")
    return members[0]


def _format_from_content(file: RawFile) -> str:
    with file.stream() as (stream, _):
        head = bytes(stream.read(4096))
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.lstrip().startswith(b"{"):
        return "jsonl"
    if b"\0" not in head and (b"\n" in head or b"\r" in head):
        return "csv"
    raise UnreadableFile(file.name, ": neither CSV, JSON lines nor Parquet; name its format in the source's 'format'")


def check_row_bytes(size: int, name: str, hint: str = "") -> None:
    """Raises ``BadInput`` for a row of more than :data:`MAX_ROW_BYTES`, which may have no end."""
    if size > MAX_ROW_BYTES:
        raise BadInput(f"{name}: a row does not end within {MAX_ROW_BYTES} bytes, the limit of a row{hint}")


def check_columns(count: int, name: str) -> None:
    """Raises ``BadInput`` for a table of more than :data:`MAX_COLUMNS`."""
    if count > MAX_COLUMNS:
        raise BadInput(f"{name}: {count} columns; the limit is {MAX_COLUMNS} columns: write them as lists or as rows")


def check_width(rows: bytes, source: Source, name: str) -> None:
    """Raises ``BadInput`` for a CSV row of more than :data:`MAX_COLUMNS`, on which Arrow's parser would crash."""
    mark = source.delimiter.encode()
    if len(rows) <= MAX_COLUMNS or rows.count(mark) <= MAX_COLUMNS:
        return
    ends = np.append(np.flatnonzero(np.frombuffer(rows, np.uint8) == ord("\n")), len(rows))
    starts = np.append(0, ends[:-1] + 1)
    for index in np.flatnonzero(ends - starts > MAX_COLUMNS):
        line = rows[starts[index] : ends[index]]
        if line.count(mark) >= MAX_COLUMNS:
            check_columns(without_quoted(line, source).count(mark) + 1, name)


def check_fields(lines: bytes, name: str) -> None:
    """Raises ``BadInput`` for JSON lines of more than ``MAX_COLUMNS`` fields: their columns would not fit memory."""
    if lines.count(b'":') <= MAX_COLUMNS:
        return
    # A sample shows whether fields repeat, as they do in a table.
    step = max(_SAMPLE_BYTES, len(lines) // _SAMPLES)
    sample = b" ".join(lines[start : start + _SAMPLE_BYTES] for start in range(0, len(lines), step))
    if len(set(_FIELD.findall(sample))) > _MANY_FIELDS:
        check_columns(len(set(_FIELD.findall(lines))), name)
