"""An Airflow with the pages and nothing else running: its API server, over artifacts of the sizes to be measured."""

from __future__ import annotations

import subprocess
import sys

import httpx

from demo.airflow_api import AirflowApi
from demo.services import REPOSITORY, Stack, free_port

DAG = "ui_sizes"
WIDE = "ui_wide"
MANY = "ui_many"
DAGS = REPOSITORY / "benchmarks" / "ui_dags"


class PagesSite(Stack):
    """The API server alone: once written, nothing here changes."""

    def start(self, *dag_ids: str) -> AirflowApi:
        """Writes what is not there yet of some DAGs, and starts the API server.

        Raises:
            ServiceFailed: it did not start.
            CalledProcessError: the artifacts cannot be written; the DAG's log in ``logs`` says why.
        """
        for folder in (self.home / "logs", self.store):
            folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        environment = self.airflow_environment(port)
        airflow = [sys.executable, "-m", "airflow"]
        for dag_id in dag_ids:
            written = self.home / f"{dag_id}.written"
            if not written.exists():
                self.say(f"Writing the artifacts of {dag_id}, which takes minutes the first time")
                with (self.home / "logs" / f"{dag_id}.log").open("wb") as log:
                    for command in (["db", "migrate"], ["dags", "reserialize"], ["dags", "test", dag_id]):
                        subprocess.run([*airflow, *command], env=environment, stdout=log, stderr=log, check=True)
                if dag_id == MANY:
                    python, store = str(self.runtime / "bin" / "python"), self.store.as_uri()
                    command = [python, "-m", "benchmarks.measurement.many_runs", store, MANY, "--models=200"]
                    subprocess.run(command, cwd=REPOSITORY, check=True)
                written.touch()
        service = self._launch("API server", [*airflow, "api-server", "--port", str(port)], environment)
        api = AirflowApi(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            try:
                return bool(api.runs(DAG))
            except httpx.HTTPError:
                return False

        self._wait(service, answers)
        return api
