"""Records of data set sharing in the store, by which the daemon and the Airflow side speak.

Below ``<store>/_state/sharing``:

- ``published/<name>@<version>.json``: signed entries of this organisation, and ``seeds/<info hash>.json``: signed
  statements about data sets that the daemon seeds;
- ``public/``: the catalogue that others may read: ``catalogue.json`` with these statements, and ``documents/<SHA-256>``
  with the previews and torrent files that they name;
- ``catalogues/<organisation>.json``: verified entries and seeds of the catalogues of others, and ``documents/``: their
  previews and torrent files;
- ``versions/<name>.json``: the last version that was published, and ``sequence.json``: the catalogue's last number;
- ``requests/<organisation>@<name>@<version>.json``: downloads that tasks and commands request, ``refresh.json``:
  the last request for new catalogues;
- ``transfers/<info hash>.json``: the state of each transfer, ``daemon/``: the daemon's lease
  (:mod:`airflow_hops.core.store.leases`), with its state as the note.

The clocks of the daemon and of those who ask may differ: a request's time is only its id, which the answer repeats.

``<store>/_datasets/<organisation>/<name>/<version>/`` has the files of a fetched data set, and its ``dataset.json``,
which is written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import BadInput, UnreadableText
from airflow_hops.core.json_fields import CheckedFields, JsonFields
from airflow_hops.core.json_files import parse_json
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import Lease
from airflow_hops.extensions.sharing.core.entries import DATASET_NAME, Dataset, DatasetRef, Preview, Seed, check_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREVIEW, DATA = "preview", "data"
OWNED = "datasets"
"""Kind of the names of owned data sets, for :mod:`airflow_hops.core.store.owners`."""


@dataclass(frozen=True)
class Peer(JsonFields):
    """Another organisation's daemon in a transfer; rates in bytes per second."""

    organisation: str
    address: str
    down_bytes_s: float = 0.0
    up_bytes_s: float = 0.0
    progress: float = 0.0


@dataclass(frozen=True)
class Transfer(JsonFields):
    """The state of a transfer.

    Attributes:
        state: ``waiting``, ``previewed``, ``downloading``, ``storing``, ``fetched``, ``seeding`` or ``failed``.
        error: Reason why it failed.
        retryable: Whether asking again may help.
        dropped: Peers that sent wrong data.
        asked_at: Time of the request that it answers, in seconds since 1970.
    """

    organisation: str
    name: str
    version: int
    state: str
    size_bytes: int = 0
    done_bytes: int = 0
    down_bytes_s: float = 0.0
    up_bytes_s: float = 0.0
    uploaded_bytes: int = 0
    peers: Sequence[Peer] = ()
    dropped: Sequence[str] = ()
    error: str | None = None
    retryable: bool = True
    asked_at: float = 0.0

    @property
    def ref(self) -> DatasetRef:
        """Returns the data set's full name."""
        return DatasetRef(self.organisation, self.name, self.version)


@dataclass(frozen=True)
class Request(CheckedFields):
    """A request to the daemon: ``wants`` is ``preview`` or ``data``, ``at`` in seconds since 1970."""

    organisation: str
    name: str
    version: int
    wants: str
    at: float

    @property
    def ref(self) -> DatasetRef:
        """Returns the data set's full name."""
        return DatasetRef(self.organisation, self.name, self.version)


@dataclass(frozen=True)
class Catalogue(JsonFields):
    """The catalogue of a trusted organisation as it was last read.

    Attributes:
        key: The organisation's public key.
        hosts: Hosts from which it may connect.
        sequence: Number of the catalogue, which its publisher signs and only raises.
        seen: SHA-256 of every entry that was ever in it, by ``name@version``; a version keeps its content.
        rejected: Statements that do not count, with the reason.
        error: Reason why the last attempt failed; its previous content still counts.
        at: Time of the last success, in seconds since 1970.
    """

    organisation: str
    url: str
    key: str = ""
    hosts: Sequence[str] = ()
    datasets: Sequence[Dataset] = ()
    seeds: Mapping[str, Sequence[Seed]] = field(default_factory=dict)
    sequence: int = 0
    seen: Mapping[str, str] = field(default_factory=dict)
    rejected: Sequence[str] = ()
    error: str | None = None
    at: float = 0.0


