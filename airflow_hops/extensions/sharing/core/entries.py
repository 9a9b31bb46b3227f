"""Entries of shared data sets, their previews, and the bounds that they must keep before anything is downloaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Self
from urllib.parse import urlsplit

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, FileEntry
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import CheckedFields, JsonFields

SCHEME = "dataset"
DATASET_NAME = "dataset.json"
"""Record in the folder of a fetched data set."""
KINDS = ("snapshot", "examples")
"""Kinds of artifacts that can be published: folders of Parquet files by table, or by split."""
MOST_FILES = 100_000
MOST_FEATURES = 200
"""Maximum number of features in an entry; the preview has all."""
MOST_TEXT = 20_000
MOST_DOCUMENT_BYTES = 32 << 20
"""Maximum size of a preview or a torrent file."""
MOST_CATALOGUE_BYTES = 32 << 20

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"[\w.+@=-]+(/[\w.+@=-]+)*", re.ASCII)


@dataclass(frozen=True)
class DatasetEntry(CheckedFields):
    """A version of a data set, as its publisher signs it.

    Attributes:
        size_bytes: Sum of the sizes of its files.
        files: Number of its files.
        info_hash: BitTorrent v2 info hash, which covers names, sizes and the Merkle root of each file.
        torrent: SHA-256 of the torrent file.
        preview: SHA-256 of the :class:`Preview`.
        features: The first :data:`MOST_FEATURES` features by ``table.column``: ``type``, ``missing`` (share of rows),
            and of numbers ``mean``, ``min`` and ``max``, of strings ``unique`` and ``top``.
    """

    name: str
    version: int
    licence: str
    description: str
    kind: str
    created_at: str
    rows: int
    size_bytes: int
    files: int
    info_hash: str
    torrent: str
    preview: str
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def check(self) -> Self:
        """Returns itself. Raises ValueError if a field is out of bounds."""
        check_name("name", self.name)
        if not 1 <= self.version < 2**31:
            raise ValueError(f"version is {self.version}, expected a number from 1")
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind[:40]!r}, expected one of {', '.join(KINDS)}")
        for name in ("info_hash", "torrent", "preview"):
            if not _SHA256.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)[:80]!r}, expected 64 hexadecimal digits")
        if not 1 <= self.files <= MOST_FILES:
            raise ValueError(f"files is {self.files}, expected 1 to {MOST_FILES}")
        if min(self.rows, self.size_bytes) < 0:
            raise ValueError("rows or size_bytes is negative")
        if len(self.features) > MOST_FEATURES:
            raise ValueError(f"features has {len(self.features)} entries, expected {MOST_FEATURES} at most")
        for name, value in {"licence": self.licence, "description": self.description}.items():
            if len(value) > MOST_TEXT:
                raise ValueError(f"{name} has {len(value)} characters, expected {MOST_TEXT} at most")
        return self


@dataclass(frozen=True)
class Dataset(JsonFields):
    """A data set of an organisation, whose signature was verified."""

    organisation: str
    entry: DatasetEntry

    @property
    def ref(self) -> DatasetRef:
        """Returns the full name."""
        return DatasetRef(self.organisation, self.entry.name, self.entry.version)


@dataclass(frozen=True)
class Seed(CheckedFields):
    """An address from which an organisation gives the files of a data set to others: ``host:port``."""

    info_hash: str
    address: str

    def check(self) -> Self:
        """Returns itself. Raises ValueError if a field is invalid."""
        if not _SHA256.fullmatch(self.info_hash):
            raise ValueError(f"info_hash is {self.info_hash[:80]!r}, expected 64 hexadecimal digits")
        split_address(self.address)
        return self


@dataclass(frozen=True)
class Preview(CheckedFields):
    """Facts about a data set that can be checked before the download.

    Attributes:
        files: Path, size and SHA-256 of each file.
        types: Arrow type of each column, by table.
        schema: TFDV schema as protobuf text, by table.
        statistics: Summary of the statistics, by table (:mod:`airflow_hops.ml.statistics.summary`).
        sample: ``columns`` and ``rows`` of the first rows, by table.
        card: Description in Markdown.
        properties: Properties of the artifact.
    """

    files: Sequence[Mapping[str, Any]]
    types: Mapping[str, Mapping[str, str]]
    schema: Mapping[str, str]
    statistics: Mapping[str, Any]
    sample: Mapping[str, Any]
    card: str
    properties: Mapping[str, Any]

    def file_entries(self, entry: DatasetEntry) -> tuple[FileEntry, ...]:
        """Returns the files.

        Raises:
            ValueError: a path would lead out of the data set's folder, two are the same, or number and sizes are not
                those of the entry.
        """
        try:
            files = tuple(FileEntry(**each) for each in self.files)
            paths = [check_path(file.path) for file in files]
            sizes = [int(file.size_bytes) for file in files]
        except (TypeError, OverflowError) as error:
            raise ValueError(f"files: {error}") from None
        folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        if len(set(paths)) < len(paths) or folders & set(paths):
            raise ValueError("two files have the same path, or one is the folder of another")
        if (len(files), sum(sizes)) != (entry.files, entry.size_bytes) or min(sizes) < 0:
            raise ValueError(
                f"{len(files)} files with {sum(sizes)} bytes, but the entry says {entry.files} files with "
                f"{entry.size_bytes} bytes"
            )
        return files


@dataclass(frozen=True)
class DatasetRef:
    """The name of a version of a data set; an empty organisation means any."""

    organisation: str
    name: str
    version: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``[organisation/]name@version``, also as a URI ``dataset://…``, without its fragment.

        Raises:
            BadInput: the text is not such a name.
        """
        place = text.removeprefix(f"{SCHEME}://").partition("#")[0]
        name, _, version = place.partition("@")
        organisation, _, name = name.rpartition("/")
        try:
            if not version.isdigit() or not 1 <= int(version) < 2**31:
                raise ValueError(f"version is {version!r}, expected a number from 1")
            return cls(
                check_name("organisation", organisation) if organisation else "", check_name("name", name), int(version)
            )
        except ValueError as error:
            raise BadInput(f"data set {text!r}: {error}; expected [ORGANISATION/]NAME@VERSION") from None

    def __str__(self) -> str:
        return f"{self.organisation}/{self.name}@{self.version}" if self.organisation else f"{self.name}@{self.version}"

    def matches(self, dataset: Dataset) -> bool:
        """Returns whether a data set has this name."""
        wanted = (self.organisation or dataset.organisation, self.name, self.version)
        return wanted == (dataset.organisation, dataset.entry.name, dataset.entry.version)


