"""Ranks on other hosts, started and ended by an agent on each; this side receives their events."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.steps.protocol import check_json
from airflow_hops.extensions.ranks.ml.agent import ALIVE_INTERVAL_S, UNANSWERED, versions
from airflow_hops.extensions.ranks.ml.frames import Frames
from airflow_hops.extensions.ranks.ml.links import broken_exchange, describe_links
from airflow_hops.extensions.ranks.ml.transfer import DISCARD, FILE, PLACE, FileReceiver, send_folder
from airflow_hops.ml.training.gang.crew import Crew, Event, Placement, RankJob
from airflow_hops.ml.training.gang.rendezvous import SILENCE_S, patience_s, rendezvous

# This side of the agents' protocol (airflow_hops.extensions.ranks.ml.agent): wait for `hello` of all, compare versions,
# start the rendezvous server, send the jobs in parallel, wait for `ready` of all, send `go` to all.
# One thread per agent reads its stream into a queue, one sends signs of life every 2 s. The main thread only takes from
# the queue, and decides that an agent is lost: its stream has ended, or it was silent for patience_s(). Its ranks then
# get an exit event without a code.
# end() asks the agents to kill, waits 2.5 s, and closes the streams: an agent whose stream is closed kills its ranks
# itself.

_START_S = 300.0
_END_S = 2.5
_LOOK_S = 0.05
_LOOPBACK = ("127.", "::1")
# Settings of the libraries' computations and logs are sent to all hosts; visible devices are up to each host.
_LIBRARY_VARIABLE = re.compile(r"(TF|XLA|KERAS|HOROVOD|NCCL|GLOO|OMP|MKL|ORT)_(?!CONFIG$)\w+")


@dataclass(frozen=True)
class AgentLine:
    """A stream to the agent of a host.

    Attributes:
        host: Name of the host, as in the placements of its ranks.
        frames: The stream.
        address: Address of this machine, as the host reaches it.
        last_words: Returns the reason why the stream has ended: the SSH client's output, or an executor's log.
        is_final: Returns whether a retry would fail for the same reason.
        close: Ends the stream for both sides, and its transport. It may be called more than once; the descriptors stay
            open until the crew closes them.
        ranks: Ranks that the agent starts, if a host has several agents; by default all of the host's.
    """

    host: str
    frames: Frames
    address: str
    last_words: Callable[[], str]
    is_final: Callable[[], bool]
    close: Callable[[], None]
    ranks: Sequence[int] | None = None


class RemoteCrew(Crew):
    """Ranks on other hosts, and Horovod's rendezvous server on this one.

    No rank starts before all agents have reported the right versions, and have the job's files and the libraries.

    Args:
        placements: Placements of the ranks.
        job: Work of the ranks.
        env: Variables for all ranks.
        lines: Streams to the agents of all placements. They are closed by :meth:`end`, and on errors.
        on_end: Called by :meth:`end`, when the streams are closed.

    Raises:
        BadInput: a host has other versions of Python, TensorFlow, Keras or Horovod than this machine.
        HopsError: an agent did not start, or has ended; the message names its host.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        job: RankJob,
        env: Mapping[str, str],
        lines: Sequence[AgentLine],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(placements)
        self._queue: queue.Queue[Event] = queue.Queue()
        self._closing = contextlib.ExitStack()
        self._closing.callback(on_end)
        self._over = threading.Event()
        try:
            files = FileReceiver(job.output) if job.output is not None else None
        except OSError as error:
            for line in lines:
                line.close()
            raise HopsError(f"{job.output}: files from other hosts cannot be written: {error}") from error
        if files is not None:
            self._closing.callback(files.close)
        self._agents = [_Agent(line, placements, self._queue, files, patience_s(env)) for line in lines]
        for agent in self._agents:
            threading.Thread(target=self._say_alive, args=(agent,), name="alive", daemon=True).start()
        try:
            check_json(job.params, f"params of {job.entry}")
            self._wait_for("hello")
            self._check_versions()
            address = rendezvous_address([line.address for line in lines])
            port, serve = self._closing.enter_context(rendezvous(placements, address))
            serve()
            self._send_jobs(job, env, port)
            self._wait_for("ready")
            for agent in self._agents:
                agent.say(type="go")
        except BaseException:
            self.end()
            raise

    def events(self, timeout_s: float) -> list[Event]:
        """Returns the new events; ranks of a silent host count as lost."""
        deadline = time.monotonic() + timeout_s
        results: list[Event] = []
        while True:
            for agent in self._agents:
                agent.check()
            try:
                results.append(self._queue.get(timeout=max(0.0, min(deadline - time.monotonic(), _LOOK_S))))
                while True:
                    results.append(self._queue.get_nowait())
            except queue.Empty:
                if results or time.monotonic() >= deadline:
                    return results

    def signal(self, rank: int, number: int) -> None:
        """Asks the rank's agent to signal it."""
        for agent in self._agents:
            if rank in agent.left:
                agent.say(type="signal", rank=rank, signal=number)

    def describe_interruption(self) -> str:
        """Describes the links that are down: those whose packets kernels repeat, and of agents that are not heard."""
        links = {(a.line.host, self._host_at(peer)): "" for a in self._agents for peer in a.unanswered}
        for agent in self._agents:
            if not agent.over.is_set() and agent.silent_s > SILENCE_S:
                link = (socket.gethostname(), agent.line.host)
                links[link] = f" (nothing was heard for {agent.silent_s:.0f} s)"
        return describe_links(links)

    def find_broken_exchange(self, placement: Placement, line: str) -> tuple[str, str] | None:
        """Returns the other host with which a rank's exchange broke, as Gloo reports it, and the reason."""
        if (broken := broken_exchange(line)) is None or len({each.host for each in self.placements}) == 1:
            return None
        reason, address = broken
        peer = self._host_at(address) if address else "the other ranks"
        return None if peer == placement.host else (peer, reason)

    def _host_at(self, address: str) -> str:
        return " or ".join(sorted({a.line.host for a in self._agents if a.address == address})) or address

    def end(self) -> None:
        """Asks the agents to kill the ranks, and ends the streams, which ends the remaining processes."""
        for agent in self._agents:
            agent.say(type="end")
        deadline = time.monotonic() + _END_S
        for agent in self._agents:
            agent.over.wait(max(0.0, deadline - time.monotonic()))
        self._over.set()
        with ThreadPoolExecutor(len(self._agents) or 1) as pool:
            list(pool.map(lambda agent: agent.close(), self._agents))
        self._closing.close()

    def _wait_for(self, state: str) -> None:
        while not all(agent.state == state for agent in self._agents):
            self._check_agents()
            time.sleep(_LOOK_S / 5)

    def _check_agents(self) -> None:
        for agent in self._agents:
            agent.check()
            if agent.over.is_set():
                message = f"no agent could be started on host {agent.line.host}: {agent.why_gone()}"
                raise BadInput(message) if agent.line.is_final() else HopsError(message)

    def _check_versions(self) -> None:
        own = versions()
        for agent in self._agents:
            for name, version in own.items():
                result = agent.versions.get(name)
                if result != version:
                    raise BadInput(
                        f"{agent.line.host}: its runtime environment has {name} {result or '(missing)'}, expected "
                        f"{version} as on the host of the step; make it from the same pins with 'airflow hops runtime "
                        "create', or name its Python"
                    )

    def _send_jobs(self, job: RankJob, env: Mapping[str, str], port: int) -> None:
        # An agent on this machine uses the loopback address, which ranks on other hosts cannot reach.
        outside = [agent.line.address for agent in self._agents if not agent.line.address.startswith(_LOOPBACK)]

        def send(agent: _Agent) -> None:
            line = agent.line
            agent.say(
                type="job",
                placements=[asdict(placement) for placement in agent.placements],
                entry=job.entry,
                params=dict(job.params),
                env={
                    **{name: value for name, value in os.environ.items() if _LIBRARY_VARIABLE.fullmatch(name)},
                    **env,
                },
                inputs=list(job.inputs),
                code_paths=len(job.code_paths),
                has_output=job.output is not None,
                cpu_ranks=sorted(job.cpu_ranks),
                address=outside[0] if outside and line.address.startswith(_LOOPBACK) else line.address,
                port=port,
            )
            try:
                for number, folder in enumerate(map(Path, job.code_paths)):
                    send_folder(line.frames, folder, f"code/{number}", code=True)
                for name, folder in job.inputs.items():
                    send_folder(line.frames, folder, f"inputs/{name}")
                line.frames.send({"type": PLACE, "path": "", "files": []})
            except OSError as error:
                if error.filename is not None:
                    raise
                # The stream has ended, which is reported with the agent's last output.

        with ThreadPoolExecutor(len(self._agents)) as pool:
            sending = [pool.submit(send, agent) for agent in self._agents]
            try:
                while wait(sending, _LOOK_S).not_done:
                    self._check_agents()
            except BaseException:
                for agent in self._agents:
                    agent.line.close()  # ends a blocked send
                raise
        for sent in sending:
            sent.result()

    def _say_alive(self, agent: _Agent) -> None:
        while not self._over.wait(ALIVE_INTERVAL_S):
            agent.say(type="alive")


