"""A fleet's folder: the models of all segments in few files, and an index that says where each one is.

``fleet.json`` (:class:`FleetDescription`) names the segment's column, the encoding of the other columns, and the pooled
model; ``signature.json`` the inputs and outputs of requests, as for every model. ``packs/NNN.bin`` are the models, one
after the other, and ``index.parquet`` has a row for each segment, sorted by its key. A segment that is ``pooled``, or
that the index does not have, is answered by the pooled model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import CheckedFields, JsonFields
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.core.summary import FLEET_FILE, SegmentTable

INDEX_FILE = "index.parquet"
PACKS_FOLDER = "packs"

MAX_PACK_BYTES = 64 << 20
MAX_KEY_BYTES = 1024
"""Longest key of a segment, in UTF-8."""

OWN, CONTINUED, POOLED = "own", "continued", "pooled"
STATES = (OWN, CONTINUED, POOLED)
LINEAR, ONNX = "linear", "onnx"
FORMATS = (LINEAR, ONNX)

INDEX_SCHEMA = pa.schema(
    [
        pa.field("segment", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        # Null for a segment that the pooled model answers.
        pa.field("pack", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("format", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("loss", pa.float64()),
        pa.field("pooled_loss", pa.float64()),
    ]
)
_PLACE = ("pack", "offset", "length", "format", "sha256")


@dataclass(frozen=True)
class Place(CheckedFields):
    """Position of a model: ``length`` bytes at ``offset`` of a pack, of a format, with the SHA-256 of these bytes.

    ``to_dict()`` has the columns of the index.
    """

    pack: int
    offset: int
    length: int
    format: str
    sha256: str


@dataclass(frozen=True)
class FleetDescription(JsonFields):
    """The content of ``fleet.json``.

    Attributes:
        segment: The column whose value is the segment's key.
        segment_type: ``string`` or ``int64``; a key of int64 is the decimal text in the index.
        encoding: How the other columns become the matrix that every model takes, ONNX ones as float32.
        pooled: The pooled model.
    """

    segment: str
    segment_type: str
    encoding: Encoding
    pooled: Place

    def write(self, folder: Path) -> None:
        """Writes the file, which a folder with a fleet gets last."""
        (folder / FLEET_FILE).write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> FleetDescription:
        """Reads the file. Raises BadInput if it is damaged."""
        path = folder / FLEET_FILE
        try:
            description = cls.from_dict(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise BadInput(f"{path}: no description of a fleet ({error})") from error
        if not isinstance(description.segment, str) or description.segment_type not in ("string", "int64"):
            raise BadInput(
                f"{path}: segment is {description.segment!r} of the type {description.segment_type!r}; expected the "
                "name of a column, and string or int64"
            )
        for number in description.encoding.numbers:
            if not (np.isfinite(number.mean) and np.isfinite(number.scale) and number.scale > 0):
                raise BadInput(
                    f"{path}: column {number.name!r} has the mean {number.mean} and the scale {number.scale}; expected "
                    "finite numbers, and a scale above 0"
                )
        return description


class PackWriter:
    """Writes models to ``packs/``, in the order in which they are added; a context manager.

    >>> with PackWriter(folder) as packs:
    ...     place = packs.add(weights_to_bytes(np.zeros((1, 3))), LINEAR)
    >>> place.pack, place.offset, place.length
    (0, 0, 24)

    Args:
        folder: The fleet's folder.
        max_pack_bytes: A pack that would become larger is followed by the next one.
    """

    def __init__(self, folder: Path, max_pack_bytes: int = MAX_PACK_BYTES) -> None:
        self._folder, self._max_bytes = folder / PACKS_FOLDER, max_pack_bytes
        self._folder.mkdir(parents=True)
        self._file: IO[bytes] | None = None
        self._pack = self._offset = 0

    def add(self, payload: bytes, format: str) -> Place:
        """Appends a model. Raises BadInput if it is empty or larger than a pack may be, or of an unknown format."""
        if format not in FORMATS:
            raise BadInput(f"the model is of the format {format!r}; expected {' or '.join(FORMATS)}")
        if not 0 < len(payload) <= self._max_bytes:
            raise BadInput(f"the model has {len(payload)} bytes; expected 1 to {self._max_bytes}: train a smaller one")
        if self._file is not None and self._offset + len(payload) > self._max_bytes:
            self._file.close()
            self._file, self._pack, self._offset = None, self._pack + 1, 0
        if self._file is None:
            self._file = _pack_path(self._folder.parent, self._pack).open("xb")
        place = Place(self._pack, self._offset, len(payload), format, hashlib.sha256(payload).hexdigest())
        self._file.write(payload)
        self._offset += len(payload)
        return place

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def write_index(folder: Path, rows: Iterable[Mapping[str, Any]], more: Sequence[pa.Field] = ()) -> None:
    """Writes ``index.parquet``.

    Args:
        folder: The fleet's folder.
        rows: A mapping for each segment, with the columns of ``INDEX_SCHEMA``, of which null ones may be missing, and
            those of ``more``; the order does not matter.
        more: Further columns.

    Raises:
        BadInput: a segment comes twice, has no place although it has a model of its own, or has one although not.
    """
    table = pa.Table.from_pylist(
        sorted(rows, key=lambda row: row["segment"].encode()), schema=pa.schema([*INDEX_SCHEMA, *more])
    )
    _check_rows(folder / INDEX_FILE, table)
    write_parquet(table, folder / INDEX_FILE)


def read_index(folder: Path) -> pa.Table:
    """Reads ``index.parquet``. Raises BadInput if it is damaged; the message names the column and the segment."""
    path = folder / INDEX_FILE
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path}: no index of a fleet ({error})") from error
    for field in INDEX_SCHEMA:
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            columns = ", ".join(f"{each.name} {each.type}" for each in table.schema)
            raise BadInput(f"{path}: expected a column {field.name!r} of the type {field.type}; there are {columns}")
    _check_rows(path, table)
    return table


def summary_of(index: pa.Table, segment: str, loss: str) -> SegmentTable:
    """Returns the content of ``summary.json`` for an index; ``segment`` is the column, ``loss`` the loss in words."""
    columns = {name: index[name].to_pylist() for name in INDEX_SCHEMA.names}
    for name in ("loss", "pooled_loss"):
        columns[name] = [None if each is None or not math.isfinite(each) else each for each in columns[name]]
    return SegmentTable(
        segment,
        loss,
        segments=columns["segment"],
        states=columns["state"],
        reasons=columns["reason"],
        rows=columns["rows"],
        losses=columns["loss"],
        pooled_losses=columns["pooled_loss"],
        digests=[each and each[:12] for each in columns["sha256"]],
    )


def _check_rows(path: Path, table: pa.Table) -> None:
    columns = {name: table[name].to_pylist() for name in ("segment", "state", *_PLACE)}
    previous = None
    for segment, state, *place in zip(*columns.values(), strict=True):
        if reason := _bad_key(segment):
            raise BadInput(f"{path}: segment {shown(segment)} {reason}")
        if previous is not None and segment.encode() <= previous.encode():
            raise BadInput(f"{path}: segment {shown(segment)} comes twice, or after a greater key")
        previous = segment
        if state not in STATES:
            raise BadInput(f"{path}: segment {shown(segment)}: state is {state!r}; expected {', '.join(STATES)}")
        if any((value is None) != (state == POOLED) for value in place):
            raise BadInput(
                f"{path}: segment {shown(segment)} is {state!r} and has {dict(zip(_PLACE, place, strict=True))}; "
                "a model has a pack, an offset, a length, a format and a sha256, and a pooled segment has none"
            )


def shown(key: object) -> str:
    """Returns a key for a message, shortened."""
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _bad_key(key: object) -> str:
    """Returns why a text is not a segment's key; empty if it is one."""
    if not isinstance(key, str) or not key:
        return "is empty"
    size = len(key.encode(errors="surrogatepass"))
    return f"has {size:,} bytes; at most {MAX_KEY_BYTES:,} are allowed" if size > MAX_KEY_BYTES else ""


