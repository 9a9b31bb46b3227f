"""BitTorrent v2 through libtorrent: torrent files, and a session that speaks only uTP with known hosts.

LEDBAT (RFC 6817), the congestion control of uTP, yields to other traffic: it reduces its rate when its packets are
delayed by queues.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libtorrent as lt

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.sharing.core.entries import split_address
from airflow_hops.extensions.sharing.core.records import Peer

NAME = "data"
"""Folder of the files in a torrent."""
_RECONNECT_S = 5.0
_RESUME_S = 10.0
_FLUSH_S = 30.0
"""After it, a flush is begun again: libtorrent drops alerts if there are too many."""
_MEGABIT_BYTES = 125_000
_GAIN_BYTES = 20_000
"""Maximum change of a window per round trip: with libtorrent's default, TCP waits seconds for its share."""


def make_torrent(folder: Path, files: Iterable[tuple[str, int]]) -> tuple[bytes, str]:
    """Returns the torrent file and info hash of files below ``folder/data``, given as path and size."""
    listed = [lt.create_file_entry(f"{NAME}/{path}", size) for path, size in sorted(files)]
    torrent = lt.create_torrent(listed, 0, lt.create_torrent.v2_only)
    torrent.set_priv(True)
    lt.set_piece_hashes(torrent, str(folder))
    content = lt.bencode(torrent.generate())
    return content, str(lt.load_torrent_buffer(content).info_hashes.v2)


def share_files(folder: Path, files: Iterable[tuple[str, int]], data: Path) -> tuple[bytes, str]:
    """Links files into the daemon's folder, independent of the artifact; returns torrent file and info hash."""
    data.mkdir(parents=True, exist_ok=True)
    listed = list(files)
    staging = Path(tempfile.mkdtemp(prefix=".publishing-", dir=data))
    try:
        for path, _ in listed:
            link_or_copy(folder / path, staging / "data" / path)
        torrent, info_hash = make_torrent(staging, listed)
        if not (data / info_hash).exists():
            staging.rename(data / info_hash)
        return torrent, info_hash
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Links a file that nobody changes, or copies it to another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def read_torrent(content: bytes, info_hash: str, files: Collection[FileEntry]) -> Any:
    """Returns libtorrent's parameters for a torrent file.

    Raises:
        BadInput: it is not the torrent of the info hash, or names other files than ``files``.
    """
    try:
        params = lt.load_torrent_buffer(content)
    except RuntimeError as error:
        raise BadInput(f"not a torrent file: {error}") from None
    actual = str(params.info_hashes.v2)
    if actual != info_hash:
        raise BadInput(f"the torrent file has the info hash {actual}, expected {info_hash}")
    layout = params.ti.layout()
    named = {
        layout.file_path(number): layout.file_size(number)
        for number in range(layout.num_files())
        if not layout.file_flags(number) & lt.file_flags_t.flag_pad_file
    }
    expected = {f"{NAME}/{file.path}": file.size_bytes for file in files}
    if params.ti.name() != NAME or named != expected:
        differ = sorted(set(named.items()) ^ set(expected.items()))[:3]
        raise BadInput(f"the torrent file names other files or sizes than the preview, such as {differ}")
    # Removes everything that names hosts: only known peers may be contacted.
    params.trackers, params.url_seeds, params.dht_nodes, params.http_seeds = [], [], [], []
    params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    params.flags |= lt.torrent_flags.disable_pex | lt.torrent_flags.disable_dht | lt.torrent_flags.disable_lsd
    return params


