"""An Airflow of its own for a few DAGs, so that nobody's scheduler and no other test has to do with their runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shown_demo import REPOSITORY
from waiting import wait_for

from airflow_hops.core.processes.lifetime import end_with_parent
from demo.services import free_port
from ui.conftest import PASSWORDS, USERS, Site, answers

WAIT_S = 600.0


class OwnAirflow:
    """A web UI below a path, and a process in which DAGs run, one run after the other.

    Attributes:
        site: The web UI.
    """

    def __init__(self, site: Site, process: subprocess.Popen[str]) -> None:
        self.site = site
        self._process = process
        self._lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())

    def run(self, dag_id: str, **configuration: Any) -> None:
        """Has a DAG run once those are over that were asked for before."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([dag_id, configuration]) + "\n")
        self._process.stdin.flush()

    def states(self, dag_id: str) -> list[str]:
        """The states of the DAG's runs that are over."""
        begin = f"over: {dag_id} "
        return [line.removeprefix(begin) for line in self._lines if line.startswith(begin)]

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Returns a result as soon as it is there."""
        return wait_for(what, lambda: "\n".join(self._lines[-40:]), WAIT_S, poll_s=0.3)

    def is_ready(self) -> bool:
        """Whether there is a database."""
        return "ready" in self._lines


@contextlib.contextmanager
def own_airflow(home: Path, runtime: Path, *dag_ids: str) -> Iterator[OwnAirflow]:
    """Starts it.

    Args:
        home: An empty folder.
        runtime: The runtime environment.
        dag_ids: DAGs of ``tests/dags``, each in a file of its name.
    """
    port = free_port()
    (home / "passwords.json").write_text(json.dumps(PASSWORDS))
    (home / "dags").mkdir()
    for dag_id in dag_ids:
        shutil.copy(REPOSITORY / "tests" / "dags" / f"{dag_id}.py", home / "dags")
    url = f"http://127.0.0.1:{port}/behind/a-proxy"
    extra = {"store": str(home / "store"), "runtime": str(runtime), "tracking_uri": f"sqlite:///{home}/mlflow.db"}
    extra["serving_base_path"] = str(home / "models")  # else it would be of a server at the default ports
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of these tests " * 3,
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW_CONN_HOPS_DEFAULT": json.dumps({"conn_type": "hops", "extra": extra}),
    }
    processes: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        processes.append(process)
        return process

    try:
        site = Site(url, home, PASSWORDS, environment)
        script = str(Path(__file__).with_name("run_dag.py"))
        own = OwnAirflow(site, start(script))
        own.wait_for(own.is_ready)
        server = OwnAirflow(site, start("-m", "airflow", "api-server", "--apps", "core", "--port", str(port)))
        server.wait_for(lambda: answers(url))
        yield own
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a DAG that waits for an answer takes no other signal
        for process in processes:
            process.wait(30)
