"""``airflow hops datasets serve``: the daemon that shares and fetches data sets.

Only the daemon connects to other organisations. Requests reach it, and its answers are read, through the records in the
store (:mod:`airflow_hops.extensions.sharing.core.records`), so it may run on any machine that has the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.files import locked
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import BEAT_S, LeaseLost
from airflow_hops.extensions.sharing.core.records import Daemon, SharingRecords
from airflow_hops.extensions.sharing.core.settings import SharingFolder
from airflow_hops.extensions.sharing.core.statements import load_key
from airflow_hops.extensions.sharing.ml.exchange import read_catalogue
from airflow_hops.extensions.sharing.ml.transfers import Others, Transfers
from airflow_hops.extensions.sharing.ml.transport import TorrentSession, resolve

# One loop on one thread (asyncio): every half second (two seconds with a remote store) it handles BitTorrent events,
# starts an exchange of catalogues if it is due, and takes a step in each transfer. Slow work (HTTP, copies to the
# store) is in tasks; at most one exchange runs, and one copy per data set. The rest of the system writes requests as
# records, and reads the daemon's records: nothing calls it, so a killed daemon loses no request.
# The lock of the folder excludes a second daemon with the same key and files, the lease one of the same store.

log = logging.getLogger("airflow_hops.sharing")
_TICK_S = 0.5


class SharingDaemon:
    """Shares published data sets, and fetches requested ones.

    Args:
        store: The artifact store.
        folder: Settings, key and trusted keys.
        tick_s: Seconds between two steps; by default 0.5, and 2 with a remote store.
    """

    def __init__(self, store: ArtifactStore, folder: SharingFolder, tick_s: float | None = None) -> None:
        self.records = SharingRecords(store)
        self.tick_s = tick_s or (_TICK_S if store.is_local else 4 * _TICK_S)
        self.folder, self.settings = folder, folder.settings()
        settings, key, data = self.settings, load_key(folder.key), folder.data(self.settings)
        data.mkdir(parents=True, exist_ok=True)
        rates = {"upload_mbit_s": settings.upload_mbit_s, "download_mbit_s": settings.download_mbit_s}
        self.session = TorrentSession(settings.listen, data, **rates, target_delay_ms=settings.target_delay_ms)
        self.others = Others()
        self.transfers = Transfers(self.records, self.session, settings, key, self.others)
        self.lease = self.records.lease(f"{settings.organisation} on {socket.gethostname()} ({folder.path})")
        self._refreshed, self._exchanged_at = 0.0, -math.inf
        self.problem: str | None = None
        self._told = -math.inf
        self._exchange: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves until the process is ended, or another daemon has taken the lease."""
        log.info("%s listens at %s", self.settings.organisation, self.settings.listen)
        for catalogue in self.records.catalogues():
            self.others.catalogues[catalogue.organisation] = catalogue
        while True:
            began = time.monotonic()
            try:
                self.tick()
                self.problem = None
            except LeaseLost:
                raise
            except Exception as error:  # the store's client has its own errors; damaged records cause others
                if str(error) != self.problem:
                    log.warning("%s", error, exc_info=not isinstance(error, HopsError | OSError))
                self.problem = str(error)
            await asyncio.sleep(max(0.05, self.tick_s - (time.monotonic() - began)))

    def tick(self) -> None:
        """Performs the actions that are due."""
        self.session.tick()
        now = time.monotonic()
        if now - self._told >= BEAT_S:
            self._told = now
            self._reload()
            self._tell()
        self._begin_exchange()
        self.transfers.tick()

    def _reload(self) -> None:
        """Reads the trusted keys again, and allows only the hosts of their owners."""
        others, trusted = self.others, self.folder.trusted()
        others.trusted = trusted
        others.catalogues = {name: each for name, each in others.catalogues.items() if name in trusted}
        for name, _ in self.records.all("catalogues"):
            if name not in trusted:
                self.records.remove("catalogues", f"{name}.json")
        others.names = {ip: name for name, each in trusted.items() for host in each.hosts for ip in resolve(host)}
        self.session.allow(others.names)

    def _tell(self) -> None:
        settings, host = self.settings, socket.gethostname()
        addresses = settings.organisation, host, settings.listen, settings.announced
        self.lease.note = Daemon(time.time(), *addresses, self._refreshed, settings.seeding, self.problem).to_dict()
        self.lease.beat()

    def _begin_exchange(self) -> None:
        if self._exchange is not None:
            if not self._exchange.done():
                return
            task, self._exchange = self._exchange, None
            task.result()
        asked = self.records.refresh_asked()
        if asked != self._refreshed or time.monotonic() - self._exchanged_at > self.settings.exchange_s:
            self._exchange = asyncio.create_task(self._exchange_catalogues(asked))

    async def _exchange_catalogues(self, asked: float) -> None:
        began, others = time.monotonic(), self.others
        others.trusted = self.folder.trusted()
        reads = [read_catalogue(each, others.catalogues.get(name)) for name, each in others.trusted.items()]
        for catalogue in await asyncio.gather(*reads):
            known = others.catalogues.get(catalogue.organisation)
            for reason in catalogue.rejected if known is None or known.rejected != catalogue.rejected else ():
                log.warning("catalogue of %s: %s", catalogue.organisation, reason)
            others.catalogues[catalogue.organisation] = catalogue
            self.records.write(catalogue, "catalogues", f"{catalogue.organisation}.json")
        self._refreshed, self._exchanged_at, self._told = asked, began, -math.inf


def main(arguments: Mapping[str, Any]) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        arguments: ``store`` (address), ``storage_options``, ``folder`` (path of the settings), and ``tick_s`` if
            steps are to be taken more or less often.

    Raises:
        BadInput: the settings are invalid.
        LockHeld: another daemon uses the same folder, or serves the store.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    folder = SharingFolder(Path(arguments["folder"]))
    store = ArtifactStore(arguments["store"], storage_options=arguments["storage_options"])
    with locked(folder.path / ".lock", 0.0):
        daemon = SharingDaemon(store, folder, arguments.get("tick_s"))
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: sys.exit(0))
        daemon.lease.take()
        try:
            asyncio.run(daemon.run())
        finally:
            daemon.lease.release()


if __name__ == "__main__":
    try:
        main(json.loads(Path(os.environ.pop("HOPS_SHARING_ARGUMENTS")).read_bytes()))
    except HopsError as failure:
        sys.exit(str(failure))