@dataclass
class Torrent:
    """A torrent of the session.

    Attributes:
        files: Its files, in the order of libtorrent's numbers; None for padding.
        dropped: Addresses of peers that sent wrong data, also before the torrent was last added.
        error: libtorrent's last error, such as a full disk.
        seen: Time at which the last byte arrived, in seconds of the monotonic clock.
    """

    handle: Any
    folder: Path
    files: tuple[FileEntry | None, ...]
    dropped: dict[str, str]
    error: str | None = None
    seen: float = field(default_factory=time.monotonic)
    connected: float = 0.0
    saved: float = field(default_factory=time.monotonic)
    _progress: tuple[float, int] = (0.0, 0)
    _flushing: frozenset[str] | None = None
    _flush_began: float = 0.0
    _on_disk: frozenset[str] = frozenset()

    def idle_s(self, status: Any) -> float:
        """Returns the seconds since the last byte arrived, or the last piece was checked."""
        progress = (status.progress, status.total_payload_download)
        if progress != self._progress:
            self._progress, self.seen = progress, time.monotonic()
        return time.monotonic() - self.seen

    def complete_files(self) -> list[FileEntry]:
        """Returns the files whose pieces are all verified and on disk; called at each step of a transfer.

        libtorrent also reports pieces that are only in its memory. A complete file therefore counts once a flush that
        began later has ended (:meth:`flushed`).
        """
        if self._flushing is None or time.monotonic() - self._flush_began > _FLUSH_S:
            self._flush_began = time.monotonic()
            progress = self.handle.file_progress(lt.file_progress_flags_t.piece_granularity)
            both = zip(self.files, progress, strict=True)
            self._flushing = frozenset(file.path for file, done in both if file is not None and done >= file.size_bytes)
            self.handle.flush_cache()
        return [file for file in self.files if file is not None and file.path in self._on_disk]

    def flushed(self) -> None:
        """Records the end of a flush."""
        self._on_disk, self._flushing = self._flushing or self._on_disk, None

    def check_again(self) -> None:
        """Verifies all pieces on disk; those that are damaged are fetched again."""
        self._on_disk, self._flushing = frozenset(), None
        self.handle.force_recheck()


