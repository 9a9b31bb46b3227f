"""Simulates rollouts whose truth is known: polls, counts and comparisons are real, clients and clock are not."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.rollout import progress
from airflow_hops.core.rollout.decision import RolloutDecision
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.ml.rollout import canary as rollouts

STABLE, CANARY = 1, 2
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_EDGES = 0.1 * 1.1 ** np.arange(150)
_TIMEOUT_S = 1e6
OUTPUTS = {"one_hot": ("probabilities",), "regression": ("prediction",), "several": ("first", "second")}


@dataclass(frozen=True)
class Point:
    """A kind of history.

    Attributes:
        rows: Requests that the canary needs in each step.
        answers: ``continuous``, ``leaves`` (one of three values, mostly the same), ``one_hot``, ``constant``, ``nan``
            (of some rows), ``regression`` (heavy tails) or ``several`` outputs.
        clients: ``turns`` of twenty, of which one fails often; ``bursts`` of failures and of equal rows; ``failing``:
            one of twenty always; ``retries`` of failed requests; ``batches`` of equal rows; ``heavy``: one client sends
            most requests.
        labels: ``balanced``, ``rare`` (1%), ``uneven`` (rare, of all of the canary's rows and a tenth of the others) or
            ``none``.
        canary: ``equal`` to the stable version; ``failing`` three times as often, ``slow``, ``constant``, ``shifted``,
            ``not_finite`` or ``inaccurate``.
        bake_s: Bake time at 100%; 0 to promote before.
        distance: Tolerated distance of predictions.
    """

    rows: int
    answers: str = "continuous"
    clients: str = "turns"
    labels: str = "none"
    canary: str = "equal"
    bake_s: float = 0.0
    distance: float | None = None


@dataclass
class _Clients:
    """Sends requests, and knows what either version answers."""

    point: Point
    random: np.random.Generator
    sent: int = 0
    outage: bool = False
    answered: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[int, Any] = field(default_factory=dict)

    def send(self, requests: int, percent: int) -> None:
        """Sends requests, ``percent`` of them to the canary."""
        point, random = self.point, self.random
        clients = (self.sent + np.arange(requests)) % 20
        fails = random.random(requests) < np.where(clients == 3, 0.5, 0.02)
        x, slow = random.normal(size=requests), np.ones(requests)
        if point.clients == "bursts":
            outage = self._outages(requests)
            fails, slow = random.random(requests) < np.where(outage, 0.6, 0.005), np.where(outage, 8.0, 1.0)
            x = np.where(outage, 1.5, x)
        elif point.clients == "failing":
            fails = clients == 7
        elif point.clients == "heavy":
            fails = clients == 3
            clients = np.where(random.random(requests) < 0.8, 5, clients)
            x = np.where(clients == 5, 0.7, x)
        elif point.clients == "retries":
            again = np.repeat(np.arange(requests), np.where(random.random(requests) < 0.05, 4, 1))[:requests]
            fails = np.bincount(again, minlength=requests)[again] > 1
            x = x[again]
        to_canary = 100 * random.random(requests) >= 100 - percent
        self.sent += requests
        latencies = slow * 10 * np.exp(0.3 * random.normal(size=requests))
        if point.canary == "failing":
            fails |= to_canary & (random.random(requests) < 0.09)
        elif point.canary == "slow":
            latencies = np.where(to_canary, 4 * latencies, latencies)
        rows = random.integers(1, 40, requests) if point.clients == "batches" else np.ones(requests, int)
        for version, mine in ((STABLE, ~to_canary), (CANARY, to_canary)):
            self._count(version, fails[mine], latencies[mine])
            good = mine & ~fails
            self._answer(version, np.flatnonzero(good) + self.sent, x[good], rows[good])

    def _outages(self, requests: int) -> Any:
        ends = self.random.random(requests)
        outages = np.empty(requests, bool)
        for number in range(requests):
            self.outage = bool(ends[number] > 0.02) if self.outage else bool(ends[number] < 0.002)
            outages[number] = self.outage
        return outages

    def _count(self, version: int, fails: Any, latencies: Any) -> None:
        counts = np.histogram(latencies[~fails], _EDGES)[0]
        self.totals[version] = self.totals.get(version, 0) + np.concatenate([[len(fails), fails.sum()], counts])

    def _answer(self, version: int, ids: Any, x: Any, rows: Any) -> None:
        point, random = self.point, self.random
        x, ids = np.repeat(x, rows), np.repeat(ids, rows)
        size, changed = len(x), point.canary if version == CANARY else "equal"
        truth = 1 / (1 + np.exp(-1.5 * x))
        rare = 0.02 * truth
        chance = rare if point.labels in ("rare", "uneven") else truth
        labels = (random.random(size) < chance).astype(float)
        answer = np.clip(chance * np.exp(0.1 * x), 1e-4, 1 - 1e-4)
        if changed == "inaccurate":
            answer = np.clip(np.where(random.random(size) < 0.5, 1 - answer, answer), 1e-4, 1 - 1e-4)
        elif changed == "shifted":
            answer = np.clip(answer + 0.45, 1e-4, 1 - 1e-4)
        if point.answers == "leaves":
            answer = np.where(x > 1.9, 0.7, np.where(x > 1.6, 0.4, 0.05)) + 0.25 * (changed == "shifted")
        elif point.answers == "constant":
            answer = np.full(size, 0.3 + 0.2 * (changed == "shifted"))
        elif point.answers == "regression":
            labels = np.exp(1.5 * x)
            answer = labels * np.exp(random.normal(size=size) * (3 if changed == "inaccurate" else 1))
            answer = answer * (20 if changed == "shifted" else 1)
        elif point.answers == "nan":
            answer = np.where(x > 1.6, np.nan, answer)
        if changed == "constant":
            answer = np.full(size, 0.31)
        elif changed == "not_finite":
            answer = np.where(random.random(size) < 0.1, np.nan, answer)
        values = {"probability": answer}
        if point.answers == "one_hot":
            classes = np.where(x > 1.9, 2, np.where(x > 1.6, 1, 0))
            classes = np.zeros(size, int) if changed == "constant" else (classes + (changed == "shifted")) % 3
            labels = np.where(random.random(size) < 0.05, 2, np.where(x > 1.9, 2, np.where(x > 1.6, 1, 0)))
            values = {"probabilities": list(np.eye(3)[classes])}
        elif point.answers in OUTPUTS:
            values = dict.fromkeys(OUTPUTS[point.answers], answer)
        share = 0.1 if point.labels == "uneven" and version == STABLE else 1.0
        self.answered.append(
            {"version": version, "ids": ids, "values": values, "labels": labels, "known": random.random(size) < share}
        )


@dataclass
class _World:
    """Record, server and captured requests of one history."""

    point: Point
    clients: _Clients
    record: ModelRecord
    at: datetime = _BEGIN
    stamps: list[datetime] = field(default_factory=list)
    tables: dict[tuple[str, int], pa.Table] = field(default_factory=dict)

    def now(self) -> str:
        self.at += timedelta(milliseconds=1)
        return self.at.isoformat(timespec="milliseconds")

    def seconds_since(self, at: str) -> float:
        return (self.at - datetime.fromisoformat(at)).total_seconds()

    def send(self, requests: int, percent: int) -> None:
        earlier = len(self.clients.answered)
        self.clients.send(requests, percent)
        self.at += timedelta(seconds=1)
        self.stamps += [self.at] * (len(self.clients.answered) - earlier)

    def counts(self, model_name: str, since: str | None = None) -> dict[int, dict[str, Any]]:
        entries = {}
        for version, total in self.clients.totals.items():
            rows = [
                (lower, upper, count)
                for lower, upper, count in zip(_EDGES[:-1], _EDGES[1:], total[2:], strict=True)
                if count
            ]
            figures = {"requests": int(total[0]), "errors": int(total[1]), "client_errors": 0}
            entries[version] = {**figures, "latency_ms_histogram": rows, "server_since": 1.0}
        return entries

    # The captured requests, as read_captured() asks for them.
    def names(self, version: int) -> list[str]:
        return [f"99990101T000000.000000Z-v{version}-0"]

    def footer(self, name: str) -> Any:
        return SimpleNamespace(schema=SimpleNamespace(to_arrow_schema=lambda: self.table(name).schema))

    def table(self, name: str, columns: Any = None) -> pa.Table:
        key = name, len(self.clients.answered)
        if key not in self.tables:
            self.tables[key] = self._table(name)
        return self.tables[key]

    def _table(self, name: str) -> pa.Table:
        version = int(name.split("-v")[1].split("-")[0])
        parts = [
            (part, stamp)
            for part, stamp in zip(self.clients.answered, self.stamps, strict=True)
            if part["version"] == version
        ]
        ids = np.concatenate([part["ids"] for part, _ in parts])
        stamps = np.concatenate([np.full(len(part["ids"]), int(stamp.timestamp() * 1e6)) for part, stamp in parts])
        outputs = {
            f"output.{name}": pa.array([value for part, _ in parts for value in part["values"][name]])
            for name in parts[0][0]["values"]
        }
        return pa.table(
            {
                "request_id": pa.array(ids).cast(pa.string()),
                "row": pa.array(_row_numbers(ids), pa.int32()),
                **outputs,
                "captured_at": pa.array(stamps, pa.int64()).cast(pa.timestamp("us", "UTC")),
            }
        )

    def feedback(self) -> pa.Table:
        ids = [np.concatenate([part["ids"] for part in self.clients.answered])]
        rows, known, labels = (
            np.concatenate(values)
            for values in (
                [_row_numbers(part["ids"]) for part in self.clients.answered],
                [part["known"] for part in self.clients.answered],
                [part["labels"] for part in self.clients.answered],
            )
        )
        known &= self.point.labels != "none"
        times = pa.array(np.zeros(known.sum(), np.int64)).cast(pa.timestamp("us", "UTC"))
        return pa.table(
            {
                "request_id": pa.array(ids[0][known]).cast(pa.string()),
                "row": pa.array(rows[known], pa.int32()),
                "at": times,
                "received_at": times,
                "label.value": pa.array(labels[known]),
            }
        )


def _row_numbers(ids: Any) -> Any:
    """Numbers of the rows within their requests, which follow each other."""
    first = np.flatnonzero(np.diff(ids, prepend=-1))
    return np.arange(len(ids)) - np.repeat(first, np.diff(np.append(first, len(ids))))


def simulate(point: Point, seed: int, patch: pytest.MonkeyPatch) -> RolloutDecision:
    """Rolls one canary out; the clients' requests end when a step has four times those that it needs."""
    clients = _Clients(point, np.random.default_rng(seed))
    model = Artifact("file:///m", "model", "f", properties={"label": "value"})
    world = _World(point, clients, ModelRecord())
    patch.setattr("airflow_hops.core.models.model_record.now", world.now)
    for module in (progress, rollouts):
        patch.setattr(module, "now", world.now)
        patch.setattr(module, "seconds_since", world.seconds_since)
    champion, challenger = ServedVersion.of(model, STABLE, "", 95), ServedVersion.of(model, CANARY, "", 5)
    world.record = ModelRecord(champion, challenger)
    patch.setattr(rollouts, "read_record", lambda *_: world.record)
    patch.setattr(rollouts, "write_record", lambda _store, _name, record: setattr(world, "record", record))
    patch.setattr(rollouts, "enforce", lambda *_: None)
    patch.setattr(rollouts, "settle", lambda *_: None)
    patch.setattr("airflow_hops.ml.captured.requests.CapturedRequests.of", lambda *_: world)
    nothing = lambda *_: None  # noqa: E731
    server: Any = SimpleNamespace(
        exclusive=lambda *_: contextlib.nullcontext(),
        serve_again=nothing,
        last_error=lambda *_: "",
        counts=world.counts,
        has_stats=True,
        reads_log=False,
        flush_capture=nothing,
    )
    producer = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, iteration=-1)
    services = {"serving_host": "127.0.0.1", "serving_port": "1"}
    spec = SimpleNamespace(producer=producer, services=services)
    context: Any = SimpleNamespace(spec=spec, store=None, progress=nothing)
    plan = RolloutPlan.of(
        [5, 25, 50, 100],
        [0.0, 0.0, 0.0, point.bake_s],
        min_requests=point.rows,
        timeout_s=_TIMEOUT_S,
        on_timeout="roll_back",
        approval=False,
        keep_versions=2,
        longest_wait_s=60.0,
    )
    limits = Limits(max_prediction_distance=point.distance)
    rollout = rollouts.CanaryRollout(context, server, "m", CANARY, plan, limits)
    for _ in range(200):
        outcome = rollout.poll()
        if isinstance(outcome, RolloutDecision):
            return outcome
        assert world.record.challenger is not None and world.record.challenger.rollout is not None
        state = world.record.challenger.rollout
        asked = state.counts(CANARY).requests
        if asked >= 4 * point.rows:  # the clients have gone
            world.at += timedelta(seconds=_TIMEOUT_S if state.percent < 100 else point.bake_s)
            if state.percent == 100 and asked >= 8 * point.rows:
                world.at += timedelta(seconds=_TIMEOUT_S)
        last = world.counts("m").get(CANARY, {}).get("requests", 0)
        missing = max((getattr(outcome, "requests", 0) or 0) - last, 1)
        world.send(math.ceil(missing * 100 / state.percent), state.percent)
    raise BadInput(f"{point}: undecided after 200 polls")


def rolled_back(point: Point, histories: int, seed: int = 0) -> int:
    """Number of histories that end with a rollback."""
    with pytest.MonkeyPatch.context() as patch:
        decisions = [simulate(point, seed + number, patch) for number in range(histories)]
    return sum(decision.decision == "rolled_back" for decision in decisions)
