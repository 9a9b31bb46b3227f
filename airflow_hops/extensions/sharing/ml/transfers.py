"""Transfers of the sharing daemon: offers published and fetched data sets to others, and fetches requested ones."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store.checksums import sha256_of
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.extensions.sharing.core.entries import DATASET_NAME, Dataset, DatasetEntry, DatasetRef, Preview
from airflow_hops.extensions.sharing.core.records import DATA, Catalogue, Request, SharingRecords, Transfer
from airflow_hops.extensions.sharing.core.settings import SharingSettings, Trusted
from airflow_hops.extensions.sharing.core.statements import SEED, sign
from airflow_hops.extensions.sharing.ml.exchange import fetch_document, seed_addresses
from airflow_hops.extensions.sharing.ml.transport import NAME, Torrent, TorrentSession, link_or_copy

# States of a fetch: waiting → previewed (if only the preview is wanted) → downloading → storing → fetched → seeding;
# failed from any, until it is requested again. Requests and results are records; the fetch itself is only in memory,
# and after a restart it is derived anew: documents and files that are already there are kept, pieces are verified
# again, stored files are recognized by their sizes.
# Each complete file is checked against its SHA-256 and copied while others are still downloading. If one has another
# SHA-256, as after a crash of the machine, the pieces on disk are verified, and damaged ones fetched again; only if it
# has still another, its publisher's preview does not fit the torrent. The record of the
# data set is written last, so its presence means that all files are in the store. Only then may the daemon's own files
# be removed, unless they are offered to others.

log = logging.getLogger("airflow_hops.sharing")
_DAY_S = 86_400.0
_GIGABYTE = 10**9


@dataclass
class Others:
    """The trusted organisations and their catalogues, by name, and names of organisations by IP address."""

    trusted: dict[str, Trusted] = field(default_factory=dict)
    catalogues: dict[str, Catalogue] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def find(self, ref: DatasetRef) -> Dataset | None:
        """Returns a data set of a trusted organisation by its name, or None."""
        for catalogue in self.catalogues.values():
            for dataset in catalogue.datasets:
                if dataset.organisation in self.trusted and ref.matches(dataset):
                    return dataset
        return None


@dataclass
class _Fetch:
    """A data set that is being fetched, or was."""

    dataset: Dataset
    request: Request
    preview: Preview | None = None
    torrent: bytes = b""
    files: tuple[FileEntry, ...] = ()
    stored: set[str] = field(default_factory=set)
    storing: asyncio.Task[None] | None = None
    checked_again: bool = False
    state: str = "waiting"
    error: str | None = None
    retryable: bool = True


class _OtherContent(BadInput):
    """A complete file has another SHA-256 than in the preview."""


class Transfers:
    """The transfers of a session.

    Args:
        records: The records in the store.
        session: The BitTorrent session.
        settings: The settings.
        key: The private key of this organisation.
        others: The other organisations, kept up to date by the daemon.
    """

    def __init__(
        self,
        records: SharingRecords,
        session: TorrentSession,
        settings: SharingSettings,
        key: Ed25519PrivateKey,
        others: Others,
    ) -> None:
        self.records, self.session, self.settings, self.key, self.others = records, session, settings, key, others
        self.data = session.data
        self.fetches: dict[DatasetRef, _Fetch] = {}
        self.own: dict[str, Dataset] = {}
        self._written: dict[str, dict[str, Any]] = {}
        self._published: list[str] | None = None

    def tick(self) -> None:
        """Performs the actions that are due. A data set that cannot be shared or fetched does not stop the others.

        Raises:
            HopsError: a published data set cannot be shared.
        """
        problem = None
        try:
            self._share_published()
        except HopsError as error:
            problem = error
        requests = {each.ref: each for each in self.records.requests()}
        for ref in [ref for ref in self.fetches if ref not in requests]:
            self._forget(ref)
        for ref, request in requests.items():
            self._follow(ref, request)
        self._write_transfers()
        if problem is not None:
            raise problem

    def _share_published(self) -> None:
        """Offers published data sets to others until they are no longer published."""
        names = self.records.store.names(self.records.uri("published"))
        if names == self._published:
            return
        published = self.records.published()
        entries = [DatasetEntry.from_dict(json.loads(each["content"])) for each in published.values()]
        wanted = {each.info_hash: Dataset(self.settings.organisation, each) for each in entries}
        for info_hash in self.own.keys() - wanted.keys():
            del self.own[info_hash]
            self.session.remove(info_hash, with_files=True)
            self.records.remove("seeds", f"{info_hash}.json")
            self.records.remove("transfers", f"{info_hash}.json")
        problems = []
        for info_hash, dataset in wanted.items():
            if info_hash not in self.own and info_hash not in self.session.torrents:
                try:
                    self._share(dataset)
                except (HopsError, OSError) as error:
                    problems.append(f"data set {dataset.ref}: {error}")
                    continue
            self.own[info_hash] = dataset
        self.records.update_catalogue(self.key)
        if problems:
            raise HopsError("; ".join(problems))
        self._published = names

    def _share(self, dataset: Dataset) -> None:
        info_hash = dataset.entry.info_hash
        torrent, preview = self.records.document(dataset.entry.torrent), self.records.preview(dataset)
        if torrent is None or preview is None or not (self.data / info_hash).is_dir():
            raise HopsError(f"its files are not in {self.data}; publish it on this machine")
        self.session.add(info_hash, torrent, preview.file_entries(dataset.entry), is_whole=True)
        self._announce(info_hash)
        log.info("%s is shared", dataset.ref)

    def _announce(self, info_hash: str) -> None:
        seed = {"info_hash": info_hash, "address": self.settings.announced}
        self.records.write(sign(self.key, SEED, seed), "seeds", f"{info_hash}.json")

    def _follow(self, ref: DatasetRef, request: Request) -> None:
        """Takes the next step of a fetch."""
        fetch = self.fetches.get(ref)
        if fetch is None:
            dataset = self.others.find(ref)
            if dataset is None and ref.organisation in self.others.trusted:
                dataset = self.records.fetched(ref)
            if dataset is None:
                return
            fetch = self.fetches[ref] = _Fetch(dataset, request)
        info_hash = fetch.dataset.entry.info_hash
        if fetch.request != request:
            fetch.request = request
            is_gone = fetch.state in ("fetched", "seeding") and self.records.fetched(ref) is None
            if fetch.state == "failed" or is_gone or (fetch.state == "previewed" and request.wants == DATA):
                fetch.state, fetch.error, fetch.stored, fetch.checked_again = "waiting", None, set(), False
                if info_hash not in self.own:  # libtorrent 2.1: keeps the failed state after a full disk
                    self.session.remove(info_hash, with_files=False)
        if fetch.state == "failed" or (fetch.storing is not None and not fetch.storing.done()):
            return
        try:
            if fetch.storing is not None:
                task, fetch.storing = fetch.storing, None
                try:
                    task.result()
                except _OtherContent as error:
                    if fetch.checked_again:
                        raise
                    log.warning("%s: %s; all pieces are checked again", ref, error)
                    fetch.checked_again = True
                    self.session.torrents[info_hash].check_again()
                    return
            self._step(fetch)
        except OSError as error:
            self._fail(fetch, f"{error.strerror or error} ({error.filename or self.data})")
        except HopsError as error:
            self._fail(fetch, str(error), retryable=error.retryable)
        except Exception as error:  # errors of libtorrent or of received data must not stop other transfers
            log.exception("%s", ref)
            self._fail(fetch, f"{type(error).__name__}: {error}", retryable=False)

    def _step(self, fetch: _Fetch) -> None:
        dataset, ref = fetch.dataset, fetch.dataset.ref
        info_hash = dataset.entry.info_hash
        if fetch.preview is None:
            torrent = self.records.document(dataset.entry.torrent)
            fetch.preview = None if torrent is None else self.records.preview(dataset)
            fetch.torrent = torrent or b""
        if fetch.preview is None:
            fetch.storing = asyncio.create_task(self._fetch_documents(dataset))
        elif fetch.request.wants != DATA:
            fetch.state = "previewed"
        elif fetch.state in ("fetched", "seeding") or (fetch.state == "waiting" and self.records.fetched(ref)):
            self._seed(fetch, fetch.preview)
        elif info_hash not in self.session.torrents:
            self._begin(fetch, fetch.preview)
        else:
            self._download(fetch, self.session.torrents[info_hash])

    async def _fetch_documents(self, dataset: Dataset) -> None:
        seeds = seed_addresses(self.others.catalogues.values(), dataset.entry.info_hash, self.others.trusted)
        names = dict.fromkeys([dataset.organisation, *seeds.values()])
        urls = [self.others.trusted[name].catalogue for name in names if name in self.others.trusted]
        for digest in (dataset.entry.preview, dataset.entry.torrent):
            try:
                content = await fetch_document(urls, digest)
            except HopsError as error:
                raise HopsError(f"preview and torrent file cannot be read: {error}") from None
            self.records.keep_document(content)

    def _begin(self, fetch: _Fetch, preview: Preview) -> None:
        """Checks the bounds, and adds the torrent."""
        entry = fetch.dataset.entry
        try:
            fetch.files = preview.file_entries(entry)
        except ValueError as error:
            raise BadInput(str(error)) from None
        others = sum(
            each.dataset.entry.size_bytes for each in self.fetches.values() if each.files and each is not fetch
        )
        if others + entry.size_bytes > self.settings.disk_gb * _GIGABYTE:
            raise BadInput(
                f"it has {entry.size_bytes / _GIGABYTE:.1f} GB, and other fetched data sets {others / _GIGABYTE:.1f} "
                f"GB, more than disk_gb = {self.settings.disk_gb:g} allows; remove some with 'airflow hops datasets "
                "remove', or raise it"
            )
        needed = entry.size_bytes - sum(
            path.stat().st_blocks * 512 for path in (self.data / entry.info_hash).rglob("*") if path.is_file()
        )
        free = shutil.disk_usage(self.data).free - self.settings.free_gb * _GIGABYTE
        if needed > free:
            raise HopsError(
                f"it needs {needed / _GIGABYTE:.2f} GB more in {self.data}, where {max(0.0, free) / _GIGABYTE:.2f} GB "
                f"are free beyond free_gb = {self.settings.free_gb:g}; free some space"
            )
        self.session.add(entry.info_hash, fetch.torrent, fetch.files, is_whole=False)
        fetch.state = "downloading"
        log.info("%s: fetching %d bytes", fetch.dataset.ref, entry.size_bytes)

    def _download(self, fetch: _Fetch, made: Torrent) -> None:
        """Connects to peers, and stores files that are complete."""
        info_hash = fetch.dataset.entry.info_hash
        if made.error is not None:
            raise HopsError(f"{made.error}; free some space, or check the folder {self.data}")
        status = made.handle.status()
        seeds = seed_addresses(self.others.catalogues.values(), info_hash, self.others.trusted)
        if not status.is_seeding:
            self.session.connect(info_hash, seeds)
            fetch.state = "downloading"
            if made.idle_s(status) > self.settings.stall_s:
                made.handle.pause()
                dropped = "".join(f"; {each} was dropped, since {why}" for each, why in self._dropped(made))
                whose = ", ".join(
                    f"{name} at {address}" for address, name in seeds.items() if address not in made.dropped
                )
                raise HopsError(
                    f"no data was received for {self.settings.stall_s:g} s at {status.progress:.0%}; tried "
                    f"{whose or 'none: no catalogue names a peer that has it'}{dropped}"
                )
        files = [entry for entry in made.complete_files() if entry.path not in fetch.stored]
        if files:
            fetch.storing = asyncio.create_task(self._store(fetch, files))
            fetch.state = "storing" if status.is_seeding else "downloading"
        elif len(fetch.stored) == len(fetch.files):
            text = json.dumps(fetch.dataset.to_dict())
            self.records.store.write_text(f"{self.records.place(fetch.dataset.ref)}/{DATASET_NAME}", text)
            fetch.state = "fetched"
            log.info("%s: fetched", fetch.dataset.ref)

    async def _store(self, fetch: _Fetch, files: list[FileEntry]) -> None:
        """Copies complete files into the store, except those that a previous process has copied."""
        place, source = self.records.place(fetch.dataset.ref), self.data / fetch.dataset.entry.info_hash / NAME
        there = self.records.store.files.sizes(place)
        for entry in files:
            if there.get(entry.path) != entry.size_bytes:
                await asyncio.to_thread(self._store_file, source / entry.path, f"{place}/{entry.path}", entry)
            fetch.stored.add(entry.path)

    def _store_file(self, path: Path, uri: str, entry: FileEntry) -> None:
        with path.open("rb") as stream:
            if sha256_of(stream) != entry.sha256:
                raise _OtherContent(
                    f"{entry.path}: its SHA-256 is not that of the preview, so its publisher made a mistake"
                )
        files = self.records.store.files
        if isinstance(files, LocalFiles):
            link_or_copy(path, files.path(uri))
        else:
            files.upload(path, uri)

    def _seed(self, fetch: _Fetch, preview: Preview) -> None:
        """Offers a fetched data set to others, or removes its files from the daemon's disk."""
        info_hash, settings = fetch.dataset.entry.info_hash, self.settings
        unused_s = time.time() - fetch.request.at
        if settings.seeding == "always" or (settings.seeding == "in_use" and unused_s < settings.in_use_days * _DAY_S):
            if info_hash not in self.session.torrents:
                if not (self.data / info_hash).is_dir():
                    fetch.state = "fetched"
                    return
                self.session.add(info_hash, fetch.torrent, preview.file_entries(fetch.dataset.entry), is_whole=True)
            if fetch.state != "seeding":
                self._announce(info_hash)
                self.records.update_catalogue(self.key)
            fetch.state = "seeding"
            return
        if (self.data / info_hash).exists() and info_hash not in self.own:
            self.session.remove(info_hash, with_files=True)
        if fetch.state == "seeding":
            self.records.remove("seeds", f"{info_hash}.json")
            self.records.update_catalogue(self.key)
        fetch.state, fetch.files = "fetched", ()

    def _forget(self, ref: DatasetRef) -> None:
        """Ends a fetch that is no longer requested."""
        fetch = self.fetches.pop(ref)
        info_hash = fetch.dataset.entry.info_hash
        if fetch.storing is not None:
            fetch.storing.cancel()
        if info_hash not in self.own:
            self.session.remove(info_hash, with_files=True)
            self.records.remove("seeds", f"{info_hash}.json")
            self.records.update_catalogue(self.key)
        self.records.remove("transfers", f"{info_hash}.json")
        self._written.pop(info_hash, None)

    def _fail(self, fetch: _Fetch, reason: str, *, retryable: bool = True) -> None:
        fetch.state, fetch.error, fetch.retryable = "failed", reason, retryable
        log.warning("%s: %s", fetch.dataset.ref, reason)

    def _dropped(self, made: Torrent) -> list[tuple[str, str]]:
        return [
            (f"{self.others.names.get(each.partition(':')[0], 'unknown')} at {each}", why)
            for each, why in made.dropped.items()
        ]

    def _write_transfers(self) -> None:
        """Writes the states that have changed."""
        fetches = {each.dataset.entry.info_hash: each for each in self.fetches.values()}
        own = [(dataset, None) for info_hash, dataset in self.own.items() if info_hash not in fetches]
        for dataset, fetch in [*own, *((each.dataset, each) for each in fetches.values())]:
            ref, made = dataset.ref, self.session.torrents.get(dataset.entry.info_hash)
            size_bytes = dataset.entry.size_bytes
            transfer = Transfer(ref.organisation, ref.name, ref.version, "seeding", size_bytes, done_bytes=size_bytes)
            if fetch is not None:
                transfer = replace(
                    transfer,
                    state=fetch.state,
                    done_bytes=size_bytes if fetch.state in ("fetched", "seeding") else 0,
                    error=fetch.error,
                    retryable=fetch.retryable,
                    asked_at=fetch.request.at,
                )
            if made is not None:
                status = made.handle.status()
                transfer = replace(
                    transfer,
                    done_bytes=max(transfer.done_bytes, int(status.progress * size_bytes)),
                    down_bytes_s=status.download_payload_rate,
                    up_bytes_s=status.upload_payload_rate,
                    uploaded_bytes=status.all_time_upload,
                    peers=self.session.peers(dataset.entry.info_hash, self.others.names),
                    dropped=[f"{each}: {why}" for each, why in self._dropped(made)],
                )
            value = transfer.to_dict()
            if self._written.get(dataset.entry.info_hash) != value:
                self._written[dataset.entry.info_hash] = value
                self.records.write(transfer, "transfers", f"{dataset.entry.info_hash}.json")
