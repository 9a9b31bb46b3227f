"""``airflow hops datasets serve``: the daemon that shares and fetches data sets.

It alone talks to other organisations. Requests reach it, and its answers are read, through the records in the store
(:mod:`airflow_hops.core.sharing.records`), so it may run on any machine that has the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, FileEntry, HopsError
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.sharing.entries import DATASET_NAME, Dataset, DatasetEntry, DatasetRef, Preview
from airflow_hops.core.sharing.records import DATA, Catalogue, Daemon, Request, SharingRecords, Transfer
from airflow_hops.core.sharing.settings import SharingFolder, Trusted
from airflow_hops.core.sharing.statements import SEED, load_key, sign
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.checksums import sha256_of
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.ml.sharing.exchange import fetch_document, read_catalogue, seed_addresses
from airflow_hops.ml.sharing.transport import NAME, Session, Torrent, link_or_copy, resolve

log = logging.getLogger("airflow_hops.sharing")
_TICK_S = 0.5
_TELL_S = 5.0
_DAY_S = 86_400.0
_GIGABYTE = 10**9


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
    state: str = "waiting"
    error: str | None = None
    retryable: bool = True


class SharingDaemon:
    """Shares what is published, and fetches what is asked for.

    Args:
        store: The artifact store.
        folder: Settings, key and trusted keys.
    """

    def __init__(self, store: ArtifactStore, folder: SharingFolder) -> None:
        self.records = SharingRecords(store)
        self.folder, self.settings, self.key = folder, folder.settings(), load_key(folder.key)
        self.data = folder.data(self.settings)
        self.data.mkdir(parents=True, exist_ok=True)
        of = self.settings
        self.session = Session(
            of.listen,
            self.data,
            upload_mbit_s=of.upload_mbit_s,
            download_mbit_s=of.download_mbit_s,
            target_delay_ms=of.target_delay_ms,
        )
        self.trusted: dict[str, Trusted] = {}
        self.catalogues: dict[str, Catalogue] = {}
        self.fetches: dict[DatasetRef, _Fetch] = {}
        self.own: dict[str, Dataset] = {}
        self.names: dict[str, str] = {}
        self.exchanged_at = 0.0
        self.problem: str | None = None
        self._written: dict[str, dict[str, Any]] = {}
        self._told = 0.0
        self._published: list[str] | None = None
        self._exchange: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves until the process is ended."""
        log.info("%s listens at %s", self.settings.organisation, self.settings.listen)
        for catalogue in self.records.catalogues():
            self.catalogues[catalogue.organisation] = catalogue
        while True:
            began = time.monotonic()
            try:
                self.tick()
                self.problem = None
            except Exception as error:  # of the store's client, which has its own, or of a damaged record
                if str(error) != self.problem:
                    log.warning("%s", error, exc_info=not isinstance(error, HopsError | OSError))
                self.problem = str(error)
            tick_s = _TICK_S if self.records.store.is_local else 4 * _TICK_S
            await asyncio.sleep(max(0.05, tick_s - (time.monotonic() - began)))

    def tick(self) -> None:
        """Does what is due."""
        self.session.tick()
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._told = now
            self._reload()
            self._tell()
        self._begin_exchange()
        self._share_published()
        requests = {each.ref: each for each in self.records.requests()}
        for ref in [ref for ref in self.fetches if ref not in requests]:
            self._forget(ref)
        for ref, request in requests.items():
            self._follow(ref, request)
        self._write_transfers()

    def _reload(self) -> None:
        """Reads the trusted keys again, and allows only the hosts of their owners."""
        self.trusted = self.folder.trusted()
        self.catalogues = {name: each for name, each in self.catalogues.items() if name in self.trusted}
        for name, _ in self.records.all("catalogues"):
            if name not in self.trusted:
                self.records.remove("catalogues", f"{name}.json")
        self.names = {ip: name for name, each in self.trusted.items() for host in each.hosts for ip in resolve(host)}
        self.session.allow(self.names)

    def _tell(self) -> None:
        of = self.settings
        sign_of_life = Daemon(
            time.time(),
            of.organisation,
            socket.gethostname(),
            of.listen,
            of.announced,
            self.exchanged_at,
            of.seeding,
            self.problem,
        )
        self.records.write(sign_of_life, "daemon.json")

    def _begin_exchange(self) -> None:
        if self._exchange is not None:
            if not self._exchange.done():
                return
            task, self._exchange = self._exchange, None
            task.result()
        asked = (self.records.read("refresh.json") or {}).get("at", 0.0)
        if max(asked, time.time() - self.settings.exchange_s) > self.exchanged_at:
            self._exchange = _start(self._exchange_catalogues())

    async def _exchange_catalogues(self) -> None:
        began = time.time()
        self.trusted = self.folder.trusted()
        reads = [read_catalogue(self.trusted, name, self.catalogues.get(name)) for name in self.trusted]
        for catalogue in await asyncio.gather(*reads):
            before = self.catalogues.get(catalogue.organisation)
            for reason in catalogue.rejected if before is None or before.rejected != catalogue.rejected else ():
                log.warning("catalogue of %s: %s", catalogue.organisation, reason)
            self.catalogues[catalogue.organisation] = catalogue
            self.records.write(catalogue, "catalogues", f"{catalogue.organisation}.json")
        self.exchanged_at, self._told = began, 0.0

    def _share_published(self) -> None:
        """Gives published data sets to others, and stops when they are not published any more."""
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
        for info_hash, dataset in wanted.items():
            if info_hash not in self.own and info_hash not in self.session.torrents:
                torrent = self.records.document(dataset.entry.torrent)
                preview = self.records.preview(dataset)
                if torrent is None or preview is None or not (self.data / info_hash).is_dir():
                    raise HopsError(
                        f"data set {dataset.ref}: its files are not in {self.data}; publish it on this machine"
                    )
                self.session.add(info_hash, torrent, preview.file_entries(dataset.entry), is_whole=True)
                self._announce(info_hash)
                log.info("%s is shared", dataset.ref)
            self.own[info_hash] = dataset
        self.records.update_catalogue()
        self._published = names

    def _announce(self, info_hash: str) -> None:
        seed = {"info_hash": info_hash, "address": self.settings.announced}
        self.records.write(sign(self.key, SEED, seed), "seeds", f"{info_hash}.json")

    def _follow(self, ref: DatasetRef, request: Request) -> None:
        """Takes the next step of a fetch."""
        fetch = self.fetches.get(ref)
        if fetch is None:
            dataset = self._find(ref)
            if dataset is None:
                return
            fetch = self.fetches[ref] = _Fetch(dataset, request)
        info_hash = fetch.dataset.entry.info_hash
        if fetch.request != request:
            fetch.request = request
            is_gone = fetch.state in ("fetched", "seeding") and self.records.fetched(ref) is None
            if fetch.state == "failed" or is_gone or (fetch.state == "previewed" and request.wants == DATA):
                fetch.state, fetch.error, fetch.stored = "waiting", None, set()
                if info_hash not in self.own:  # added anew, since libtorrent keeps what a full disk left behind
                    self.session.remove(info_hash, with_files=False)
        if fetch.state == "failed" or (fetch.storing is not None and not fetch.storing.done()):
            return
        try:
            if fetch.storing is not None:
                task, fetch.storing = fetch.storing, None
                task.result()
            self._step(fetch)
        except OSError as error:
            self._fail(fetch, f"{error.strerror or error} ({error.filename or self.data})")
        except HopsError as error:
            self._fail(fetch, str(error), retryable=error.retryable)

    def _find(self, ref: DatasetRef) -> Dataset | None:
        for catalogue in self.catalogues.values():
            for dataset in catalogue.datasets:
                if dataset.organisation in self.trusted and ref.matches(dataset):
                    return dataset
        return self.records.fetched(ref) if ref.organisation in self.trusted else None

    def _step(self, fetch: _Fetch) -> None:
        dataset, ref = fetch.dataset, fetch.dataset.ref
        info_hash = dataset.entry.info_hash
        if fetch.preview is None:
            torrent = self.records.document(dataset.entry.torrent)
            fetch.preview = None if torrent is None else self.records.preview(dataset)
            fetch.torrent = torrent or b""
        if fetch.preview is None:
            fetch.storing = _start(self._fetch_documents(dataset))
        elif fetch.request.wants != DATA:
            fetch.state = "previewed"
        elif fetch.state in ("fetched", "seeding") or (fetch.state == "waiting" and self.records.fetched(ref)):
            self._seed(fetch, fetch.preview)
        elif info_hash not in self.session.torrents:
            self._begin(fetch, fetch.preview)
        else:
            self._download(fetch, self.session.torrents[info_hash])

    async def _fetch_documents(self, dataset: Dataset) -> None:
        seeds = seed_addresses(self.catalogues.values(), dataset.entry.info_hash, self.trusted)
        names = dict.fromkeys([dataset.organisation, *seeds.values()])
        urls = [self.trusted[name].catalogue for name in names if name in self.trusted]
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
        seeds = seed_addresses(self.catalogues.values(), info_hash, self.trusted)
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
                    f"no byte has come for {self.settings.stall_s:g} s at {status.progress:.0%}; tried "
                    f"{whose or 'none: no catalogue names a peer that has it'}{dropped}"
                )
        files = [entry for entry in made.complete_files() if entry.path not in fetch.stored]
        if files:
            fetch.storing = _start(self._store(fetch, files))
            fetch.state = "storing" if status.is_seeding else "downloading"
        elif status.is_seeding:
            text = json.dumps(fetch.dataset.to_dict())
            self.records.store.write_text(f"{self.records.place(fetch.dataset.ref)}/{DATASET_NAME}", text)
            fetch.state = "fetched"
            log.info("%s: fetched", fetch.dataset.ref)

    async def _store(self, fetch: _Fetch, files: list[FileEntry]) -> None:
        """Copies complete files into the store; those that a previous process has copied are left as they are."""
        place, source = self.records.place(fetch.dataset.ref), self.data / fetch.dataset.entry.info_hash / NAME
        there = self.records.store.files.sizes(place)
        for entry in files:
            if there.get(entry.path) != entry.size_bytes:
                await asyncio.to_thread(self._store_file, source / entry.path, f"{place}/{entry.path}", entry)
            fetch.stored.add(entry.path)

    def _store_file(self, path: Path, uri: str, entry: FileEntry) -> None:
        with path.open("rb") as stream:
            if sha256_of(stream) != entry.sha256:
                raise BadInput(f"{entry.path}: its SHA-256 is not that of the preview, so its publisher made a mistake")
        files = self.records.store.files
        if isinstance(files, LocalFiles):
            link_or_copy(path, files.path(uri))
        else:
            files.upload(path, uri)

    def _seed(self, fetch: _Fetch, preview: Preview) -> None:
        """Gives a fetched data set to others, or removes its files from the daemon's disk."""
        info_hash, of = fetch.dataset.entry.info_hash, self.settings
        unused_s = time.time() - fetch.request.at
        if of.seeding == "always" or (of.seeding == "in_use" and unused_s < of.in_use_days * _DAY_S):
            if info_hash not in self.session.torrents:
                if not (self.data / info_hash).is_dir():
                    fetch.state = "fetched"
                    return
                self.session.add(info_hash, fetch.torrent, preview.file_entries(fetch.dataset.entry), is_whole=True)
            if fetch.state != "seeding":
                self._announce(info_hash)
                self.records.update_catalogue()
            fetch.state = "seeding"
            return
        if (self.data / info_hash).exists() and info_hash not in self.own:
            self.session.remove(info_hash, with_files=True)
        if fetch.state == "seeding":
            self.records.remove("seeds", f"{info_hash}.json")
            self.records.update_catalogue()
        fetch.state, fetch.files = "fetched", ()

    def _forget(self, ref: DatasetRef) -> None:
        """Ends a fetch that nobody asks for any more."""
        fetch = self.fetches.pop(ref)
        info_hash = fetch.dataset.entry.info_hash
        if fetch.storing is not None:
            fetch.storing.cancel()
        if info_hash not in self.own:
            self.session.remove(info_hash, with_files=True)
            self.records.remove("seeds", f"{info_hash}.json")
            self.records.update_catalogue()
        self.records.remove("transfers", f"{info_hash}.json")
        self._written.pop(info_hash, None)

    def _fail(self, fetch: _Fetch, reason: str, *, retryable: bool = True) -> None:
        fetch.state, fetch.error, fetch.retryable = "failed", reason, retryable
        log.warning("%s: %s", fetch.dataset.ref, reason)

    def _dropped(self, made: Torrent) -> list[tuple[str, str]]:
        return [
            (f"{self.names.get(each.partition(':')[0], 'unknown')} at {each}", why)
            for each, why in made.dropped.items()
        ]

    def _write_transfers(self) -> None:
        """Writes the states that have changed."""
        fetches = {each.dataset.entry.info_hash: each for each in self.fetches.values()}
        own = [(dataset, None) for info_hash, dataset in self.own.items() if info_hash not in fetches]
        for dataset, fetch in [*own, *((each.dataset, each) for each in fetches.values())]:
            of, made = dataset.ref, self.session.torrents.get(dataset.entry.info_hash)
            transfer = Transfer(
                of.organisation,
                of.name,
                of.version,
                fetch.state if fetch else "seeding",
                size_bytes=dataset.entry.size_bytes,
                done_bytes=dataset.entry.size_bytes if fetch is None or fetch.state in ("fetched", "seeding") else 0,
                error=fetch.error if fetch else None,
                retryable=fetch.retryable if fetch else True,
                asked_at=fetch.request.at if fetch else 0.0,
            )
            if made is not None:
                status = made.handle.status()
                transfer = replace(
                    transfer,
                    done_bytes=max(transfer.done_bytes, int(status.progress * dataset.entry.size_bytes)),
                    down_bytes_s=status.download_payload_rate,
                    up_bytes_s=status.upload_payload_rate,
                    uploaded_bytes=status.all_time_upload,
                    peers=self.session.peers(dataset.entry.info_hash, self.names),
                    dropped=[f"{each}: {why}" for each, why in self._dropped(made)],
                )
            value = transfer.to_dict()
            if self._written.get(dataset.entry.info_hash) != value:
                self._written[dataset.entry.info_hash] = value
                self.records.write(transfer, "transfers", f"{dataset.entry.info_hash}.json")


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


def main(arguments: Mapping[str, Any]) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        arguments: ``store`` (address), ``storage_options`` and ``folder`` (path of the settings).

    Raises:
        BadInput: the settings are invalid, or another daemon uses the same folder.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    folder = SharingFolder(Path(arguments["folder"]))
    store = ArtifactStore(arguments["store"], storage_options=arguments["storage_options"])
    try:
        with locked(folder.path / ".lock", 0.0):
            daemon = SharingDaemon(store, folder)
            for name in (signal.SIGTERM, signal.SIGINT):
                signal.signal(name, lambda *_: sys.exit(0))
            asyncio.run(daemon.run())
    except TimeoutError:
        raise BadInput(f"{folder.path}: another daemon uses this folder") from None


if __name__ == "__main__":
    try:
        main(json.loads(Path(os.environ.pop("HOPS_SHARING_ARGUMENTS")).read_bytes()))
    except HopsError as failure:
        sys.exit(str(failure))
