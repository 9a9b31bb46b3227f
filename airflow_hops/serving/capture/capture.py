"""Captures requests and their answers; this is the part that runs in the server.

A request is captured once its record is in the spool (:mod:`~airflow_hops.serving.capture.spool`): the bytes are then
in the kernel's hands and survive the process. Only this is acknowledged. A separate process
(:mod:`~airflow_hops.serving.capture.writer`) turns records into files.
"""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import subprocess
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_hops.core.processes.files import (
    is_own_folder,
    lock_holder,
    lock_if_there,
    make_private,
    read_own,
    write_atomically,
)
from airflow_hops.core.processes.programs import start_module
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, CapturedLabel, pack, pack_label, request_ids
from airflow_hops.serving.capture.spool import (
    NO_COUNTS,
    OPTIONS_FILE,
    SERVER_LOCK,
    WRITER_LOCK,
    Spool,
    SpoolPosition,
    WriterState,
    used_bytes,
)

# The states of a captured request: offered, in the spool (acknowledged, survives a kill of this process), in a file.
# A request that does not fit is dropped and counted, never waited for.
# A thread looks after the writer: it restarts an ended one, with pauses from 1 to 30 s. A restarted writer continues
# from the state that its predecessor saved. Flushes are numbered, and repeated every 2 s until the state answers. The
# first number follows the state's, once no writer of a server that ended can answer that server's flushes any more.
# Start: take over the spool of a server that ended, with what it left, or make one.
# Shutdown: stop appending, release server.lock, close the writer's input; the writer then empties the spool and removes
# its folder, which is the sign of success. If it cannot, the folder stays for the next server.

log = logging.getLogger(__name__)

_POLL_S = 0.02
_LOOK_EVERY_S = 0.5
_RESTART_PAUSE_S = 1.0
_LONGEST_RESTART_PAUSE_S = 30.0
_ASK_AGAIN_S = 2.0
_OTHERS_EVERY_S = 600.0
_draws = random.SystemRandom()
_NO_SERVER = -1
"""Process id of the server of a spool that no server holds; 0 is that of a process in another PID namespace."""
_LAG_SAMPLES = 3600

_held: set[Path] = set()
"""Spools of this process, whose own locks do not exclude it."""


