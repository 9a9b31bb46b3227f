"""The agent: starts a gang's ranks on a host other than the supervisor's, and ends them there.

There are two processes per host. The *guard* (:func:`serve_agent`) starts the agent; when the stream or the agent ends,
it kills the agent's remaining descendants and removes its files. The *agent* imports TensorFlow and Horovod once, forks
the ranks, and relays their events. If one of them is killed, the other ends all ranks, so that no process outlives a
gang.

Frames from the agent: ``hello`` (its versions), ``ready`` (files received, libraries imported), ``events`` (of the
ranks, and on SIGUSR1 the addresses that do not acknowledge a rank's packets), files of rank 0's output, ``alive``,
``failed``, ``ended``. Frames to the agent: ``job``, the job's files, ``go``, ``signal``, ``alive``, ``end``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.ending import descendants, kill_descendants
from airflow_hops.core.processes.files import lock_folder
from airflow_hops.core.processes.lifetime import adopt_orphans, end_with_parent
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.core.processes.programs import start_module, with_package
from airflow_hops.core.processes.temporary_folders import make_temporary_folder, remove_left_behind
from airflow_hops.extensions.ranks.ml.frames import GREETING, Frames
from airflow_hops.extensions.ranks.ml.links import unanswered
from airflow_hops.extensions.ranks.ml.transfer import FileReceiver, FileSender
from airflow_hops.ml.training.gang.crew import Placement, RankJob
from airflow_hops.ml.training.gang.forked import ForkedCrew
from airflow_hops.ml.training.gang.rendezvous import horovod_variables, own_address, patience_s

# Order of a gang on a host: greeting, `hello` → `job`, files, `place` → `ready` (libraries imported) → `go` (once all
# hosts are ready) → fork the ranks → `events` … → `ended`. No rank starts before `go`, so a wrong version or a missing
# file on one host costs no training time.
# A SIGTERM to the guard or the agent (a drained host) is a notice, which the agent passes on to its ranks, and after
# which the guard ends when its gang has ended; before its ranks are forked, an agent ends of it.
# Who ends whom: the supervisor's `end`, or its silence for patience_s(), ends the ranks through the agent; a killed
# agent, or a closed stream, ends them through the guard; a killed guard signals the agent. If all are killed at once
# (power), only files remain, which the next guard on the host removes.
# Rank 0's files are sent before the event that announces them, over the same stream, so the supervisor has them when it
# reads the event.

UNANSWERED = "unanswered"
"""Kind of an agent's event with the addresses that do not acknowledge a rank's packets."""

ALIVE_INTERVAL_S = 2.0
"""Each side of a stream sends a sign of life so often."""

_LIBRARIES = ("tensorflow", "keras", "horovod")
_STALE_S = 60.0
_LOOK_S = 0.2
_END_S = 2.0


def versions() -> dict[str, str | None]:
    """Returns the versions that must be equal on all hosts: Python without its patch number, and libraries."""
    results: dict[str, str | None] = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _LIBRARIES:
        try:
            results[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            results[name] = None
    return results


def serve_agent(
    reading: int, writing: int | None = None, scratch: Path | None = None, *, passes_notices: bool = True
) -> int:
    """Runs an agent on a stream, in its own process, and cleans up after it.

    Args:
        passes_notices: Whether a SIGTERM to this process is passed on to the ranks, and ends it only after them.
        reading: Descriptor that frames come from.
        writing: Descriptor that frames go to; by default the same, a socket.
        scratch: Folder for the agent's files; by default a new one. It is removed.

    Returns:
        The agent's exit code, or the negative number of a signal.
    """
    writing = reading if writing is None else writing
    adopt_orphans()
    # A host that lost power still has the files that it received.
    remove_left_behind(Path(tempfile.gettempdir()), "agent", age_s=_STALE_S)
    scratch, lock = (scratch, lock_folder(scratch)) if scratch else make_temporary_folder("agent")
    strangers = set(descendants(os.getpid()))
    try:
        agent = start_module(
            __name__,
            *(str(reading), str(writing), scratch, str(os.getpid())),
            stdout=2,  # standard output may be the stream
            pass_fds={reading, writing},
            env=_variables(),
            cwd=scratch,
            start_new_session=True,
        )
        notices: list[int] = []

        def pass_on(number: int, frame: object) -> None:
            notices.append(number)
            agent.terminate()

        handler = signal.getsignal(signal.SIGTERM)
        if passes_notices:
            signal.signal(signal.SIGTERM, pass_on)
        try:
            # Waits until the agent or the stream has ended
            poll = select.poll()
            poll.register(reading, select.POLLRDHUP)  # and POLLHUP and POLLERR, which are always reported
            while agent.poll() is None and not poll.poll(1000 * _LOOK_S):
                pass
        finally:
            kill_descendants(spared=strangers)
            shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os.close(lock)
    code = agent.wait()
    if passes_notices:
        signal.signal(signal.SIGTERM, handler)
        if notices:
            signal.raise_signal(signal.SIGTERM)
    if code < 0:
        print(f"the agent was ended by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
    return code


def main(reading: int, writing: int, scratch: Path, guard: int) -> int:
    """Runs in the agent's process; returns its exit code."""

    # The kernel signals the agent when its guard has been killed.
    def end(number: int, frame: object) -> None:
        kill_descendants()
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    end_with_parent(guard, signal.SIGHUP)
    adopt_orphans()
    frames = Frames(reading, writing)
    try:
        frames.send_bytes(GREETING)
        frames.send({"type": "hello", "versions": versions()})
        try:
            agent = _Agent(frames, scratch)
        except Exception as error:
            text = str(error) if isinstance(error, HopsError) else f"{type(error).__name__}: {error}"
            frames.send({"type": "failed", "message": text, "retryable": getattr(error, "retryable", True)})
            return 1
        agent.relay()
        return 0
    except (EOFError, TimeoutError, BrokenPipeError, ConnectionError):
        return 1  # the supervisor is gone: the guard cleans up


