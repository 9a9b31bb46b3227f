"""The client of the served model at work beside the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from airflow_hops.extensions import step_variables
from demo.services import REPOSITORY, ServiceFailed, Stack

END = "2013-10-01"


class Replay:
    """The client program in a process of its own, which replays one period after the other.

    Args:
        stack: Whose model server to ask.
        data: Folder of the raw tables.
        start: First day.
        rate: Most requests a second; 0 for as many as are answered.
    """

    def __init__(self, stack: Stack, data: Path, start: str, rate: float = 0) -> None:
        command = [str(stack.runtime / "bin" / "python"), str(REPOSITORY / "demo" / "client.py")]
        command += ["--data", str(data), "--start", start, "--end", END, "--rate", str(rate)]
        command += ["--grpc", f"127.0.0.1:{stack.grpc_port}", "--rest", f"http://127.0.0.1:{stack.rest_port}"]
        self._process = subprocess.Popen(
            command,
            env=step_variables(stack.runtime),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(10)

    def go_on(self, until: str, table: Path | None = None) -> None:
        """Has it ask about the flights from where it is, without waiting for their end.

        Args:
            until: The day after the last.
            table: Where to leave these flights with their outcome; None for nowhere.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{until} {table or ''}\n")
        self._process.stdin.flush()

    def finish(self, console: Console) -> dict[str, Any]:
        """Waits for the period's end, showing progress; returns its totals.

        Raises:
            ServiceFailed: a request failed.
        """
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None and stderr is not None
        for line in stdout:
            totals: dict[str, Any] = json.loads(line)
            console.print(
                f"  until {totals['until'][:10]}: {totals['requests']:,} requests, {totals['rows']:,} flights, "
                f"{totals['errors']} errors, {totals['rows'] / max(totals['seconds'], 1e-9):,.0f} flights/s"
            )
            if totals["done"] and not totals["errors"]:
                return totals
        raise ServiceFailed(f"the client of the model server failed:\n{stderr.read()[-3000:]}")
