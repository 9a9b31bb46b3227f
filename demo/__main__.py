"""``make demo``: the whole loop on real data, told stage by stage in the terminal.

Trains on January to March 2013, serves, has the gate refuse a model that was trained for a single epoch, replays the
flights from April on as live prediction requests, half a month at a time, and has the monitor look at each. Follows the
retraining that it asks for, answers what that asks about its data, replays two more months while the canary takes its
share, step by step, and compares both versions on those. Whatever comes out is what the last lines say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from airflow_hops import Artifact
from airflow_hops.core.processes.cpu_time import GivenTime
from airflow_hops.core.schema.history import has_schema, request_reset
from airflow_hops.extensions import step_variables
from demo.airflow_api import AirflowApi
from demo.follow import follow
from demo.replay import Replay
from demo.services import REPOSITORY, ServiceFailed, Stack
from demo.showing import Ending, arguments, show
from demo.summary import Facts, print_tables, story

TRAINING, MONITORING = "flights_training", "flights_monitoring"
FIRST_WINDOW = ("2013-01-01", "2013-04-01")
LIVE_UNTIL = ("2013-04-16", "2013-05-01", "2013-05-16", "2013-06-01", "2013-06-16", "2013-07-01")
"""Ends of the periods after each of which the monitor looks at what was asked, until it finds a drift; by default."""
CANARY_PERIOD = timedelta(days=61)
NOTE = "New routes of the season, approved by make demo"
RETRAINING_APPEARS_S = 30.0


@dataclass
class Demo:
    """One showing of the loop on a running stack."""

    stack: Stack
    api: AirflowApi
    data: Path
    console: Console
    rate: float = 0
    live_until: Sequence[str] = LIVE_UNTIL

    def __post_init__(self) -> None:
        self.facts = Facts(self.stack.artifact_store())

    def run(self) -> None:
        """The loop, start to end.

        Raises:
            RunFailed: a DAG run failed; the message carries the failing task's log.
            ServiceFailed: a service or the client failed.
        """
        self.forget_schema()
        for dag_id in (TRAINING, MONITORING):
            self.api.wait_for_dag(dag_id)
            self.api.end_unfinished_runs(dag_id)
        known = {run["dag_run_id"] for run in self.api.runs(TRAINING)}
        with Replay(self.stack, self.data, FIRST_WINDOW[1], self.rate) as replay:  # reads its tables meanwhile
            self.heading(f"Training on {FIRST_WINDOW[0]} to {FIRST_WINDOW[1]}, and serving")
            self.facts.first = self.train(known)
            self.heading("A cheaper candidate: a single epoch, on the same flights")
            self.facts.cheaper = self.train(known, epochs=1)
            until = self.monitor(replay)
            retraining = self.retraining_run(known)
            if retraining is None:
                self.console.print("No retraining was asked for.")
            else:
                self.heading("Retraining on the wider window, as the monitor asked; the next requests meet the canary")
                self.follow_retraining(retraining, replay, until)
        self.facts.read_serving(self.stack)

    def forget_schema(self) -> None:
        """Has the first run infer the schema anew, whatever an earlier showing approved; its versions stay."""
        store = self.stack.artifact_store()
        uri = store.frozen_schema(TRAINING, "schema")
        if has_schema(store, uri):
            request_reset(store, uri, by="make demo", note="the loop is shown from its beginning")

    def heading(self, text: str) -> None:
        """Prints what begins."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def train(self, known: set[str], **params: Any) -> dict[str, Any]:
        """Runs the training DAG on the first window; its run joins the known ones."""
        window = {"window_start": FIRST_WINDOW[0], "window_end": FIRST_WINDOW[1]}
        run_id = self.api.trigger(TRAINING, {**window, **params})
        known.add(run_id)
        return self.follow_training(run_id)

    def follow_training(self, run_id: str, on_task: Any = lambda task_id, state: None) -> dict[str, Any]:
        """Follows a training, and answers what it asks."""
        from airflow_hops.operators.validation import APPROVE, CONTINUE  # which Airflow's start does not wait for

        def on_question(task_id: str) -> None:
            choice = APPROVE if APPROVE in self.api.question(TRAINING, run_id, task_id)["options"] else CONTINUE
            told = f"the data does not fit the schema; what to do? The answer: {choice} ({NOTE})"
            self.console.print(f"  ? {task_id:<20} {told}", soft_wrap=True)
            self.api.answer(TRAINING, run_id, task_id, choice, NOTE)

        return follow(self.api, TRAINING, run_id, self.console, on_task, on_question)

    def monitor(self, replay: Replay) -> str:
        """Replays period after period and has the monitor look at each, until it asks for a retraining.

        Returns:
            The day up to which flights were replayed.
        """
        since = FIRST_WINDOW[1]
        for until in self.live_until:
            self.heading(f"Live requests: the flights of {since} to {until}; do they look like the training data?")
            replay.go_on(until)
            self.facts.replays[f"{since} to {until}"] = replay.finish(self.console)
            self.flush_capture()
            self.facts.checks.append(follow(self.api, MONITORING, self.api.trigger(MONITORING), self.console))
            since = until
            if self.asked:
                break
        return since

    @property
    def asked(self) -> bool:
        """Whether the newest check has asked for a retraining."""
        task = self.facts.checks[-1].get("request_retraining", {})
        return bool(task.get("state") == "success")

    def flush_capture(self) -> None:
        """Has the server write what it has captured, rather than wait for its own rhythm."""
        import httpx

        url = f"http://127.0.0.1:{self.stack.rest_port}/v1/capture:flush"
        httpx.post(url, timeout=30, trust_env=False).raise_for_status()

    def retraining_run(self, known: set[str]) -> str | None:
        """The run of the training DAG that the monitor's asset event started, or None when it emitted none."""
        given = GivenTime(os.getpid())
        while True:
            for run in self.api.runs(TRAINING):
                if run["dag_run_id"] not in known:
                    return str(run["dag_run_id"])
            if not self.asked or given.seconds() > RETRAINING_APPEARS_S:
                if self.asked:
                    raise ServiceFailed("the monitor asked for a retraining, but no run of flights_training followed")
                return None
            time.sleep(0.3)

    def follow_retraining(self, run_id: str, replay: Replay, since: str) -> None:
        """Follows the retraining, replays the next months once the canary takes traffic, and compares the versions."""
        until = str(date.fromisoformat(since) + CANARY_PERIOD)

        def on_task(task_id: str, state: str) -> None:
            if task_id == "deploy" and state == "success":
                replay.go_on(until, self.canary_table)
                self.facts.canary = f"{since} to {until}"

        self.facts.retraining = self.follow_training(run_id, on_task)
        if self.facts.canary:
            with ThreadPoolExecutor(1) as beside:
                compared = beside.submit(self.compare)
                self.facts.replays[self.facts.canary] = replay.finish(self.console)
            compared.result()

    @property
    def canary_table(self) -> Path:
        """The flights that the canary was asked about, with what came of them."""
        return self.stack.home / "canary.parquet"

    def compare(self) -> None:
        """Scores both versions of this showing on the same flights, in the runtime environment."""
        python = str(self.stack.runtime / "bin" / "python")
        store = self.facts.store
        models = [
            f"{version}={store.local(Artifact.from_dict(tasks['train']['value']))}/saved_model"
            for version, tasks in self.facts.deployed.items()
        ]
        answer = subprocess.run(
            [python, "-P", "-m", "demo.compare", str(self.canary_table), *models],
            env=step_variables(self.stack.runtime, (str(REPOSITORY),)),
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            raise ServiceFailed(f"comparing the versions failed:\n{answer.stderr[-3000:]}")
        self.facts.later = json.loads(answer.stdout.splitlines()[-1])


def main() -> int:
    """Runs the demo; returns the exit code."""
    parser = arguments("make demo", __doc__)
    parser.add_argument(
        "--rate", type=float, default=0, help="most requests a second; as many as are answered by default"
    )
    parser.add_argument(
        "--until",
        nargs="+",
        default=LIVE_UNTIL,
        metavar="DAY",
        help="ends of the periods of live requests (half months)",
    )
    given = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY / "dags"))
    from flights.raw import raw_table

    def perform(stack: Stack, api: AirflowApi, console: Console) -> Ending:
        demo = Demo(stack, api, Path(raw_table("flights.csv.zip")).parent, console, given.rate, given.until)
        demo.run()
        asked_s = sum(totals["seconds"] for totals in demo.facts.replays.values())
        return Ending(TRAINING, story(demo.facts), lambda tables: print_tables(demo.facts, tables), asked_s)

    return show(given, perform)


if __name__ == "__main__":
    sys.exit(main())
