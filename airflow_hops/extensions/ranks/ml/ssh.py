"""Ranks on hosts that are reached over SSH, with the OpenSSH client and the user's configuration of it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import threading
import zipfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import airflow_hops
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.ranks.ml.frames import Frames
from airflow_hops.extensions.ranks.ml.remote import AgentLine, RemoteCrew
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang.crew import Crew, Placement, RankJob, RankLauncher, Work, place
from airflow_hops.ml.training.gang.rendezvous import own_address

_HOST_NAME = re.compile(r"[A-Za-z0-9_.:\[\]][A-Za-z0-9_.:\[\]-]*")
_LAST_LINES = 8
_CLOSE_S = 1.5
_WRONG_PYTHON = "its Python is"
_NOT_MENDED_BY_A_RETRY = re.compile(
    rf"{_WRONG_PYTHON}|Permission denied|Host key verification failed|HOST IDENTIFICATION|Bad configuration|Can't open"
    "|: not found|No such file or directory"
)
_NO_PROGRAM = (126, 127)
# Output of imports must not go to standard output, which carries frames. Standard input first carries the package.
# Drops the working directory from the path; -P would fail on an older Python before its version is reported.
_BOOTSTRAP = """
import sys
sys.path[:]=filter(None,sys.path)
import io,os,tempfile,zipfile
i=os.dup(0);o=os.dup(1);os.dup2(2,1)
v=sys.version_info[:2]
if v!=({major},{minor}): sys.exit("{wrong} %d.%d, expected {major}.{minor}"%v)
z=b""
while len(z)<{size}:
  c=os.read(i,{size}-len(z))
  if not c: sys.exit("the connection has ended")
  z+=c
d=tempfile.mkdtemp(prefix="hops-agent-");p=os.path.join(d,"package")
zipfile.ZipFile(io.BytesIO(z)).extractall(p)
sys.path.insert(0,p)
from airflow_hops.extensions.ranks.ml.agent import serve_agent
from pathlib import Path
sys.exit(serve_agent(i,o,Path(d)) and 1)
""".strip()


@dataclass(frozen=True)
class SshSettings:
    """Settings of the SSH client; None uses the value of the user's ``~/.ssh/config``.

    Attributes:
        user: Login name.
        port: Port of the SSH server.
        key_file: The private key.
        python: The Python of the hosts' runtime environment; by default the path of this one's.
        config_file: Used instead of ``~/.ssh/config``.
        connect_timeout_s: Seconds for a connection.
        address: IPv4 address of this machine, as the hosts reach it; by default determined for each host.
    """

    user: str | None = None
    port: int | None = None
    key_file: str | None = None
    python: str = sys.executable
    config_file: str | None = None
    connect_timeout_s: int = 10
    address: str | None = None

    def command(self, host: str) -> list[str]:
        """Returns the SSH client's command line up to the host."""
        options = ["-T", "-x", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.connect_timeout_s}"]
        for option, value in (("-F", self.config_file), ("-i", self.key_file), ("-p", self.port), ("-l", self.user)):
            if value is not None:
                options += [option, str(value)]
        return ["ssh", *options, "--", host]