def segment_keys(name: str, values: np.ndarray) -> list[str]:
    """Returns the keys of rows, as the index has them: texts unchanged, and integers in decimals.

    Keys are compared byte by byte: ``A1``, ``a1`` and ``A1`` with a space are three segments.

    >>> segment_keys("shop", np.array([7, -1]))
    ['7', '-1']

    Args:
        name: The column, for messages.
        values: Texts (``str`` or UTF-8 ``bytes``) or integers, ``[rows]``.

    Raises:
        BadInput: a value is empty, too long, no UTF-8 or of another type; the message names the row.
    """
    if values.dtype.kind in "iu":
        return [str(value) for value in values.tolist()]
    if values.dtype.kind not in "OU":
        raise BadInput(f"column {name!r} is of the type {values.dtype}; expected texts or integers, keys of segments")
    keys: list[str] = []
    for row, value in enumerate(values.tolist()):
        try:
            key = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise BadInput(f"column {name!r} is {shown(value)} in row {row}; expected UTF-8 ({error.reason})") from None
        if not isinstance(key, str):
            raise BadInput(f"column {name!r} is {shown(key)} in row {row}; expected a text, the key of a segment")
        if reason := _bad_key(key):
            raise BadInput(f"column {name!r} {reason} in row {row}; expected the key of a segment ({shown(key)})")
        keys.append(key)
    return keys


