"""The process that turns a server's spool into files: ``python -m airflow_hops.serving.capture.writer PID FOLDER``.

The server starts it with the lowest priority and without TensorFlow, so that neither decoding nor a slow store slows
down requests. If the server is killed, the writer runs on until the spool is empty.

Records are written in batches. The end of a batch is saved before its first file is written, and file names contain
spool, batch and part. If a writer is killed within a batch, the next one makes the same batch again and skips the files
that exist. So each row is in exactly one file, even if a writer dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path

from airflow_hops.core.processes.files import is_own_folder, lock_for_process, lock_holder, lock_if_there, read_own
from airflow_hops.serving import log_lines
from airflow_hops.serving.capture.batch import Batch, BatchFile, WaitingRecords, make_batch
from airflow_hops.serving.capture.files import CapturedFiles, open_files
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.spool import (
    OPTIONS_FILE,
    SERVER_LOCK,
    STATE_FILE,
    WRITER_LOCK,
    SpoolPosition,
    WriterState,
    read_fields,
    read_spool,
    segment_path,
    segments,
)

# Protocol of the writer process (its files are described in airflow_hops.serving.capture.spool).
# - Start: the server starts it with its process id and the spool's folder; it takes writer.lock, or exits if another
#   writer has it.
# - Standard input: the server writes the number of a flush per line. The answer is `flushed` or `failed_flush` in the
#   state, so a server whose writer was replaced asks again. End of input only means that the server closes.
# - Whether the server has ended is read from server.lock, not from input or signals, which are ignored until then. If
#   another server has taken over the spool, the writer ends, since that server starts its own.
# - A server has a writer of its own finish each spool beside its own that no process holds: when it starts, at a flush,
#   and every ten minutes. That writer's server has the number -1.
# - An error of the store or disk keeps the batch planned, and is tried again after 1, 2, 4, … seconds. After the
#   server's end, it gives up after ten minutes, and the next server takes over the spool.
# - An empty spool of an ended server is removed: segments first, options.json and writer.lock last, because servers
#   find a spool by its options. Killed in between, the rest is an empty spool.

log = logging.getLogger("airflow_hops.serving.capture.writer")  # not __main__

_LONGEST_PAUSE_S = 30.0
_GIVE_UP_S = 600.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SpoolWriter:
    """Writes one spool.

    Args:
        folder: The spool's folder.
        lock: Descriptor of its ``writer.lock``.
        server: Process id of the server for which it writes, which may have ended since; by default the present one.
    """

    def __init__(self, folder: Path, lock: int, server: int | None = None) -> None:
        self.folder = folder
        self.options = read_fields(CaptureOptions, json.loads(read_own(folder / OPTIONS_FILE)))
        if not self.options.base_path:
            raise ValueError(f"{folder / OPTIONS_FILE}: 'base_path' is empty; expected a folder or URL")
        self.state = WriterState.load(folder)
        self._lock = lock
        self._files: CapturedFiles | None = None
        self._scanned = self.state.position
        self._waiting = WaitingRecords()
        self._since_s = 0.0
        self._pause_s = 0.0
        self._next_try_s = 0.0
        self._server = lock_holder(folder / SERVER_LOCK) if server is None else server
        self.ended = self.replaced = False

    @property
    def empty(self) -> bool:
        """Whether all records that were read are in files."""
        return self.state.planned is None and self._scanned == self.state.position

    def look_for_server(self) -> bool:
        """Returns whether the server has ended; ``replaced`` holds if another one has taken over the spool."""
        holder = lock_holder(self.folder / SERVER_LOCK)
        self.ended = self.ended or holder is None
        self.replaced = holder is not None and (self.ended or holder != self._server)
        return self.ended

    def step(self, everything: bool, now: bool = False) -> None:
        """Reads new records and writes the batches that are due.

        Args:
            everything: Whether to write all records, regardless of their age.
            now: Whether to try at once after a failure, without the usual pause.
        """
        if now:
            self._next_try_s = 0.0
        while True:
            due = self._scan()
            if not (due or (everything and not self.empty)) or time.monotonic() < self._next_try_s:
                return
            try:
                self._write()
            except OSError as error:
                self._failed(str(error))
                return
            except Exception as error:
                self._failed(f"{type(error).__name__}: {error}")
                return
            self._pause_s = 0.0
            if not due:
                # Records that arrived in the meantime wait for the next step.
                return

    def answer_flush(self, number: int, done: bool) -> None:
        """Reports to the server that a flush is done or has failed."""
        if done:
            self.state.flushed = number
        else:
            self.state.failed_flush = number
        with contextlib.suppress(OSError):
            self.state.save(self.folder)

    def finish(self) -> bool:
        """Removes the spool, which is empty; returns False if a server has taken it over in the meantime."""
        if (lock := lock_for_process(self.folder / SERVER_LOCK)) is None:
            return False
        self._take_in()  # of a server that has taken it over and ended
        if not self.empty:
            os.close(lock)
            return False
        # Removes segments first: without the state, another writer would write their records again.
        for number in segments(self.folder):
            segment_path(self.folder, number).unlink(missing_ok=True)
        staged_options = [path.name for path in self.folder.glob(f".{OPTIONS_FILE}.*")]
        # Removes the options last: a server finds the folder by them if this process is killed here.
        for name in (STATE_FILE, *staged_options, OPTIONS_FILE, SERVER_LOCK, WRITER_LOCK):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
            self.folder.parent.rmdir()
        os.close(lock)
        self.leave()
        return True

    def leave(self) -> None:
        """Releases the spool's lock, for another writer."""
        os.close(self._lock)

    def _scan(self) -> bool:
        """Reads new records; returns whether a batch is full or its first record is old enough."""
        planned, waiting = self.state.planned, self._waiting
        if planned is not None:
            # Another writer was killed while it wrote this batch: writes it again.
            self._take_in(planned)
            self._scanned = planned
            return True
        self._take_in()
        return self._full() or (waiting.count > 0 and time.monotonic() - self._since_s >= self.options.roll_seconds)

    def _take_in(self, until: SpoolPosition | None = None) -> None:
        """Reads the records of a planned batch, or as many new ones as a batch holds."""
        if self._full() if until is None else self._scanned >= until:
            return
        waiting = self._waiting

        def skip() -> None:
            log.error("capture: a record of %s is damaged, and skipped with the rest of its segment", self.folder)

        for record, after in read_spool(self.folder, self._scanned, until, ended=self.ended, on_damage=skip):
            if not waiting.count:
                self._since_s = time.monotonic()
            waiting.add(record)
            self._scanned = after
            if until is None and self._full():
                break

    def _full(self) -> bool:
        waiting, options = self._waiting, self.options
        return waiting.most_rows >= options.roll_rows or waiting.size_bytes >= options.batch_bytes

    def _write(self) -> None:
        state, folder = self.state, self.folder
        again = state.planned is not None
        if state.planned is None:
            state.planned = self._scanned
            try:
                state.save(folder)
            except BaseException:
                state.planned = None
                raise
        batch = make_batch(self._waiting, self.options)
        for part in self._publish(batch, again):
            counted = {"files": 1, "written_rows": part.rows, "written_labels": part.labels}
            state.models[part.model].update(counted)
        for model, rows in batch.failed_rows.items():
            state.models[model]["failed_rows"] += rows
        # The records are in files, even if saving the state fails; the next batch must not contain them.
        self._waiting = WaitingRecords()
        state.position, state.planned, state.error = state.planned, None, ""
        state.batch += 1
        state.save(folder)
        for number in segments(folder):
            if number < state.position.segment:
                segment_path(folder, number).unlink(missing_ok=True)

    def _publish(self, batch: Batch, again: bool) -> list[BatchFile]:
        """Writes a batch's parts, except those that an earlier attempt has written; returns those that are written."""
        files, mark = self._open_files(), f"{self.folder.name}-{self.state.batch}"
        there: dict[str, set[str]] = {}
        written = []
        for number, part in enumerate(batch.parts):
            tail = f"{part.tail}-{mark}-{number}.parquet"
            if again and part.folder not in there:
                there[part.folder] = {name.partition("-")[2] for name in files.sizes(part.folder)}
            if tail not in there.get(part.folder, ()):
                try:
                    content = part.encode()
                except Exception as error:
                    log.error("capture: %d rows of model %s are lost: %s", part.rows, part.model, error)
                    batch.failed_rows[part.model] += part.rows
                    continue
                files.publish(part.folder, tail, content)
            written.append(part)
        return written

    def _failed(self, error: str) -> None:
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s or 1.0)
        self._next_try_s = time.monotonic() + self._pause_s
        if error != self.state.error:
            log.error("capture: rows cannot be written; captured requests stay in %s: %s", self.folder, error)
        self.state.error = error
        with contextlib.suppress(OSError):
            self.state.save(self.folder)

    def _open_files(self) -> CapturedFiles:
        if self._files is None:
            self._files = open_files(self.options.base_path)
        return self._files