class TorrentSession:
    """A libtorrent session.

    Args:
        listen: Address and port on which it listens for peers.
        data: Folder with a folder for each torrent.
        upload_mbit_s: Limit of the rate to peers; 0 for none.
        download_mbit_s: Limit of the rate from peers; 0 for none.
        target_delay_ms: LEDBAT's target delay.
    """

    def __init__(
        self,
        listen: str,
        data: Path,
        *,
        upload_mbit_s: float = 0,
        download_mbit_s: float = 0,
        target_delay_ms: int = 35,
    ) -> None:
        self.data = data
        self.torrents: dict[str, Torrent] = {}
        self._dropped: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._allowed: frozenset[str] | None = None
        status = lt.alert_category
        self._session = lt.session(
            {
                "listen_interfaces": listen,
                "listen_system_port_fallback": False,
                "max_retry_port_bind": 0,
                "user_agent": "airflow-hops",
                "enable_dht": False,
                "enable_lsd": False,
                "enable_upnp": False,
                "enable_natpmp": False,
                "enable_incoming_tcp": False,
                "enable_outgoing_tcp": False,
                "allow_multiple_connections_per_ip": True,
                "utp_target_delay": target_delay_ms,
                "utp_gain_factor": _GAIN_BYTES,
                "upload_rate_limit": int(upload_mbit_s * _MEGABIT_BYTES),
                "download_rate_limit": int(download_mbit_s * _MEGABIT_BYTES),
                "send_buffer_watermark": 3 << 20,
                "send_buffer_watermark_factor": 150,
                "max_metadata_size": 32 << 20,
                "min_reconnect_time": 1,
                "max_failcount": 255,
                "peer_timeout": 20,
                "alert_mask": status.status | status.error | status.peer | status.storage,
            }
        )
        # libtorrent 2.1: limits no rate to hosts of private networks by default.
        every = lt.ip_filter()
        every.add_rule("0.0.0.0", "255.255.255.255", 1)
        self._session.set_peer_class_filter(every)
        self._problem: str | None = None
        self._pump(3.0)
        if self._problem:
            raise HopsError(f"setting listen: {listen}: {self._problem}")

    def allow(self, addresses: Collection[str]) -> None:
        """Refuses connections from and to other IPv4 addresses than these."""
        if frozenset(addresses) == self._allowed:
            return
        self._allowed = frozenset(addresses)
        rules = lt.ip_filter()
        rules.add_rule("0.0.0.0", "255.255.255.255", 1)
        rules.add_rule("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1)
        for address in addresses:
            rules.add_rule(address, address, 0)
        self._session.set_ip_filter(rules)

    def add(self, info_hash: str, torrent: bytes, files: Collection[FileEntry], *, is_whole: bool) -> Torrent:
        """Adds a torrent, whose files are, or will be, below ``<data>/<info hash>/data``.

        Args:
            info_hash: Its info hash.
            torrent: Its torrent file.
            files: The files that it must have.
            is_whole: Whether the files already exist; each piece is checked before it is first sent.
        """
        params = read_torrent(torrent, info_hash, files)
        folder = self.data / info_hash
        resume = folder.with_suffix(".resume")
        if not is_whole and resume.exists():
            try:
                saved = lt.read_resume_data(resume.read_bytes())
                # Not its unfinished pieces, which may have been in memory only.
                params.have_pieces, params.verified_pieces = saved.have_pieces, saved.verified_pieces
            except RuntimeError:
                resume.unlink()  # libtorrent then reads the existing files
        folder.mkdir(parents=True, exist_ok=True)
        params.save_path = str(folder)
        if is_whole:
            params.flags |= lt.torrent_flags.seed_mode
        by_path = {f"{NAME}/{file.path}": file for file in files}
        layout = params.ti.layout()
        numbered = tuple(by_path.get(layout.file_path(number)) for number in range(layout.num_files()))
        made = Torrent(self._session.add_torrent(params), folder, numbered, self._dropped[info_hash])
        self.torrents[info_hash] = made
        return made

    def remove(self, info_hash: str, *, with_files: bool) -> None:
        """Removes a torrent, and its files if asked to."""
        made = self.torrents.pop(info_hash, None)
        if made is not None:
            self._session.remove_torrent(made.handle)
        folder = self.data / info_hash
        folder.with_suffix(".resume").unlink(missing_ok=True)
        if with_files:
            shutil.rmtree(folder, ignore_errors=True)

    def connect(self, info_hash: str, addresses: Iterable[str]) -> None:
        """Connects to those of the addresses (``host:port``) that are not connected yet."""
        made, now = self.torrents[info_hash], time.monotonic()
        if now - made.connected < _RECONNECT_S:
            return
        made.connected = now
        there = {":".join(map(str, peer.ip)) for peer in made.handle.get_peer_info()}
        for address in addresses:
            host, port = split_address(address)
            for ip in resolve(host):
                if f"{ip}:{port}" not in there and f"{ip}:{port}" not in made.dropped:
                    made.handle.connect_peer((ip, port))

    def peers(self, info_hash: str, names: Mapping[str, str]) -> list[Peer]:
        """Returns the connected peers; ``names`` are those of organisations by IP address."""
        made = self.torrents[info_hash]
        return [
            Peer(
                names.get(peer.ip[0], "unknown"),
                f"{peer.ip[0]}:{peer.ip[1]}",
                peer.payload_down_speed,
                peer.payload_up_speed,
                peer.progress,
            )
            for peer in made.handle.get_peer_info()
            if not peer.flags & (peer.connecting | peer.handshake)
        ]

    def tick(self) -> None:
        """Reads libtorrent's alerts, and saves how far downloads are."""
        self._pump(0.0)
        now = time.monotonic()
        for made in self.torrents.values():
            if now - made.saved > _RESUME_S and not made.handle.status().is_seeding:
                made.saved = now
                made.handle.save_resume_data(lt.save_resume_flags_t.only_if_modified)

    def _pump(self, wait_s: float) -> None:
        if wait_s:
            self._session.wait_for_alert(int(wait_s * 1000))
        by_handle = {made.handle: made for made in self.torrents.values()}
        for alert in self._session.pop_alerts():
            made = by_handle.get(getattr(alert, "handle", None))
            if isinstance(alert, lt.listen_failed_alert):
                self._problem = alert.message()
            elif made is None:
                continue
            elif isinstance(alert, lt.peer_ban_alert):
                made.dropped[":".join(map(str, alert.ip))] = "it sent wrong data"
            elif isinstance(alert, lt.file_error_alert | lt.torrent_error_alert):
                made.error = alert.message()
            elif isinstance(alert, lt.cache_flushed_alert):
                made.flushed()
            elif isinstance(alert, lt.save_resume_data_alert):
                path = made.folder.with_suffix(".resume")
                path.write_bytes(lt.write_resume_data_buf(alert.params))


def resolve(host: str) -> list[str]:
    """Returns the IPv4 addresses of a host; none if its name is not known at present."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)})
    except (OSError, UnicodeError):  # an invalid host name raises UnicodeError
        return []