@dataclass(frozen=True)
class SshRanks(RankLauncher):
    """Ranks on hosts (their slots by name) that are reached over SSH, and filled in order."""

    hosts: Mapping[str, int]
    settings: SshSettings = field(default_factory=SshSettings)

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.place`."""
        return place(self.hosts, np)

    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Starts the agents of all hosts in parallel, and then the ranks.

        Raises:
            BadInput: the work cannot run on other hosts, there is no SSH client, or a host refuses the key or has the
                wrong versions.
            HopsError: a host cannot be reached.
        """
        if not isinstance(work, RankJob):
            raise BadInput(f"{work!r} cannot be sent to other hosts; expected a RankJob")
        names = list(dict.fromkeys(placement.host for placement in placements))
        clients: list[_SshClient] = []
        try:
            for name in names:
                clients.append(_SshClient(name, self.settings))
            with ThreadPoolExecutor(len(names)) as pool:
                lines = list(pool.map(lambda client: client.connect(), clients))
        except BaseException:
            for client in clients:
                client.close()
            raise
        return RemoteCrew(placements, work, env, lines)

    def divide(self, gangs: int, ranks: int) -> list[SshRanks]:
        """Gives each gang separate slots; see :meth:`airflow_hops.ml.training.gang.crew.RankLauncher.divide`."""
        slots = [placement.host for placement in self.place(gangs * ranks)]
        shares = [Counter(slots[number * ranks : (number + 1) * ranks]) for number in range(gangs)]
        return [replace(self, hosts=counts) for counts in shares]


def ssh_ranks(
    context: StepContext, *, cpu_ranks: int, hosts: str, hosts_from: str = "hosts", **settings: Any
) -> SshRanks:
    """Returns the ranks of the place ``ssh``.

    Args:
        context: The step.
        cpu_ranks: Unused.
        hosts: As for :func:`parse_hosts`.
        hosts_from: Source of the hosts, for the error.
        settings: Attributes of :class:`SshSettings`; None for their defaults.

    Raises:
        BadInput: the hosts cannot be used.
    """
    fields = {name: value for name, value in settings.items() if value}
    return SshRanks(parse_hosts(hosts, hosts_from), SshSettings(**fields))


def parse_hosts(text: str, source: str = "hosts") -> dict[str, int]:
    """Reads hosts, and returns their slots by name.

    Args:
        text: ``gpu-1:4,gpu-2:4``; an IPv6 address is in brackets.
        source: Source of the text, for the error.

    Raises:
        BadInput: the text has another form, or names a host twice.
    """
    hosts: dict[str, int] = {}
    for part in text.split(","):
        name, separator, slots = part.strip().rpartition(":")
        if not separator or not _HOST_NAME.fullmatch(name):
            raise BadInput(
                f"{source}: found {part.strip()!r} in {text!r}, expected 'name:slots', as in 'gpu-1:4,gpu-2:4'"
            )
        if not slots.isdecimal() or int(slots) < 1:
            raise BadInput(f"{source}: {name!r} has {slots!r} slots in {text!r}, expected a number, 1 or more")
        name = name.strip("[]")
        if name in hosts:
            raise BadInput(f"{source}: {name!r} occurs twice in {text!r}; list it once, with all of its slots")
        hosts[name] = int(slots)
    return hosts


class _SshClient:
    """An SSH client that runs an agent's bootstrap on a host."""

    def __init__(self, host: str, settings: SshSettings) -> None:
        self._host, self._settings = host, settings
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        archive = package_archive()
        bootstrap = _BOOTSTRAP.format(
            major=sys.version_info.major, minor=sys.version_info.minor, size=len(archive), wrong=_WRONG_PYTHON
        )
        to_agent, writing = os.pipe()
        reading, from_agent = os.pipe()
        self._frames = Frames(reading, writing)
        try:
            self._process = subprocess.Popen(
                [*settings.command(host), shlex.join([settings.python, "-c", bootstrap])],
                stdin=to_agent,
                stdout=from_agent,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            self._frames.close()
            raise BadInput(f"there is no SSH client on this machine ({error}); install OpenSSH's, 'ssh'") from error
        finally:
            os.close(to_agent)
            os.close(from_agent)
        self._listener = threading.Thread(target=self._listen, name=f"ssh to {host}", daemon=True)
        self._listener.start()

    def connect(self) -> AgentLine:
        """Sends the package, and returns the stream to the agent."""
        with contextlib.suppress(OSError):  # the client has ended, which is reported with its last output
            self._frames.send_bytes(package_archive())
        return AgentLine(
            host=self._host,
            frames=self._frames,
            address=self._settings.address or self._find_address(),
            last_words=self._last_words,
            is_final=self._is_final,
            close=self.close,
        )

    def close(self) -> None:
        """Ends the agent's input, which ends the agent, and then the client."""
        self._frames.close_writing()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(_CLOSE_S)

    def _find_address(self) -> str:
        """Returns the address of this machine, as the host reaches it; the host's name may be an SSH alias."""
        command = self._settings.command(self._host)
        asked = subprocess.run([command[0], "-G", *command[1:]], capture_output=True, text=True, errors="replace")
        match = re.search(r"^hostname (\S+)$", asked.stdout, re.MULTILINE)
        try:
            return own_address(match[1] if match else self._host)
        except HopsError as error:
            # The client's error is more precise, unless it reaches the host by another route.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._settings.connect_timeout_s + _CLOSE_S)
                raise HopsError(f"host {self._host} cannot be reached: {self._last_words()}") from None
            raise BadInput(
                f"host {self._host}: cannot find the IPv4 address of this machine that its ranks reach ({error}); "
                "name it in the connection's field 'address'"
            ) from None

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._said.append(line.decode(errors="replace").rstrip())

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_S)
        self._listener.join(_CLOSE_S)
        return "\n".join(f"  {line}" for line in self._said)

    def _is_final(self) -> bool:
        return self._process.poll() in _NO_PROGRAM or bool(_NOT_MENDED_BY_A_RETRY.search("\n".join(self._said)))


@cache
def package_archive() -> bytes:
    """Returns this package as a zip archive."""
    package = Path(airflow_hops.__file__).resolve().parent
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                target.write(file, f"{package.name}/{file.relative_to(package).as_posix()}")
    return archive.getvalue()
