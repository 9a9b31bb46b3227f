"""The supervisor of workers: holds the ports, starts and replaces workers, and passes the config file on to them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import FrameType

from airflow_hops.core.processes.cpu_time import GivenTime
from airflow_hops.core.processes.programs import start_module, with_package
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.serving_api.config import ConfigError, format_config, parse_config, read_config, write_file
from airflow_hops.extensions.server_extras.serving.flags import ExtraFlags
from airflow_hops.extensions.server_extras.serving.shared import SharedFolder
from airflow_hops.extensions.server_extras.serving.worker import WorkerAssignment, threads_each, worker_flags
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.listeners import hold_port
from airflow_hops.serving.models.loader import first_config, marked
from airflow_hops.serving.models.wanted_models import due_after
from airflow_hops.serving.ready_file import remove_ready_file, write_ready_file

# A worker's life: started with a pipe as its standard input, which brings its assignment, and whose end asks it to
# drain; the end of the supervisor ends it, too. It imports its libraries, and then gives signs of life. One that ends
# is replaced, at once if it lived long, else after pauses up to 3 s; one without a sign of life is killed first.
# The first worker must have taken its ports and read its files before the others start, so an error is said once. A
# worker that ends before all have listened ends the server.
# Ports: bound here with SO_REUSEPORT and without SO_REUSEADDR, and never listened at: they stay the server's while no
# worker listens.

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_LIVED_S = 30.0
_LONGEST_PAUSE_S = 3.0


class _Worker:
    """A running worker.

    Attributes:
        is_silent: Whether it was killed because it gave no sign of life.
    """

    def __init__(self, assignment: WorkerAssignment, alive: Path) -> None:
        alive.touch()
        self._alive = alive
        self._seen_ns = alive.stat().st_mtime_ns
        self._silent_s = -math.inf  # signs of life begin after the imports
        self.started_s = time.monotonic()
        self.is_silent = False
        self.process = start_module(
            "airflow_hops.extensions.server_extras.serving.worker",
            stdin=subprocess.PIPE,
            env=with_package(
                {"OMP_NUM_THREADS": str(threads_each(assignment.flags.of(ExtraFlags).workers)), **os.environ}
            ),
            start_new_session=True,  # a terminal's signals go only to the supervisor, which has the workers drain
        )
        assert self.process.stdin is not None
        self._given = GivenTime(self.process.pid, alone=True)  # writers of captures are nice
        with contextlib.suppress(BrokenPipeError):  # it has already ended, which is seen at the next look
            self.process.stdin.write(pickle.dumps(assignment))
            self.process.stdin.flush()

    @property
    def end(self) -> str:
        """Returns how it ended; waits for the end."""
        code = self.process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"

    def look(self, passed_s: float, timeout_s: float) -> None:
        """Kills the worker if it hangs: the kernel still gives it connections, whose clients would wait forever."""
        seen_ns = self._alive.stat().st_mtime_ns
        # Count looks, since time also passes while the whole machine is suspended, or others use its cores.
        passed_s -= self._given.newly_held_up_s()
        self._silent_s = self._silent_s + passed_s if seen_ns == self._seen_ns else 0.0
        self._seen_ns = seen_ns
        if timeout_s and self._silent_s >= timeout_s and not self.is_silent:
            self.is_silent = True
            log.error("worker %d did not respond for %g s and is killed", self.process.pid, timeout_s)
            self.process.kill()

    def ask_to_end(self) -> None:
        """Has the worker drain and end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Supervisor:
    """Runs a server of several workers.

    Args:
        flags: The server's flags; limits on concurrent work are divided among the workers.

    Raises:
        StartError: A port is in use, or the config file is not valid.
    """

    def __init__(self, flags: Flags) -> None:
        self._flags, own = flags, flags.of(ExtraFlags)
        self._count, self._timeout_s = own.workers, own.worker_timeout_seconds
        remove_ready_file(self._flags.ready_file)
        asked = {"port": flags.port, "rest_api_port": flags.rest_api_port}
        try:
            self._holders = [
                hold_shared_port(flag, flags.host, port) for flag, port in asked.items() if port is not None
            ]
            self._config = first_config(flags)
        except ConfigError as error:
            raise StartError(str(error)) from error
        self._ports = tuple(holder.getsockname()[1] for holder in self._holders)
        self._config_due_s = due_after(flags.model_config_file_poll_wait_seconds if flags.model_config_file else 0)
        self._read = Path(flags.model_config_file).read_bytes() if flags.model_config_file else b""
        self._restarts = self._hangs = 0
        self._pauses_s = [0.0] * self._count
        self._due_s = [0.0] * self._count
        self._workers: list[_Worker | None] = []
        self._started_at = time.time()
        self._is_stopping = False

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT, and returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with temporary_folder("workers") as folder:
            self._shared = SharedFolder(folder, self._count)
            source = self._flags.model_config_file or "command line"
            write_file(self._shared.config_file, marked(source, format_config(self._config)))
            self._shared.write_ends(0, 0, None)
            status = self._start()
            while not (self._is_stopping or status):
                time.sleep(_LOOK_S)
                try:
                    self._look()
                except Exception:
                    log.exception("the supervisor could not look after the workers; trying again")
            remove_ready_file(self._flags.ready_file)
            self._stop()
        return status

    def _start(self) -> int:
        """Starts all workers and waits until they listen; returns the exit status if one of them ends, else 0."""
        has_begun = False
        self._workers.append(self._new(0))
        while len(self._shared.open_reports()) < self._count:
            if self._is_stopping:
                return 0
            for worker in filter(None, self._workers):
                if worker.process.poll() is not None:
                    if worker.process.returncode != 1:
                        log.error("worker %d ended with %s while it started", worker.process.pid, worker.end)
                    return 1
            if not has_begun and self._shared.report_file(0).exists():
                has_begun = True
                self._workers += [self._new(slot) for slot in range(1, self._count)]
            time.sleep(_LOOK_S)
        write_ready_file(self._flags.ready_file, *self._ports)
        return 0

    def _look(self) -> None:
        for slot, worker in enumerate(self._workers):
            if worker is None:
                if time.monotonic() >= self._due_s[slot]:
                    self._workers[slot] = self._new(slot)
            elif worker.process.poll() is None:
                worker.look(_LOOK_S, self._timeout_s)
            else:
                self._on_end(slot, worker)
        self._pass_on_config()

    def _on_end(self, slot: int, worker: _Worker) -> None:
        self._workers[slot] = None
        lived = time.monotonic() - worker.started_s > _LIVED_S
        pause_s = self._pauses_s[slot] = 0.0 if lived else min(max(0.1, 2 * self._pauses_s[slot]), _LONGEST_PAUSE_S)
        self._due_s[slot] = time.monotonic() + pause_s
        self._restarts += 1
        self._hangs += worker.is_silent
        end = worker.end + worker.is_silent * ", as it did not respond"
        self._shared.write_ends(self._restarts, self._hangs, end)
        log.error("worker %d ended with %s; starting another", worker.process.pid, end)

    def _new(self, slot: int) -> _Worker:
        grpc_port, rest_api_port = (*self._ports, None)[:2]
        flags = worker_flags(self._flags, grpc_port, rest_api_port)
        assignment = WorkerAssignment(flags, self._shared.folder, slot, self._started_at)
        return _Worker(assignment, self._shared.lock_file(slot))

    def _pass_on_config(self) -> None:
        """Passes a changed config file on to the workers, whether or not a call has changed their config meanwhile."""
        if time.monotonic() < self._config_due_s:
            return
        self._config_due_s = due_after(self._flags.model_config_file_poll_wait_seconds)
        path = Path(self._flags.model_config_file)
        try:
            content = path.read_bytes()
            if content == self._read:
                return
            self._read = content
            config = parse_config(content.decode("utf-8"), str(path))
            if config != read_config(self._shared.config_file):  # else a worker wrote it, after a call
                write_file(self._shared.config_file, marked(str(path), format_config(config)))
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            log.error("model config file ignored, the models stay as they were: %s", error)

    def _stop(self) -> None:
        running = [worker for worker in self._workers if worker is not None]
        for worker in running:
            worker.ask_to_end()
        for worker in running:
            if worker.process.wait() != 0 and self._is_stopping:
                log.error("worker %d ended with %s while the server stops", worker.process.pid, worker.end)
        for holder in self._holders:
            holder.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_stopping:
            log.error("stopped at once after a second signal")
            for worker in filter(None, self._workers):
                worker.process.kill()
            os._exit(128 + number)
        self._is_stopping = True


def hold_shared_port(flag: str, host: str, port: int) -> socket.socket:
    """Returns a socket bound to a port that the workers share and no other program can take."""
    with hold_port(flag, host, port) as free:
        port = free.getsockname()[1]
    holder = hold_port(flag, host, port, shared=True)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return holder