class _Agent:
    """Receives a job and forks its ranks."""

    def __init__(self, frames: Frames, scratch: Path) -> None:
        self._frames, self._scratch = frames, scratch
        self._patience_s = patience_s({})
        self._ending = threading.Event()
        self._output = scratch / "output"
        self._output.mkdir()
        self._files = FileSender(frames, self._output)
        with calling_periodically(self._say_alive, ALIVE_INTERVAL_S):  # until ranks are forked
            job = self._receive()
            os.environ.update(job["env"])
            import airflow_hops.ml.training.collectives  # noqa: F401

            frames.send({"type": "ready", "address": own_address(job["address"])})
            self._expect("go")
        placements = [Placement(**placement) for placement in job["placements"]]
        interface = find_interface(job["address"])
        self._crew = ForkedCrew(
            placements,
            RankJob(
                entry=job["entry"],
                params=job["params"],
                inputs={name: scratch / "inputs" / name for name in job["inputs"]},
                output=self._output if job["has_output"] else None,
                cpu_ranks=frozenset(job["cpu_ranks"]),
            ),
            {
                placement.rank: {
                    **job["env"],
                    **horovod_variables(placement, job["address"], job["port"], interface),
                }
                for placement in placements
            },
            private=(frames.reading, frames.writing),
        )
        self._left = {placement.rank for placement in placements}
        self._has_output = job["has_output"]
        self._signals: list[tuple[int, int]] = []
        for_all = [(placement.rank, int(signal.SIGTERM)) for placement in placements]
        signal.signal(signal.SIGTERM, lambda *_: self._signals.extend(for_all))

    def _say_alive(self) -> None:
        with contextlib.suppress(OSError):
            self._frames.send({"type": "alive"})

    def relay(self) -> None:
        """Sends the ranks' events, until all ranks have ended or the supervisor ends them."""
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()
        sent = time.monotonic()
        while self._left:
            if self._ending.is_set():
                self._crew.end()
            waiting: list[tuple[int, str, object]] = []
            while self._signals:
                rank, number = self._signals.pop()
                self._crew.signal(rank, number)
                if number == signal.SIGUSR1 and (pid := self._crew.pid(rank)) is not None:
                    waiting.append((rank, UNANSWERED, unanswered(pid)))
            events = self._crew.events(0 if self._ending.is_set() else _LOOK_S)
            for event in events:
                path = None  # the part of the output to send before the event; an empty path is all of it
                if event.rank == 0 and self._has_output:
                    if event.kind == "message" and event.value["type"] == "files":
                        path = str(event.value["path"])
                    elif event.kind == "exit" and event.value == 0:
                        path = ""
                if path is not None:
                    self._flush(waiting)
                    try:
                        self._files.send(path)
                    except HopsError as error:
                        failure = {"type": "error", "name": "HopsError", "message": str(error), "retryable": False}
                        waiting.append((event.rank, "message", failure))
                waiting.append((event.rank, event.kind, event.value))
                if event.kind == "exit":
                    self._left.discard(event.rank)
            self._flush(waiting)
            if not events and time.monotonic() - sent > ALIVE_INTERVAL_S:
                self._frames.send({"type": "alive"})
            if events or time.monotonic() - sent > ALIVE_INTERVAL_S:
                sent = time.monotonic()
        kill_descendants()
        self._frames.send({"type": "ended"})

    def _flush(self, waiting: list[tuple[int, str, object]]) -> None:
        if waiting:
            self._frames.send({"type": "events", "events": waiting})
            waiting.clear()

    def _receive(self) -> dict[str, Any]:
        job = self._expect("job")
        self._patience_s = patience_s(job["env"])
        folders = [self._scratch / "code" / str(number) for number in range(job["code_paths"])]
        files = FileReceiver(self._scratch)
        try:
            while True:
                message, body = self._frames.receive(self._patience_s)
                if message["type"] != "alive":
                    files.take(message, body)
                    if message["type"] == "place":
                        break
        finally:
            files.close()
        for folder in [*folders, *(self._scratch / "inputs" / name for name in job["inputs"])]:
            if not folder.is_file():  # a packaged DAG is an archive
                folder.mkdir(parents=True, exist_ok=True)
        sys.path[:0] = map(str, folders)
        return job

    def _expect(self, kind: str) -> dict[str, Any]:
        while True:
            message, _ = self._frames.receive(self._patience_s)
            if message["type"] == kind:
                return message
            if message["type"] != "alive":
                raise EOFError

    def _listen(self) -> None:
        """Handles the supervisor's messages; if it is silent or gone, the agent exits at once."""
        try:
            while not self._ending.is_set():
                message, _ = self._frames.receive(self._patience_s)
                if message["type"] == "signal":
                    self._signals.append((message["rank"], message["signal"]))
                elif message["type"] == "end":
                    self._ending.set()
                    time.sleep(_END_S)
        finally:
            os._exit(1)


def find_interface(address: str) -> str:
    """Returns the name of the network interface by which this host reaches an address.

    Raises:
        HopsError: no interface has the address.
    """
    import psutil

    own = own_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        if any(result.address.partition("%")[0] == own for result in addresses):
            return name
    raise HopsError(f"no network interface has the address {own}, by which {address} is reached")


def _variables() -> Mapping[str, str]:
    """Returns an agent's variables: the host's, with this very package, and without modules of another one."""
    return {
        **with_package(os.environ, sys.path),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
    }


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
