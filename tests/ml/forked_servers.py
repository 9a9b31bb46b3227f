"""Model servers as forks of a process in which all is imported."""

from __future__ import annotations

import faulthandler
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import server_zygote
from server_process import ZYGOTES, ForkedProcess, Zygote

from tests.ml.waiting_ranks import forkserver


@pytest.fixture(scope="session")
def runtime_python() -> Path:
    """The Python that servers run in: this one. They are forks of a fork of pytest's, in which all is imported."""
    python, forking = Path(sys.executable), forkserver()
    ours, theirs = socket.socketpair()
    with theirs:
        process = forking.Process(target=_serve_zygote, args=(theirs,))
        process.start()
    ZYGOTES[python] = Zygote(ours, process.join)
    return python


def _serve_zygote(requests: socket.socket) -> None:
    faulthandler.disable()  # pytest's, as are
    logging.getLogger().handlers.clear()
    server_zygote.serve(requests.detach())


@pytest.fixture(scope="module")
def forked_servers(runtime_python: Path) -> Iterator[list[ForkedProcess]]:
    """Has the servers that stages start be such forks; ``tests/test_programs.py`` starts one as they do. Lists them."""
    servers: list[ForkedProcess] = []

    class PopenOfServer(subprocess.Popen[bytes]):
        def __new__(cls, command: list[str], **given: Any) -> Any:
            if "airflow_hops.serving" not in command:
                return super().__new__(cls)
            arguments, log = command[command.index("airflow_hops.serving") + 1 :], Path(given["stdout"].name)
            zygote = ZYGOTES[runtime_python]
            servers.append(zygote.fork(arguments, given["env"], log, log.with_suffix(".status")))
            return servers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", PopenOfServer)
        yield servers
