"""A fleet's folder: the models of all segments in few files, and an index that says where each one is.

``fleet.json`` (:class:`FleetDescription`) names the segment's column, the encoding of the other columns, and the pooled
model; ``signature.json`` the inputs and outputs of requests, as for every model. ``packs/NNN.bin`` are the models, one
after the other, and ``index.parquet`` has a row for each segment, sorted by its key. A segment that is ``pooled``, or
that the index does not have, is answered by the pooled model.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import CheckedFields, JsonFields
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.core.summary import FLEET_FILE

MAX_KEY_BYTES = 1024
"""Longest key of a segment, in UTF-8."""
_SHOWN = 10

INDEX_FILE = "index.parquet"
PACKS_FOLDER = "packs"

MAX_PACK_BYTES = 64 << 20

OWN, CONTINUED, POOLED = "own", "continued", "pooled"
STATES = (OWN, CONTINUED, POOLED)
LINEAR, ONNX = "linear", "onnx"
FORMATS = (LINEAR, ONNX)

_PLACE = {"pack": pa.int32(), "offset": pa.int64(), "length": pa.int64(), "format": pa.string(), "sha256": pa.string()}
INDEX_SCHEMA = pa.schema(
    {
        "segment": pa.string(),
        "state": pa.string(),
        "reason": pa.string(),
        "rows": pa.int64(),
        # Null for a segment that the pooled model answers.
        "place": pa.struct(_PLACE),
        "fingerprint": pa.string(),
        "loss": pa.float64(),
        "pooled_loss": pa.float64(),
        "eval_rows": pa.int64(),
        "eval_loss": pa.float64(),
        "eval_pooled_loss": pa.float64(),
        "failed": pa.bool_(),
        # Run that trained the entry.
        "trained_by": pa.string(),
        # Fingerprint of an entry that was rolled back: a training on the same rows leaves this one as it is.
        "refused": pa.string(),
    }
)
Entry = Mapping[str, Any]
"""A row of the index, by column; ``place`` is a :class:`Place`, or None."""


@dataclass(frozen=True)
class Place(CheckedFields):
    """Position of a model: ``length`` bytes at ``offset`` of a pack, of a format, with the SHA-256 of these bytes."""

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


class PackWriter(ExitStack):
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
        super().__init__()
        self._folder, self._max_bytes = folder, max_pack_bytes
        (folder / PACKS_FOLDER).mkdir(parents=True)
        self._file: IO[bytes] | None = None
        self._pack, self._offset = -1, 0

    def add(self, payload: bytes, format: str) -> Place:
        """Appends a model. Raises BadInput if it is empty or larger than a pack may be, or of an unknown format."""
        if format not in FORMATS:
            raise BadInput(f"the model is of the format {format!r}; expected {' or '.join(FORMATS)}")
        if not 0 < len(payload) <= self._max_bytes:
            raise BadInput(f"the model has {len(payload)} bytes; expected 1 to {self._max_bytes}: train a smaller one")
        if self._file is None or self._offset + len(payload) > self._max_bytes:
            self.close()
            self._pack, self._offset = self._pack + 1, 0
            self._file = self.enter_context(_pack_path(self._folder, self._pack).open("xb"))
        place = Place(self._pack, self._offset, len(payload), format, hashlib.sha256(payload).hexdigest())
        self._file.write(payload)
        self._offset += len(payload)
        return place


def write_index(folder: Path, entries: Iterable[Entry]) -> list[Entry]:
    """Writes ``index.parquet``, and returns its rows, sorted.

    Args:
        folder: The fleet's folder.
        entries: A mapping for each segment, in any order, with columns of ``INDEX_SCHEMA``; absent ones are null.

    Raises:
        BadInput: a segment comes twice, has no place although it has a model of its own, or has one although not.
    """
    absent = dict.fromkeys(INDEX_SCHEMA.names)
    rows: list[Entry] = sorted(({**absent, **entry} for entry in entries), key=lambda row: row["segment"].encode())
    places = [row["place"] and {name: getattr(row["place"], name) for name in _PLACE} for row in rows]
    table = pa.Table.from_pylist(
        [{**row, "place": place} for row, place in zip(rows, places, strict=True)], INDEX_SCHEMA
    )
    _checked(folder / INDEX_FILE, table)
    write_parquet(table, folder / INDEX_FILE)
    return rows


def read_index(folder: Path) -> dict[str, Entry]:
    """Reads ``index.parquet``, by segment.

    Raises:
        BadInput: it is damaged, or of another version of this package; the message names the column and the segment.
    """
    path = folder / INDEX_FILE
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path}: no index of a fleet ({error})") from error
    for field in INDEX_SCHEMA:
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            columns = ", ".join(f"{each.name} {each.type}" for each in table.schema)
            raise BadInput(
                f"{path}: expected a column {field.name!r} of the type {field.type}; there are {columns}. Train the "
                "fleet again, under another name of the model, if another version of airflow-hops wrote it"
            )
    return _checked(path, table)


def _checked(path: Path, table: pa.Table) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    previous = b""
    for row in table.to_pylist():
        segment, state, place = row["segment"], row["state"], row["place"]
        name = f"{path}: segment {shown(segment)}"
        if fault := fault_of(segment):
            raise BadInput(f"{name} {fault}")
        if (key := segment.encode()) <= previous:
            raise BadInput(f"{name} comes twice, or after a greater key")
        if state not in STATES:
            raise BadInput(f"{name}: state is {state!r}; expected {', '.join(STATES)}")
        if (place is None) != (state == POOLED) or None in (place or {}).values():
            raise BadInput(
                f"{name} is {state!r} and has the place {place}; a model has a pack, an offset, a length, a format and "
                "a sha256, and a pooled segment has none"
            )
        entries[segment], previous = {**row, "place": place and Place(**place)}, key
    return entries


def _pack_path(folder: Path, pack: int) -> Path:
    return folder / PACKS_FOLDER / f"{pack:03d}.bin"


class Fleet:
    """An open fleet: description and index in memory, models read when asked; thread-safe until it is closed.

    Attributes:
        description: Content of ``fleet.json``.
        entries: The index, by segment.

    Raises:
        BadInput: a file is missing or damaged, or a model lies beyond the end of its pack; the message names it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.description, self.entries = folder, FleetDescription.read(folder), read_index(folder)
        # Files stay readable when the folder is removed; mapped ones would end the process when they are cut short.
        self._packs: dict[int, int] = {}
        try:
            self._check_place("the pooled model", self.description.pooled)
            for segment in self.entries:
                if place := self.place(segment):
                    self._check_place(f"the model of segment {shown(segment)}", place)
        except BaseException:
            self.close()
            raise

    def _check_place(self, name: str, place: Place) -> None:
        path = _pack_path(self.folder, place.pack)
        if place.pack not in self._packs:
            try:
                self._packs[place.pack] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}; {name} is in it") from error
        size = os.fstat(self._packs[place.pack]).st_size
        if place.offset < 0 or place.length <= 0 or place.offset + place.length > size:
            raise BadInput(f"{path}: has {size:,} bytes; {name} should be {place.length:,} bytes at {place.offset:,}")
        if place.format not in FORMATS:
            raise BadInput(f"{self.folder}: {name} is of the format {place.format!r}; expected {', '.join(FORMATS)}")

    def state(self, segment: str) -> str | None:
        """Returns the state of a segment; None if it is not known."""
        return self.entries[segment]["state"] if segment in self.entries else None

    def place(self, segment: str) -> Place | None:
        """Returns where a segment's own model is; None if the pooled one answers it."""
        return self.entries[segment]["place"] if segment in self.entries else None

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