class Capture:
    """Captures requests and labels; the server has one instance.

    Attributes:
        enabled: Whether any request is captured.

    Raises:
        OSError: The base path or the spool's folder cannot be created or written.
        ImportError, ValueError: fsspec cannot open the base path.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self.enabled = options.enabled
        self.new_request_id = request_ids()
        self._lock = threading.Lock()
        self._counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._flushes = 0
        self._restarts = 0
        self._restart_s, self._pause_s = 0.0, _RESTART_PAUSE_S / 2
        self._closing = threading.Event()
        self._ends: deque[tuple[float, SpoolPosition]] = deque(maxlen=_LAG_SAMPLES)
        self._spool: Spool | None = None
        self._writer: subprocess.Popen[bytes] | None = None
        if options.base_path:
            if options.is_local:
                base = Path(options.base_path)
                make_private(base)
                if not os.access(base, os.W_OK):
                    raise PermissionError(f"{base} is not writable")
            else:
                open_url(options.base_path)
            self._folder, self._server_lock = folder, _ = _take_spool(options)
            # Writes the options first: another server's writer finds the folder by them if this process is killed here.
            write_atomically(self._folder / OPTIONS_FILE, json.dumps(asdict(options)))
            WriterState.create(self._folder)
            self._before = WriterState.load(folder).models
            sizes = options.spool_bytes, options.segment_bytes
            self._spool = Spool(folder, *sizes, lambda: WriterState.load(folder).position)
            self._start_writer()
            self._others = _start_other_writers(options)
            self._others_s = time.monotonic()
            self._thread = threading.Thread(target=self._keep, name="capture", daemon=True)
            self._thread.start()

    def offer(self, call: CapturedCall) -> bool:
        """Captures one answered request, or drops it if the spool is full; never waits for the disk.

        Returns whether the request is captured, and so survives if this process is killed.
        """
        # Drawn at random: in a fixed order, clients that take turns would each be captured always or never.
        if not self.enabled or _draws.random() * 100 >= self.options.sampling_percent:
            return False
        assert self._spool is not None
        captured = self._spool.append([pack(call, self.options.mode)]) == 1
        with self._lock:
            self._counts[call.model]["captured_rows" if captured else "dropped_rows"] += call.rows
        return captured

    def add_labels(self, labels: Sequence[CapturedLabel]) -> int:
        """Captures labels in order, as far as there is room; returns how many are captured."""
        assert self._spool is not None
        taken = self._spool.append([pack_label(label) for label in labels])
        with self._lock:
            for index, label in enumerate(labels):
                self._counts[label.model]["captured_labels" if index < taken else "dropped_labels"] += 1
        return taken

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Writes all records captured so far, also by servers that died; returns whether that succeeded in time."""
        if self._spool is None:
            return True
        deadline_s = time.monotonic() + timeout_s
        ask_at_s = 0.0
        number = None
        while time.monotonic() < deadline_s and not self._closing.is_set():
            number = number or self._new_flush()
            if number is None:
                time.sleep(_POLL_S)
                continue
            if time.monotonic() >= ask_at_s:
                # A restarted writer does not know of requests to the previous one.
                self._ask(number)
                ask_at_s = time.monotonic() + _ASK_AGAIN_S
            state = WriterState.load(self._folder)
            if state.flushed >= number:
                return self._write_others(deadline_s)
            if state.failed_flush >= number:
                return False
            time.sleep(_POLL_S)
        return False

    def close(self, timeout_s: float = 60.0) -> bool:
        """Stops capturing and waits until all records are in files; returns whether that succeeded.

        Records that could not be written stay in the spool, and the next server writes them.
        """
        if self._spool is None:
            return True
        self._closing.set()
        self._thread.join()
        self._spool.close()
        os.close(self._server_lock)
        _held.discard(self._folder)
        writer = self._writer
        if writer is None:
            return False
        assert writer.stdin is not None
        writer.stdin.close()
        deadline_s = time.monotonic() + timeout_s
        closed_s = time.monotonic()
        while writer.poll() is None:
            stuck = time.monotonic() - closed_s > _ASK_AGAIN_S and WriterState.load(self._folder).error
            if stuck or time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return not self._folder.exists()

    def status(self) -> dict[str, Any]:
        """Returns the options in effect, the counts by model, and how far the files are behind."""
        options = self.options
        report: dict[str, Any] = {
            "enabled": options.enabled,
            "base_path": options.base_path or None,
            "mode": options.mode,
            "sampling_percent": options.sampling_percent,
            "models": {},
        }
        if self._spool is None:
            return report
        state = WriterState.load(self._folder)
        with self._lock:
            counts = {model: taken.copy() for model, taken in self._counts.items()}
        for model in sorted(counts.keys() | state.models.keys()):
            taken, written, earlier = (each.get(model, NO_COUNTS) for each in (counts, state.models, self._before))
            report["models"][model] = {
                name: taken.get(name, 0) + written.get(name, 0) - earlier.get(name, 0) for name in NO_COUNTS
            }
        return report | {
            "error": str(self._spool.error or "") or state.error or None,
            "spool_path": str(self._folder),
            "spool_bytes": used_bytes(self._folder),
            "spool_bytes_limit": options.spool_bytes,
            "lag_seconds": self._lag_s(state.position),
            "writer_restarts": self._restarts,
        }

    def _lag_s(self, written: SpoolPosition) -> float:
        """Returns the age of the oldest record that is not in a file, to half a second; 0 if all are."""
        assert self._spool is not None
        if self._spool.end <= written:
            return 0.0
        with self._lock:
            while self._ends and self._ends[0][1] <= written:
                self._ends.popleft()
            return round(time.monotonic() - self._ends[0][0], 3) if self._ends else 0.0

    def _new_flush(self) -> int | None:
        """Returns the number of a new flush; None while the writer of a server that ended may still answer others."""
        with self._lock:
            if not self._flushes:
                writer = self._writer
                if writer is None or lock_holder(self._folder / WRITER_LOCK) != writer.pid:
                    return None
                state = WriterState.load(self._folder)
                self._flushes = max(state.flushed, state.failed_flush)
            self._flushes += 1
            return self._flushes

    def _ask(self, number: int) -> None:
        writer = self._writer
        if writer is None or writer.stdin is None:
            return
        try:
            os.write(writer.stdin.fileno(), b"%d\n" % number)
        except (OSError, ValueError):
            return

    def _keep(self) -> None:
        """Restarts the writer when needed, and records when the spool reached each position."""
        assert self._spool is not None
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                if time.monotonic() - self._others_s > _OTHERS_EVERY_S:
                    self._write_others(0.0)
                self._keep_writer()
            except Exception:
                # Memory, processes or descriptors may have run out for a moment.
                log.exception("capture: the check of the writer failed; it is repeated")
                self._closing.wait(_RESTART_PAUSE_S)
            end = self._spool.end
            with self._lock:
                if not self._ends or self._ends[-1][1] != end:
                    self._ends.append((time.monotonic(), end))

    def _keep_writer(self) -> None:
        """Starts another writer if it has ended: at once if it ran for long, otherwise with growing pauses."""
        now_s = time.monotonic()
        if self._writer is None or self._writer.poll() is None or now_s < self._restart_s:
            return
        log.error("capture: the writer has ended with status %s; starting another", self._writer.returncode)
        lived = now_s - self._restart_s > _LONGEST_RESTART_PAUSE_S
        self._pause_s = _RESTART_PAUSE_S if lived else min(2 * self._pause_s, _LONGEST_RESTART_PAUSE_S)
        self._restart_s = now_s + self._pause_s
        self._start_writer()
        self._restarts += 1

    def _write_others(self, deadline_s: float) -> bool:
        """Has the spools of servers that died written; returns whether no writer of one, here or elsewhere, is left."""
        self._others_s = time.monotonic()
        self._others += _start_other_writers(self.options)
        while True:
            self._others = [writer for writer in self._others if writer.poll() is None]
            if not self._others and not any(map(_is_left_to_writer, _spools(self.options))):
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)

    def _start_writer(self) -> None:
        self._writer = _start_writer(os.getpid(), self._folder, subprocess.PIPE)


