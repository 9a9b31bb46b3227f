"""The few calls of Airflow's REST API (v2) that the demo and the benchmarks make."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx

from airflow_hops.core.processes.cpu_time import GivenTime

FINISHED = ("success", "failed")
_TRIES = 5


class AirflowApi:
    """A client of an Airflow that asks for no login.

    Args:
        url: Base URL of the API server.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=f"{url}/api/v2", timeout=30, trust_env=False)

    def _request(self, method: str, path: str, **kwargs: Any) -> Any:
        """Asks as often as it takes, which no request here minds.

        The server fails where it and the scheduler write the same row in one moment.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                response = self._client.request(method, path, **kwargs)
                if not response.is_server_error or not tries_left:
                    return response.raise_for_status().json()
            except httpx.TransportError:
                if not tries_left:
                    raise
            time.sleep(0.5)

    def health(self) -> dict[str, Any]:
        """State of metadata database, scheduler, triggerer and DAG processor."""
        answer: dict[str, Any] = self._request("GET", "/monitor/health")
        return answer

    def wait_for_dag(self, dag_id: str, timeout_s: float = 300) -> None:
        """Returns when the DAG has been parsed.

        Raises:
            TimeoutError: it has not; the message carries the import errors.
        """
        given = GivenTime(os.getpid())
        while given.seconds() < timeout_s:
            try:
                self._request("GET", f"/dags/{dag_id}")
                return
            except httpx.HTTPStatusError:
                time.sleep(0.3)
        errors = self._request("GET", "/importErrors")["import_errors"]
        raise TimeoutError(
            f"DAG {dag_id!r} is not there after {timeout_s:.0f} s\n" + "\n".join(e["stack_trace"] for e in errors)
        )

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Starts a run; returns its id."""
        now = datetime.now(UTC)
        run_id = f"manual__{now.isoformat()}"
        # On SQLite, Airflow compares times by the second: a run that may start now would start with the next one.
        at_once = (now - timedelta(seconds=1)).isoformat()
        asked = {"dag_run_id": run_id, "logical_date": None, "run_after": at_once, "conf": dict(conf or {})}
        try:
            self._request("POST", f"/dags/{dag_id}/dagRuns", json=asked)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
            # A try before this one was heard, though its answer was not.
        return run_id

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The DAG's runs, oldest first."""
        answer = self._request("GET", f"/dags/{dag_id}/dagRuns", params={"order_by": "run_after", "limit": 100})
        return list(answer["dag_runs"])

    def end_unfinished_runs(self, dag_id: str) -> None:
        """Marks runs as failed that an interrupted showing left unfinished: nothing works on them any more.

        Those that Airflow's own clock starts are none of a showing's: this Airflow may have begun one just now.
        """
        for run in self.runs(dag_id):
            if run["state"] not in FINISHED and run["run_type"] != "scheduled":
                path = f"/dags/{dag_id}/dagRuns/{_quoted(run['dag_run_id'])}"
                self._request("PATCH", path, json={"state": "failed", "note": "interrupted"})

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """One run."""
        return dict(self._request("GET", f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}"))

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run."""
        answer = self._request("GET", f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances")
        return list(answer["task_instances"])

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """The value that a task returned, or None."""
        path = f"{_task(dag_id, run_id, task_id)}/xcomEntries/return_value"
        try:
            return self._request("GET", path, params={"deserialize": "false", "stringify": "false"})["value"]
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 404:
                return None
            raise

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Returns a task's question to a person: ``subject``, ``body``, ``options``."""
        return dict(self._request("GET", f"{_task(dag_id, run_id, task_id)}/-1/hitlDetails"))

    def answer(self, dag_id: str, run_id: str, task_id: str, choice: str, note: str) -> None:
        """Answers what a task asks a person, as the page does.

        Args:
            dag_id: The DAG.
            run_id: The run.
            task_id: The task, which awaits an answer.
            choice: One of the answers that it offers.
            note: Why.
        """
        path = f"{_task(dag_id, run_id, task_id)}/-1/hitlDetails"
        try:
            self._request("PATCH", path, json={"chosen_options": [choice], "params_input": {"note": note}})
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
            # A try before this one was heard, though its answer was not.

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> list[str]:
        """The lines of a task's log."""
        path = f"{_task(dag_id, run_id, task_id)}/logs/{try_number}"
        lines = []
        for entry in self._request("GET", path, params={"full_content": "true"})["content"]:
            if isinstance(entry, str):
                lines.append(entry)
            else:
                # A skipped task's reason stands beside what happened.
                lines.append(" ".join(str(entry[name]) for name in ("event", "reason") if entry.get(name)))
                lines += [
                    f"{detail.get('exc_type')}: {detail.get('exc_value')}" for detail in entry.get("error_detail") or []
                ]
        return lines


def seconds_of(instance: Mapping[str, Any]) -> float:
    """Wall-clock seconds of a task instance or a DAG run, from start to end."""
    if not instance.get("start_date") or not instance.get("end_date"):
        return 0.0
    start, end = (datetime.fromisoformat(instance[name].replace("Z", "+00:00")) for name in ("start_date", "end_date"))
    return (end - start).total_seconds()


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}"


def _quoted(run_id: str) -> str:
    return quote(run_id, safe="")