def check_name(what: str, name: str) -> str:
    """Returns a name of an organisation or a data set, which is a part of paths. Raises ValueError if it is invalid."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} is {name[:80]!r}, expected up to 63 lower-case letters, digits, '-' and '_'")
    return name


def check_path(path: str) -> str:
    """Returns a relative path. Raises ValueError if it could lead out of a folder or is unsafe in a file system."""
    if not _PATH.fullmatch(path) or len(path) > 1000 or any(p.startswith((".", "_")) for p in path.split("/")):
        raise ValueError(
            f"file {path[:200]!r}: expected a relative path of ASCII letters, digits and '.+@=-_' whose parts do not "
            "begin with '.' or '_'"
        )
    if PurePosixPath(path).name in (MANIFEST_NAME, DATASET_NAME):
        raise ValueError(f"file {path!r}: the store itself writes files of that name")
    return path


def check_text(value: object) -> None:
    """Checks that all texts of a JSON value can be written as UTF-8. Raises ValueError otherwise."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text has {error.object[error.start]!a}, which is half of a surrogate pair, not a character"
        ) from None


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of ``host:port``. Raises ValueError for another text."""
    try:
        parts = urlsplit(f"//{address}")
        (parts.hostname or "").encode("idna")  # raises for what no resolver takes
        if parts.hostname and parts.port and parts.netloc == address and "@" not in address:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ValueError(f"address is {address[:100]!r}, expected host:port")