def _start_writer(server: int, folder: Path, commands: int) -> subprocess.Popen[bytes]:
    return start_module(
        "airflow_hops.serving.capture.writer",
        str(server),
        folder,
        stdin=commands,
        stdout=subprocess.DEVNULL,
        process_group=0,  # signals to the server's process group do not reach the writer
    )


def _start_other_writers(options: CaptureOptions) -> list[subprocess.Popen[bytes]]:
    """Has the spools written whose server and writer are both gone, and which no server has taken over."""
    return [
        _start_writer(_NO_SERVER, folder, subprocess.DEVNULL)
        for folder in _spools(options)
        if all(lock_holder(folder / name) is None for name in (SERVER_LOCK, WRITER_LOCK))
    ]


def _is_left_to_writer(folder: Path) -> bool:
    return lock_holder(folder / SERVER_LOCK) is None and lock_holder(folder / WRITER_LOCK) is not None


def _spools(options: CaptureOptions) -> list[Path]:
    """Returns the folders of spools that this process does not hold, and that only this user can have made."""
    folders = sorted(path.parent for path in options.spool_root.glob(f"*/{OPTIONS_FILE}"))
    # A spool's options say where its records go.
    return [folder for folder in folders if folder not in _held and is_own_folder(folder)]


def _take_spool(options: CaptureOptions) -> tuple[Path, int]:
    """Returns the folder of a spool for this server, and its lock: that of a server that ended, or a new one."""
    for folder in _spools(options):
        if (lock := _take_over(folder, options)) is not None:
            log.info("capture: continuing %s, which another server left", folder)
            break
    else:
        folder = options.spool_root / secrets.token_hex(6)
        folder.mkdir(parents=True, mode=0o700)
        lock = lock_if_there(folder / SERVER_LOCK)
        assert lock is not None
    _held.add(folder)
    return folder, lock


def _take_over(folder: Path, options: CaptureOptions) -> int | None:
    """Returns the lock of a spool whose server has ended and wrote to the same place; None for another one."""
    if (lock := lock_if_there(folder / SERVER_LOCK)) is None:
        return None
    try:
        former = json.loads(read_own(folder / OPTIONS_FILE))  # it is gone if a writer removed the spool meanwhile
        if former["base_path"] == options.base_path:
            return lock
    except (OSError, ValueError, LookupError, TypeError):
        pass
    os.close(lock)
    return None
