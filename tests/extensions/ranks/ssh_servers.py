"""Fixtures of both environments' tests: SSH servers, of the library that is installed beside Airflow."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import wait_for

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class SshServer:
    """An SSH server on two loopback addresses, and how clients reach it."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    @property
    def key_file(self) -> str:
        return str(self.folder / "client_key")

    @property
    def config_file(self) -> str:
        return str(self.folder / "config")


@pytest.fixture(scope="module")
def start_ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], SshServer]]:
    """Starts servers, which end with the module's tests."""
    processes = []

    def start() -> SshServer:
        folder = tmp_path_factory.mktemp("ssh")
        command = [str(TESTS.parents[2] / ".venv" / "bin" / "python"), str(TESTS / "ssh_server.py"), str(folder)]
        process = subprocess.Popen(command)
        processes.append(process)
        port = folder / "port"
        wait_for(lambda: port.exists() or process.poll() is not None, "the SSH server listens", 60)
        return SshServer(process, folder, int(port.read_text()))

    yield start
    for process in processes:
        process.kill()
        process.wait()