@dataclass(frozen=True)
class Daemon(JsonFields):
    """State of the daemon, written with each beat.

    Attributes:
        at: Time by its clock, in seconds since 1970.
        refreshed: The last request for new catalogues that it has answered.
    """

    at: float
    organisation: str
    host: str
    listen: str
    announced: str
    refreshed: float = 0.0
    seeding: str = "never"
    error: str | None = None


class SharingRecords:
    """Reads and writes the records.

    Args:
        store: The artifact store.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    def uri(self, *segments: str) -> str:
        """Returns the address of a record."""
        return self.store.internal("_state", "sharing", *segments)

    def place(self, ref: DatasetRef) -> str:
        """Returns the address of the folder of a fetched data set."""
        return self.store.internal("_datasets", ref.organisation, ref.name, str(ref.version))

    def write(self, value: Mapping[str, object] | JsonFields, *segments: str) -> None:
        """Writes a record."""
        value = value.to_dict() if isinstance(value, JsonFields) else value
        self.store.write_text(self.uri(*segments), json.dumps(value))

    def read(self, *segments: str) -> Any:
        """Returns the JSON value of a record; None if it is missing or unreadable."""
        with contextlib.suppress(FileNotFoundError, UnreadableText):
            return self.store.read_json(self.uri(*segments))
        return None

    def remove(self, *segments: str) -> None:
        """Removes a record if it exists."""
        self.store.remove_text(self.uri(*segments))

    def all(self, folder: str) -> Iterator[tuple[str, Any]]:
        """Yields the records of a folder: name without ``.json``, and value."""
        for name in self.store.names(self.uri(folder)):
            if name.endswith(".json") and (value := self.read(folder, name)) is not None:
                yield name.removesuffix(".json"), value

    def published(self) -> dict[str, Any]:
        """Returns the signed entries of this organisation by ``name@version``."""
        return dict(self.all("published"))

    def own(self) -> list[Dataset]:
        """Returns the data sets that this organisation publishes."""
        daemon = self.daemon()
        name = daemon.organisation if daemon else "this-organisation"
        entries = (json.loads(statement["content"]) for statement in self.published().values())
        return [Dataset.from_dict({"organisation": name, "entry": entry}) for entry in entries]

    def catalogues(self) -> list[Catalogue]:
        """Returns the catalogues of others as they were last read."""
        return [Catalogue.from_dict(value) for _, value in self.all("catalogues")]

    def datasets(self) -> list[Dataset]:
        """Returns the data sets of others, by their names."""
        by_ref = {each.ref: each for catalogue in self.catalogues() for each in catalogue.datasets}
        return [by_ref[ref] for ref in sorted(by_ref, key=str)]

    def find(self, ref: DatasetRef) -> Dataset | None:
        """Returns a data set of others by its name, or None.

        Raises:
            BadInput: several organisations have one of that name.
        """
        matches = [each for each in self.datasets() if ref.matches(each)]
        if len(matches) > 1:
            raise BadInput(
                f"data set {str(ref)!r}: there are {' and '.join(str(each.ref) for each in matches)}; name one"
            )
        return matches[0] if matches else None

    def fetched(self, ref: DatasetRef) -> Dataset | None:
        """Returns a data set whose files are in the store, or None."""
        with contextlib.suppress(FileNotFoundError):
            return Dataset.from_dict(self.store.read_json(f"{self.place(ref)}/{DATASET_NAME}"))
        return None

    def document(self, digest: str) -> bytes | None:
        """Returns a preview or torrent file by its SHA-256; None if it is missing or damaged."""
        for folder in (("documents",), ("public", "documents")):
            with contextlib.suppress(FileNotFoundError):
                content = self.store.files.read(self.uri(*folder, digest))
                if hashlib.sha256(content).hexdigest() == digest:
                    return content
        return None

    def preview(self, dataset: Dataset) -> Preview | None:
        """Returns the preview of a data set; None if it was not fetched.

        Raises:
            BadInput: it does not fit the entry.
        """
        content = self.document(dataset.entry.preview)
        if content is None:
            return None
        try:
            value = parse_json(content, "the file")
            check_text(value)
            made = Preview.from_dict(value)
            made.file_entries(dataset.entry)
        except (TypeError, ValueError) as error:
            raise BadInput(f"data set {dataset.ref}: its preview cannot be used: {error}") from None
        return made

    def keep_document(self, content: bytes, *, public: bool = False) -> str:
        """Writes a preview or torrent file, and returns its SHA-256."""
        digest = hashlib.sha256(content).hexdigest()
        self.store.files.write(self.uri(*(["public"] if public else []), "documents", digest), content)
        return digest

    def transfers(self) -> dict[str, Transfer]:
        """Returns the transfers by info hash."""
        return {name: Transfer.from_dict(value) for name, value in self.all("transfers")}

    def transfer(self, dataset: Dataset) -> Transfer | None:
        """Returns the transfer of a data set, or None."""
        value = self.read("transfers", f"{dataset.entry.info_hash}.json")
        return None if value is None else Transfer.from_dict(value)

    def request(self, dataset: Dataset, wants: str) -> float:
        """Asks the daemon for a preview, or for the data, and returns the time of the request."""
        ref, now_s = dataset.ref, time.time()
        earlier = self.read("requests", f"{_file_name(ref)}.json")
        if earlier is not None and earlier["wants"] == DATA:
            wants = DATA  # reading the preview does not end a download
        self.write(
            Request(ref.organisation, ref.name, ref.version, wants, now_s), "requests", f"{_file_name(ref)}.json"
        )
        return now_s

    def requests(self) -> list[Request]:
        """Returns all requests."""
        return [Request.from_dict(value) for _, value in self.all("requests")]

    def is_answered(self, transfer: Transfer, asked: float) -> bool:
        """Returns whether a transfer's state answers a request, or a later one for the same data set."""
        now = self.read("requests", f"{_file_name(transfer.ref)}.json") or {}
        return transfer.asked_at in (asked, now.get("at"))

    def withdraw(self, ref: DatasetRef) -> None:
        """Removes a request, so that the daemon ends the transfer and removes its files from its disk."""
        self.remove("requests", f"{_file_name(ref)}.json")

    def ask_refresh(self) -> float:
        """Asks the daemon for new catalogues, and returns the time of the request."""
        now_s = time.time()
        self.write({"at": now_s}, "refresh.json")
        return now_s

    def refresh_asked(self) -> float:
        """Returns the last request for new catalogues; 0 for none."""
        return float((self.read("refresh.json") or {}).get("at", 0.0))

    def is_refreshed(self, asked: float) -> bool:
        """Returns whether the daemon has answered a request for new catalogues, or a later one."""
        daemon = self.daemon()
        return daemon is not None and daemon.refreshed in (asked, self.refresh_asked())

    def daemon(self) -> Daemon | None:
        """Returns the daemon's last report, or None."""
        record = self.lease().read()
        return None if record is None or record.note is None else Daemon.from_dict(record.note)

    def lease(self, holder: str = "") -> Lease:
        """Returns the lease of the one daemon that serves the store."""
        advice = "one daemon serves a store: end that one first"
        return Lease(self.store, self.uri("daemon"), holder, what="sharing daemon", advice=advice)

    def update_catalogue(self, key: Ed25519PrivateKey) -> None:
        """Writes the public catalogue from the signed statements, and removes documents that it does not name."""
        from airflow_hops.extensions.sharing.core.statements import sign_catalogue

        published, seeds = self.published(), dict(self.all("seeds"))
        statements = [*published.values(), *seeds.values()]
        current = self.read("public", "catalogue.json")
        if current is not None and current["statements"] == statements and "catalogue" in current:
            return
        # Follows the clock: peers refuse smaller numbers, even after a loss of this store and its record.
        sequence = max(int(time.time() * 1000), (self.read("sequence.json") or {"last": 0})["last"] + 1)
        self.write({"last": sequence}, "sequence.json")
        catalogue = sign_catalogue(key, statements, sequence)
        entries = [json.loads(statement["content"]) for statement in published.values()]
        entries += [each.entry.to_dict() for each in self.datasets() if each.entry.info_hash in seeds]
        named = {entry[what] for entry in entries for what in ("torrent", "preview")}
        for digest in named:
            if (content := self.document(digest)) is not None:
                self.keep_document(content, public=True)
        self.write({"format": 1, "statements": statements, "catalogue": catalogue}, "public", "catalogue.json")
        for name in self.store.names(self.uri("public", "documents")):
            if name not in named:
                self.remove("public", "documents", name)


def _file_name(ref: DatasetRef) -> str:
    return f"{ref.organisation}@{ref.name}@{ref.version}"