class _Agent:
    """The state of an agent; a thread reads its stream.

    Attributes:
        left: Ranks that have not ended.
        state: Last of ``hello``, ``ready``, ``ended`` that was received.
        address: The host's address on its route to this machine.
        unanswered: Addresses that do not acknowledge packets of its ranks.
        failure: Error of the agent, or of receiving its messages.
        over: Set when no more events will follow.
    """

    def __init__(
        self,
        line: AgentLine,
        placements: Sequence[Placement],
        events: queue.Queue[Event],
        files: FileReceiver | None,
        patience_s: float,
    ) -> None:
        self.line = line
        self.placements = [
            p for p in placements if (p.host == line.host if line.ranks is None else p.rank in line.ranks)
        ]
        self._queue, self._files, self._patience_s = events, files, patience_s
        self.left = {placement.rank for placement in self.placements}
        self.state = ""
        self.versions: Mapping[str, str | None] = {}
        self.address = ""
        self.unanswered: set[str] = set()
        self.failure: HopsError | None = None
        self.over = threading.Event()
        self._chatter = ""
        self._silent_s = 0.0
        self._heard = time.monotonic()
        threading.Thread(target=self._read, name=f"agent on {line.host}", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Seconds since the last message."""
        return time.monotonic() - self._heard

    def say(self, **message: object) -> None:
        """Sends a message, if the agent still runs."""
        if not self.over.is_set():
            with contextlib.suppress(OSError):
                self.line.frames.send(message)

    def check(self) -> None:
        """Raises the agent's failure, and ends a stream that has been silent for too long."""
        if self.failure is not None:
            raise self.failure
        patience_s = self._patience_s if self.state else _START_S
        if not self.over.is_set() and self.silent_s > patience_s:
            self._silent_s = patience_s
            self.line.close()

    def close(self) -> None:
        self.line.close()
        if self.over.wait(_END_S):
            self.line.frames.close()

    def why_gone(self) -> str:
        """Describes why the stream has ended."""
        reason = f"nothing was heard for {self._silent_s:g} s" if self._silent_s else "the connection has ended"
        words = self.line.last_words() or self._chatter
        return reason + (f"; the last words were:\n{words}" if words else "")

    def _read(self) -> None:
        frames = self.line.frames
        try:
            self._chatter = frames.skip_to_greeting()
            while self.state != "ended":
                message, body = frames.receive()
                self._heard = time.monotonic()
                kind = message["type"]
                if kind == "events":
                    for rank, event_kind, value in message["events"]:
                        if event_kind == UNANSWERED:
                            self.unanswered.update(value)
                            continue
                        if event_kind == "exit":
                            self.left.discard(rank)
                        self._queue.put(Event(rank, event_kind, value))
                elif kind in (FILE, PLACE, DISCARD) and self._files is not None:
                    self._files.take(message, body)
                elif kind == "failed":
                    raise (HopsError if message["retryable"] else BadInput)(message["message"])
                elif kind != "alive":
                    self.state = kind
                    self.versions = message.get("versions", self.versions)
                    self.address = message.get("address", self.address)
        except EOFError as error:
            self._chatter = self._chatter or str(error)
        except HopsError as error:
            self.failure = error.with_text(f"{self.line.host}: {error}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.failure = HopsError(f"{self.line.host}: {error}")
        finally:
            if self.left:  # ranks end with their agent
                why = str(self.failure) if self.failure is not None else f"{self.line.host}: {self.why_gone()}"
                for rank in sorted(self.left):
                    for line in why.splitlines():
                        self._queue.put(Event(rank, "output", line))
                    self._queue.put(Event(rank, "exit", None))
                self.left = set()
            self.over.set()


def rendezvous_address(addresses: Sequence[str]) -> str:
    """Returns the address that the server listens on: this machine's if it is the same for all hosts, else all (empty).

    Args:
        addresses: Addresses of this machine, as each host reaches it.
    """
    if len(set(addresses)) == 1:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((addresses[0], 0))
            return addresses[0]  # the bound address, not that of a NAT
    return ""