def write(own: SpoolWriter) -> None:
    """Writes a spool until its server has ended and all records are in files; gives up after ten minutes of failures.

    Standard input brings the numbers of the flushes that the server asks for.
    """
    commands, flush, gone_s = sys.stdin.fileno(), 0, 0.0
    tick_s = min(0.5, max(0.05, own.options.roll_seconds / 4))
    while own.folder.exists():
        if own.look_for_server() and not gone_s:
            gone_s = time.monotonic()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)  # the next writer continues, wherever this one ends
        if own.replaced:
            return
        asked = flush > max(own.state.flushed, own.state.failed_flush)
        own.step(everything=asked or own.ended, now=asked)
        if asked:
            own.answer_flush(flush, done=own.empty)
        if own.ended and own.empty and own.finish():
            return
        if gone_s and time.monotonic() - gone_s > _GIVE_UP_S:
            log.error("capture: gave up; the next server writes the records in %s", own.folder)
            return
        if commands < 0:
            time.sleep(tick_s)
        elif select.select([commands], [], [], tick_s)[0]:
            text = os.read(commands, 4096)
            flush = max([flush, *map(int, text.split())])
            commands = commands if text else -1


def take(folder: Path, server: int | None = None) -> SpoolWriter | None:
    """Returns the writer of a spool for a server; None if another process is writing it, or another user made it."""
    if not is_own_folder(folder):
        return None
    if (lock := lock_if_there(folder / WRITER_LOCK)) is None:
        return None
    try:
        return SpoolWriter(folder, lock, server)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, FileNotFoundError):
            return None
        raise


def main() -> int:
    """Runs the process; returns its exit status."""
    for number in _SIGNALS:
        # Signals reach the writer as well as the server, but it must end only after the server.
        signal.signal(number, signal.SIG_IGN)
    os.nice(19)
    log_lines.configure()
    server, folder = int(sys.argv[1]), Path(sys.argv[2])
    try:
        own = take(folder, server)
    except Exception as error:
        log.error("capture: the records in %s cannot be read, and stay there: %r", folder, error)
        return 1
    if own is None:
        print(f"{folder}: not a spool, or another process writes it", file=sys.stderr)
        return 1
    write(own)
    return 0


if __name__ == "__main__":
    sys.exit(main())
