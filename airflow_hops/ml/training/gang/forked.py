"""Forked ranks: starts, reads and reaps them on this process's host.

Ranks are forked once TensorFlow and Horovod are imported, before any of their threads run, to save the start-up.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_hops.core.errors import HopsError, details_of, kind_of
from airflow_hops.core.processes.cpu_time import GivenTime
from airflow_hops.core.processes.ending import descendants, send_signal
from airflow_hops.core.processes.forks import fork, take_streams
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.step.generated_code import remove_generated_code
from airflow_hops.ml.step.missing_modules import advice_on_missing_module
from airflow_hops.ml.training.devices import get_gpus, get_num_gpus
from airflow_hops.ml.training.gang.crew import Channel, Crew, Event, Placement, RankJob, RankLauncher, Work, place
from airflow_hops.ml.training.gang.leases import GpuLeases
from airflow_hops.ml.training.gang.rendezvous import LOOPBACK, horovod_variables, rendezvous

# Order of a fork: check that TensorFlow has not been used (its threads would be missing in the fork), lease the GPUs,
# create both pipes of a rank, fork, close the write ends here. Later ranks therefore do not inherit the write ends, and
# a pipe ends with its own rank.
# A rank's exit event follows its last output: after waitpid(), the pipes are read once more. The lease of a GPU is
# released by the kernel when this process and all ranks have closed it, so that an orphaned rank keeps its GPU.

_LINE_BYTES = 1 << 16


@dataclass
class _Process:
    """A forked rank.

    Attributes:
        streams: Read ends of its pipes, to the kind of their events.
        pending: Incomplete last line, by pipe.
        exit_code: None until the process has been reaped.
    """

    pid: int
    streams: dict[int, str]
    pending: dict[int, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    gone: bool = False


class ForkedCrew(Crew):
    """Ranks forked from this process, which has imported TensorFlow and Horovod but not used them.

    If this host has GPUs, each slot (local rank) gets its own, leased until the crew and its ranks have ended; a job's
    ``cpu_ranks`` get none.

    Args:
        placements: Placements of the ranks, all on this machine.
        work: Work of the ranks.
        environments: Variables of each, by rank.
        private: Descriptors of this process that ranks must close.
        on_end: Called when the ranks have ended, or could not be started.

    Raises:
        BadInput: the host has GPUs, but fewer than slots.
        HopsError: TensorFlow already runs in this process, or too many GPUs are leased to others.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        work: Work,
        environments: Mapping[int, Mapping[str, str]],
        private: Sequence[int] = (),
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(placements)
        self._processes: dict[int, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._ended = False
        self._given = GivenTime(os.getpid())
        self._private, self._on_end = tuple(private), on_end
        self._leases: GpuLeases | None = None
        try:
            check_forkable()
            gpus = get_gpus({**os.environ, **environments[placements[0].rank]})  # ranks may get fewer than the step
            cpu_ranks = work.cpu_ranks if isinstance(work, RankJob) else frozenset()
            slots = sorted({placement.local_rank for placement in placements if placement.rank not in cpu_ranks})
            self._leases = GpuLeases(gpus, len(slots), Path.cwd().name) if gpus else None
            for placement in placements:
                own = {}
                if self._leases is not None:
                    needs_gpu = placement.rank not in cpu_ranks
                    gpu = self._leases.ids[slots.index(placement.local_rank)] if needs_gpu else ""
                    own = {"CUDA_VISIBLE_DEVICES": gpu}
                self._fork(placement, work, {**environments[placement.rank], **own})
        except BaseException:
            self.end()
            raise

    def events(self, timeout_s: float) -> list[Event]:
        """Returns the new events."""
        results: list[Event] = []
        deadline = time.monotonic() + timeout_s
        while True:
            self._read(0 if results else max(0.0, min(deadline - time.monotonic(), 0.05)), results)
            for rank, process in self._processes.items():
                if process.exit_code is None:
                    pid, status = os.waitpid(process.pid, os.WNOHANG)
                    if pid:
                        process.exit_code = os.waitstatus_to_exitcode(status)
                if process.exit_code is not None and not process.gone:
                    process.gone = True
                    self._read(0, results)  # its last output is in the pipes
                    results.append(Event(rank, "exit", process.exit_code))
            if held_up_s := self._given.newly_held_up_s():
                results.append(Event(self.placements[0].rank, "held_up", held_up_s))
            if results or time.monotonic() >= deadline:
                break
        if self._ended:
            for process in self._processes.values():
                for descriptor in list(process.streams):  # a surviving descendant may hold it open
                    self._close(process, descriptor)
            self._selector.close()
        return results

    def signal(self, rank: int, number: int) -> None:
        """Signals a rank's process, if it still runs."""
        if (pid := self.pid(rank)) is not None:
            send_signal(pid, number)

    def pid(self, rank: int) -> int | None:
        """Returns the number of a rank's process; None once it has ended."""
        process = self._processes[rank]
        return process.pid if process.exit_code is None else None

    def end(self) -> None:
        """Kills the ranks and their descendants."""
        running = [process for process in self._processes.values() if process.exit_code is None]
        for process in running:
            for pid in [*descendants(process.pid), process.pid]:
                send_signal(pid, signal.SIGKILL)
        for process in running:
            process.exit_code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        self._ended = True
        if self._leases is not None:
            self._leases.release()
        self._on_end()

    def _fork(self, placement: Placement, work: Work, env: dict[str, str]) -> None:
        output_read, output_write = os.pipe()
        channel_read, channel_write = os.pipe()
        others = [stream for process in self._processes.values() for stream in process.streams]

        def run() -> int:
            for descriptor in (output_read, channel_read, *others, *self._private):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            return _run_rank(placement, work, env, output_write, channel_write)

        pid = fork(run)
        os.close(output_write)
        os.close(channel_write)
        process = _Process(pid, {output_read: "output", channel_read: "message"})
        self._processes[placement.rank] = process
        for descriptor in process.streams:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, placement.rank)

    def _close(self, process: _Process, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del process.streams[descriptor]

    def _read(self, timeout_s: float, result: list[Event]) -> None:
        """Reads the available output and messages of the ranks."""
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        while events := self._selector.select(timeout_s):
            timeout_s = 0
            for key, _ in events:
                process = self._processes[key.data]
                try:
                    chunk = os.read(key.fd, 1 << 16)
                except BlockingIOError:
                    continue
                *lines, rest = (process.pending.get(key.fd, b"") + chunk).split(b"\n")
                process.pending[key.fd] = rest
                kind = process.streams[key.fd]
                if not chunk:
                    self._close(process, key.fd)
                    lines = [rest] if rest else []
                elif (
                    kind == "output" and len(rest) > _LINE_BYTES
                ):  # output without line ends, such as a progress bar or an array
                    lines.append(process.pending.pop(key.fd))
                for line in lines:
                    if kind == "output":
                        result.append(Event(key.data, "output", line.decode(errors="replace")))
                    else:
                        with contextlib.suppress(ValueError):  # cut off by the rank's death
                            result.append(Event(key.data, "message", json.loads(line)))


def check_forkable() -> None:
    """Checks that ranks can be forked from this process.

    Raises:
        HopsError: TensorFlow already runs in it.
    """
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.eager import context

    running = context.context_safe()
    if running is not None and running._initialized:
        raise HopsError(
            "TensorFlow is already in use in this process, and forked ranks would lack its threads; train before any "
            "TensorFlow operation, or in another process"
        )


def _run_rank(placement: Placement, work: Work, env: dict[str, str], output: int, descriptor: int) -> int:
    """Works as a rank in a fork; returns its exit code."""
    channel = Channel(descriptor)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take_streams(0, output, output)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        # On SIGUSR1, a stalled rank writes its stack to its log.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
        os.environ.update(env)
        channel.send("result", value=work(placement, channel))
        return 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            print(traceback.format_exc(), end="", file=sys.stderr)
            message = str(error) if isinstance(error, HopsError) else f"{type(error).__name__}: {error}"
            if advice := advice_on_missing_module(message):
                message = f"{message}. {advice}"
            retryable = getattr(error, "retryable", not isinstance(error, ModuleNotFoundError))
            facts = {"name": type(error).__name__, "kind": kind_of(error), "details": details_of(error)}
            channel.send("error", **facts, message=message, retryable=retryable)
        return 1
    finally:
        with contextlib.suppress(BaseException):
            remove_generated_code()


class LocalRanks(RankLauncher):
    """Ranks on this machine.

    Args:
        slots: Maximum number of ranks; by default the number of GPUs or, without any, of cores.
        cpu_ranks: Number of ranks without a GPU, which by default get slots in addition to the GPUs'.
    """

    def __init__(self, slots: int | None = None, cpu_ranks: int = 0) -> None:
        gpus = get_num_gpus()
        self.slots = slots or (gpus + cpu_ranks if gpus else len(os.sched_getaffinity(0)))

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.place`."""
        return place({socket.gethostname(): self.slots}, np)

    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Forks the ranks, and starts Horovod's rendezvous server for them.

        Raises:
            HopsError: TensorFlow already runs in this process.
        """
        closing = contextlib.ExitStack()
        port, serve = closing.enter_context(rendezvous(placements))
        environments = {
            placement.rank: {**env, **horovod_variables(placement, "127.0.0.1", port, LOOPBACK)}
            for placement in placements
        }
        crew = ForkedCrew(placements, work, environments, on_end=closing.close)
        serve()
        return crew


def local_ranks(context: StepContext, *, cpu_ranks: int, slots: int | None = None) -> LocalRanks:
    """Returns the ranks of the place ``local``; None for ``slots`` means all slots of this machine."""
    return LocalRanks(slots, cpu_ranks)
