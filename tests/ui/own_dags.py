"""A process of its own in which a few DAGs run, in the site's Airflow but without its scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shown_demo import REPOSITORY
from waiting import wait_for

from airflow_hops.core.processes.lifetime import end_with_parent
from ui.conftest import Site

WAIT_S = 600.0


class OwnDags:
    """Runs DAGs, one run after the other.

    Attributes:
        site: The web UI that shows them.
    """

    def __init__(self, site: Site, process: subprocess.Popen[str], log: Path) -> None:
        self.site, self._process, self._log = site, process, log

    def run(self, dag_id: str, **configuration: Any) -> None:
        """Has a DAG run once those are over that were asked for before."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([dag_id, configuration]) + "\n")
        self._process.stdin.flush()

    def states(self, dag_id: str) -> list[str]:
        """The states of the DAG's runs that are over."""
        return re.findall(rf"^over: {dag_id} (.*)$", self._log.read_text(), re.MULTILINE)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Returns a result as soon as it is there."""
        return wait_for(what, lambda: self._log.read_text()[-5000:], WAIT_S, poll_s=0.3)


@contextlib.contextmanager
def run_own_dags(
    site: Site, folder: Path, *dag_ids: str, dags: Path = REPOSITORY / "tests" / "dags"
) -> Iterator[OwnDags]:
    """Starts the process.

    Args:
        site: Whose Airflow it uses.
        folder: An empty folder.
        dag_ids: DAGs of ``tests/dags`` or of another folder, each in a file of its name, or modules that they use.
        dags: That folder.
    """
    for dag_id in dag_ids:
        shutil.copy(dags / f"{dag_id}.py", folder)
    log = folder / "runs.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("run_dag.py"))],
            env={**site.environment, "AIRFLOW__CORE__DAGS_FOLDER": str(folder)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            text=True,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    try:
        yield OwnDags(site, process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # a DAG that waits for an answer takes no other signal
        process.wait()