def _pack_path(folder: Path, pack: int) -> Path:
    return folder / PACKS_FOLDER / f"{pack:03d}.bin"


class Fleet:
    """An open fleet: description and index in memory, models read when asked; thread-safe until it is closed.

    Attributes:
        description: Content of ``fleet.json``.
        index: The index.
    """

    def __init__(self, folder: Path, description: FleetDescription, index: pa.Table) -> None:
        self.folder, self.description, self.index = folder, description, index
        self._rows = {segment: row for row, segment in enumerate(index["segment"].to_pylist())}
        # Files stay readable when the folder is removed; mapped ones would end the process when they are cut short.
        self._packs: dict[int, int] = {}
        self._numbers = {name: index[name].fill_null(-1).to_numpy() for name in ("pack", "offset", "length")}
        self._formats = index["format"].combine_chunks()
        self._states = index["state"].to_pylist()
        self._digests = index["sha256"].combine_chunks()

    @classmethod
    def open(cls, folder: Path) -> Fleet:
        """Opens the fleet in a folder.

        Raises:
            BadInput: a file is missing or damaged, or a model lies beyond the end of its pack; the message names it.
        """
        fleet = cls(folder, FleetDescription.read(folder), read_index(folder))
        try:
            fleet._open_packs()
        except BaseException:
            fleet.close()
            raise
        return fleet

    def _open_packs(self) -> None:
        sizes = {}
        for segment, place in self._named_places():
            name = "the pooled model" if segment is None else f"the model of segment {shown(segment)}"
            path = _pack_path(self.folder, place.pack)
            if place.pack not in sizes:
                try:
                    self._packs[place.pack] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise BadInput(f"{path}: {error.strerror}; {name} is in it") from error
                sizes[place.pack] = os.fstat(self._packs[place.pack]).st_size
            if place.offset < 0 or place.length <= 0 or place.offset + place.length > sizes[place.pack]:
                raise BadInput(
                    f"{path}: has {sizes[place.pack]:,} bytes; {name} should be {place.length:,} bytes at "
                    f"{place.offset:,}"
                )
            if place.format not in FORMATS:
                raise BadInput(
                    f"{self.folder}: {name} is of the format {place.format!r}; expected {', '.join(FORMATS)}"
                )

    def places(self) -> Iterator[Place]:
        """Yields where all models are, the pooled one first."""
        return (place for _, place in self._named_places())

    def _named_places(self) -> Iterator[tuple[str | None, Place]]:
        yield None, self.description.pooled
        for segment, row in self._rows.items():
            if (place := self._place(row)) is not None:
                yield segment, place

    def _place(self, row: int) -> Place | None:
        pack, offset, length = (int(numbers[row]) for numbers in self._numbers.values())
        if not self._formats[row].is_valid:
            return None
        return Place(pack, offset, length, self._formats[row].as_py(), self._digests[row].as_py())

    def state(self, segment: str) -> str | None:
        """Returns the state of a segment; None if it is not known."""
        row = self._rows.get(segment)
        return None if row is None else str(self._states[row])

    def place(self, segment: str) -> Place | None:
        """Returns where a segment's own model is; None if the pooled one answers it."""
        row = self._rows.get(segment)
        return None if row is None else self._place(row)

    def payload(self, place: Place) -> bytes:
        """Reads a model. Raises BadInput if its bytes have another SHA-256 than the index says."""
        payload = os.pread(self._packs[place.pack], place.length, place.offset)
        if hashlib.sha256(payload).hexdigest() != place.sha256:
            raise BadInput(
                f"{_pack_path(self.folder, place.pack)}: the {place.length:,} bytes at {place.offset:,} are damaged: "
                "their SHA-256 is not that of the index; deploy the fleet again"
            )
        return payload

    def close(self) -> None:
        """Closes the packs."""
        while self._packs:
            os.close(self._packs.popitem()[1])
