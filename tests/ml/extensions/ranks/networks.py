"""A network of two hosts on this machine, whose links a test interrupts.

Network namespaces belong to processes: they and their links are gone once these have ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

from waiting import wait_for

from airflow_hops.extensions.ranks.ml.ssh import SshRanks, SshSettings, parse_hosts
from tests.extensions.ranks.ssh_servers import TESTS

HOSTS = {"north": "10.0.0.2", "south": "10.0.0.3"}
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Returns why there cannot be such a network here; empty if there can."""
    try:
        command = ["unshare", "--net", "ip", "link", "add", "hops", "type", "bridge"]
        return subprocess.run(command, capture_output=True, text=True).stderr.strip()
    except OSError as error:
        return str(error)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Network:
    """Hosts ``north`` and ``south`` with SSH servers, behind a switch to which this process is connected, too.

    This process gets a network namespace of its own for good, as the threads that it starts from then on.
    """

    def __init__(self, folder: Path) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._config = folder / "config"
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "switch", "type", "bridge")
        _run("ip", "addr", "add", "10.0.0.1/24", "dev", "switch")
        _run("ip", "link", "set", "switch", "up")
        for name in HOSTS:
            (folder / name).mkdir()
            python = str(TESTS.parents[2] / ".venv" / "bin" / "python")
            command = ["unshare", "--net", python, str(TESTS / "ssh_server.py"), str(folder / name)]
            self._servers[name] = subprocess.Popen(command)
        lines = ["StrictHostKeyChecking yes", "IdentitiesOnly yes"]
        for name, address in HOSTS.items():
            own = folder / name
            wait_for((own / "port").exists, f"the SSH server of {name} listens", 60)
            server = str(self._servers[name].pid)
            _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", server)
            _run("ip", "link", "set", name, "master", "switch", "up")
            for change in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
                _run("nsenter", "--net", "--target", server, "ip", *change.split())
            key = " ".join((own / "host_key.pub").read_text().split()[:2])
            (own / "known_hosts").write_text(f"{name} {key}\n")
            lines += [f"Host {name}", f"HostName {address}", f"Port {(own / 'port').read_text()}"]
            lines += [f"HostKeyAlias {name}", f"UserKnownHostsFile {own / 'known_hosts'}"]
            lines += [f"IdentityFile {own / 'client_key'}"]
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def ranks(self) -> SshRanks:
        return SshRanks(parse_hosts("north:1,south:1"), SshSettings(config_file=str(self._config)))

    def cut_off_south(self, cut_off: bool) -> None:
        """Has the switch drop all packets of ``south`` without a word, or pass them on again."""
        _run("ip", "link", "set", "south", *(("nomaster",) if cut_off else ("master", "switch")))

    def separate_hosts(self) -> None:
        """Has the switch drop packets between the hosts, but not between them and this process."""
        for name in HOSTS:
            _run("ip", "link", "set", name, "type", "bridge_slave", "isolated", "on")

    def reset_connections(self) -> None:
        """Resets the connections between the hosts."""
        server = str(self._servers["south"].pid)
        assert "ESTAB" in _run("nsenter", "--net", "--target", server, "ss", "-Kt", "dst", HOSTS["north"])

    def end(self) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    made = Network(folder)
    try:
        yield made
    finally:
        made.end()