def shown(key: object) -> str:
    """Returns a key for a message, shortened."""
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}…"


def fault_of(key: object) -> str:
    """Returns why a value is not a segment's key; empty if it is one."""
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
        if fault := fault_of(key):
            raise BadInput(f"column {name!r} {fault} in row {row}; expected the key of a segment ({shown(key)})")
        keys.append(key)
    return keys


def look_alikes(keys: Collection[str]) -> list[list[str]]:
    """Returns the groups of keys that people would read as one: they differ in case, spaces or Unicode's forms.

    >>> look_alikes(["A1", "B2", "a1 "])
    [['A1', 'a1 ']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for key in sorted(keys):
        groups[" ".join(unicodedata.normalize("NFKC", key).casefold().split())].append(key)
    return sorted(group for group in groups.values() if len(group) > 1)


def check_keys(column: str, keys: Collection[str], max_segments: int, keeps_look_alikes: bool) -> list[list[str]]:
    """Returns the groups of keys that look alike.

    Raises:
        BadInput: there are none or more than ``max_segments``, a key is blank or too long, or keys look alike and are
            not kept.
    """
    if not keys:
        raise BadInput(f"column {column!r} has no key of a segment in any training row")
    if len(keys) > max_segments:
        raise BadInput(
            f"column {column!r} has {len(keys):,} different values; expected keys of at most {max_segments:,} segments "
            "(max_segments): a fleet has a model for each, so name a column of shops or machines, not one of visits"
        )
    for key in keys:
        if fault := fault_of(key.strip()) or fault_of(key):
            raise BadInput(f"column {column!r} is {shown(key)} in some rows, a key that {fault}")
    groups = look_alikes(keys)
    if groups and not keeps_look_alikes:
        listed = "; ".join(" and ".join(ascii(key) for key in group) for group in groups[:_SHOWN])
        raise BadInput(
            f"column {column!r} has keys that look alike in {len(groups):,} groups: {listed}. Each would get a model "
            "of its own: write them in one way in prepare(), or, if they are different segments, give "
            'look_alikes="keep"'
        )
    return groups
