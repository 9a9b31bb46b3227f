"""``make demo``: the whole loop on real data, told stage by stage in the terminal.

Trains on January to March 2013, serves, replays April to June as live prediction requests, has the monitor look at
what the server captured, follows the retraining that it asks for, replays July and August while the canary takes its
share, step by step, and compares both versions on the same months. Whatever comes out is what the summary says.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from airflow_hops.launchers.local import step_environment
from demo.airflow_api import AirflowApi
from demo.follow import follow
from demo.services import REPOSITORY, ServiceFailed, Stack
from demo.showing import LOG_WIDTH, arguments, show
from demo.summary import Facts, print_summary

TRAINING, MONITORING = "flights_training", "flights_monitoring"
FIRST_WINDOW = ("2013-01-01", "2013-04-01")
LIVE_WINDOW = ("2013-04-01", "2013-07-01")
CANARY_WINDOW = ("2013-07-01", "2013-09-01")
LATER_WINDOW = ("2013-07-01", "2013-09-01")
RETRAINING_APPEARS_S = 30.0


@dataclass
class Demo:
    """One showing of the loop on a running stack."""

    stack: Stack
    api: AirflowApi
    data: Path
    console: Console
    facts: Facts = field(default_factory=Facts)

    def run(self) -> None:
        """The loop, start to end.

        Raises:
            RunFailed: a DAG run failed; the message carries the failing task's log.
            ServiceFailed: a service or the client failed.
        """
        for dag_id in (TRAINING, MONITORING):
            self.api.wait_for_dag(dag_id)
            self.api.end_unfinished_runs(dag_id)
        known = {run["dag_run_id"] for run in self.api.runs(TRAINING)}
        self.heading(f"Training on {FIRST_WINDOW[0]} to {FIRST_WINDOW[1]}, and serving")
        run_id = self.api.trigger(TRAINING, {"window_start": FIRST_WINDOW[0], "window_end": FIRST_WINDOW[1]})
        known.add(run_id)
        self.facts.first = follow(self.api, TRAINING, run_id, self.console)

        self.heading(f"Live requests: the flights of {LIVE_WINDOW[0]} to {LIVE_WINDOW[1]}, as they are scheduled")
        self.facts.replays["live"] = self.replay(LIVE_WINDOW).finish(self.console)
        self.flush_capture()

        self.heading("Monitoring: do they look like what the serving model was trained on?")
        monitoring = self.api.trigger(MONITORING)
        self.facts.monitoring = follow(self.api, MONITORING, monitoring, self.console)

        retraining = self.retraining_run(known)
        if retraining is None:
            self.console.print("No retraining was asked for.")
        else:
            self.heading("Retraining on the wider window, as the monitor asked; the next requests meet the canary")
            self.facts.retraining = self.follow_retraining(retraining)

        self.heading(f"Every version on the same later flights, {LATER_WINDOW[0]} to {LATER_WINDOW[1]}")
        self.compare()
        self.facts.read_serving(self.stack)

    def heading(self, text: str) -> None:
        """Prints what begins."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def replay(self, window: tuple[str, str]) -> Replay:
        """Starts the client on a period."""
        return Replay(self.stack, self.data, window)

    def flush_capture(self) -> None:
        """Has the server write what it has captured, rather than wait for its own rhythm."""
        import httpx

        url = f"http://127.0.0.1:{self.stack.rest_port}/v1/capture:flush"
        httpx.post(url, timeout=30, trust_env=False).raise_for_status()

    def retraining_run(self, known: set[str]) -> str | None:
        """The run of the training DAG that the monitor's asset event started, or None when it emitted none."""
        asked = self.facts.monitoring.get("request_retraining", {}).get("state") == "success"
        deadline = time.monotonic() + (RETRAINING_APPEARS_S if asked else 0)
        while True:
            for run in self.api.runs(TRAINING):
                if run["dag_run_id"] not in known:
                    return str(run["dag_run_id"])
            if time.monotonic() >= deadline:
                if asked:
                    raise ServiceFailed("the monitor asked for a retraining, but no run of flights_training followed")
                return None
            time.sleep(0.3)

    def follow_retraining(self, run_id: str) -> dict[str, Any]:
        """Follows the retraining, and replays the next month once the canary takes traffic."""
        replay: list[Replay] = []

        def on_task(task_id: str, state: str) -> None:
            if task_id == "deploy" and state == "success" and not replay:
                replay.append(self.replay(CANARY_WINDOW))

        try:
            tasks = follow(self.api, TRAINING, run_id, self.console, on_task)
            if replay:
                self.facts.replays["canary"] = replay[0].finish(self.console)
            return tasks
        finally:
            for started in replay:
                started.stop()

    def compare(self) -> None:
        """Scores every version of this showing on the same later flights, in the runtime environment."""
        table = self.stack.home / "later.parquet"
        python = str(self.stack.runtime / "bin" / "python")
        environment = step_environment(self.stack.runtime, (str(REPOSITORY),))
        later = Replay(self.stack, self.data, LATER_WINDOW, table=table)
        self.facts.replays["later"] = later.finish(self.console)
        models = []
        for label, tasks in (("1", self.facts.first), ("2", self.facts.retraining)):
            model = tasks.get("train", {}).get("value")
            if model:
                models.append(f"{label}={model['uri'].removeprefix('file://')}/saved_model")
        answer = subprocess.run(
            [python, "-P", "-m", "demo.compare", str(table), *models],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            raise ServiceFailed(f"comparing the versions failed:\n{answer.stderr[-3000:]}")
        self.facts.later = json.loads(answer.stdout.splitlines()[-1])


class Replay:
    """The client program at work, in a process of its own.

    Args:
        stack: Whose model server to ask.
        data: Folder of the raw tables.
        window: First day and the day after the last.
        table: Where to leave the flights with their outcome; None for nowhere.
    """

    def __init__(self, stack: Stack, data: Path, window: tuple[str, str], table: Path | None = None) -> None:
        self.window = window
        command = [str(stack.runtime / "bin" / "python"), str(REPOSITORY / "demo" / "client.py")]
        command += ["--data", str(data), "--start", window[0], "--end", window[1]]
        command += ["--grpc", f"127.0.0.1:{stack.grpc_port}", "--rest", f"http://127.0.0.1:{stack.rest_port}"]
        if table is not None:
            command += ["--table", str(table)]
        self._process = subprocess.Popen(
            command,
            env={**step_environment(stack.runtime), "PYTHONPATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def finish(self, console: Console) -> dict[str, Any]:
        """Waits for the end, showing progress; returns the totals.

        Raises:
            ServiceFailed: a request failed.
        """
        totals: dict[str, Any] = {}
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None and stderr is not None
        try:
            for line in stdout:
                totals = json.loads(line)
                console.print(
                    f"  until {totals['until'][:10]}: {totals['requests']:,} requests, {totals['rows']:,} flights, "
                    f"{totals['errors']} errors, {totals['rows'] / max(totals['seconds'], 1e-9):,.0f} flights/s"
                )
            errors = stderr.read()
            if self._process.wait():
                raise ServiceFailed(f"the client of {self.window[0]} to {self.window[1]} failed:\n{errors[-3000:]}")
        finally:
            self.stop()
        return totals

    def stop(self) -> None:
        """Ends the client if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(10)


def main() -> int:
    """Runs the demo; returns the exit code."""
    parser = arguments("make demo", __doc__)
    parser.add_argument("--svg", type=Path, help="also write the summary as a picture")
    given = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY / "dags"))
    from flights.raw import raw_table

    def perform(stack: Stack, api: AirflowApi, console: Console) -> None:
        demo = Demo(stack, api, Path(raw_table("flights.csv.zip")).parent, console)
        demo.run()
        print_summary(demo.facts, console)
        if given.svg is not None:
            picture = Console(record=True, width=LOG_WIDTH, file=io.StringIO(), highlight=False)
            print_summary(demo.facts, picture)
            picture.save_svg(str(given.svg), title="make demo")

    return show(given, perform)


if __name__ == "__main__":
    sys.exit(main())
