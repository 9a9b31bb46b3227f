"""Rollouts of models that score tables, with the rollout of a server and feedback as the oracle."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign
from scipy.stats import binom

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.capture_layout import name_time
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, read_record, write_record
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.rollout import progress
from airflow_hops.core.rollout.decision import RolloutDecision
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.extensions.scoring.ml.batches import canary_side
from airflow_hops.ml.rollout import canary as rollouts
from airflow_hops.ml.rollout import late_labels
from tests.ml.world import World

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S, TIMEOUT_NIGHTS = 86_400.0, 9
STABLE, CANARY = 1, 2
MODEL = Artifact("file:///m", "model", "f", properties={"label": "churned", "problem": "binary"})


@dataclass(frozen=True)
class Point:
    """A kind of history.

    Attributes:
        canary: ``equal`` to the stable version, ``inaccurate``, or ``failing`` on 8% of the rows.
        labels: Which come: ``all``, ``few`` (a twentieth), ``none``, or those of the ``champion`` alone.
        delay: Days until a label comes: a number, or ``label``: one day if it is 1, else five.
        again: Whether the same keys are scored each night, and are hard to predict each time.
    """

    canary: str = "equal"
    labels: str = "all"
    delay: str = "2"
    again: bool = False
    rows: int = 300


class Nights:
    """One history: rows of each night, their scores by both versions, and the labels that have come.

    ``kind`` is ``batch``, with captured rows by key and a table of labels, or ``bundled``, with the same rows as
    requests and labels as feedback by their IDs.
    """

    def __init__(self, world: World, kind: str, point: Point, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.world, self.kind, self.point, self.random = world, kind, point, np.random.default_rng(seed)
        self.at, self.night, self.fingerprint = BEGIN, 0, f"{seed}" * 9
        self.folder = world.folder / f"{kind}-{seed}"
        (self.folder / "m" / "_feedback").mkdir(parents=True)
        self.counted: list[tuple[datetime, int, int, int]] = []
        self.known: list[pa.Table] = []
        self.hard = self.random.random(point.rows)
        patch.setattr("airflow_hops.core.models.model_record.now", self.now)
        for module in (progress, rollouts):
            patch.setattr(module, "now", self.now)
            patch.setattr(module, "seconds_since", self.seconds_since)
        self.reads: list[object] = []
        read = late_labels.read_labels
        patch.setattr(late_labels, "read_labels", lambda *args: self.reads.append(args) or read(*args))
        for name in ("enforce", "settle"):
            patch.setattr(rollouts, name, lambda *_: None)
        canary = replace(ServedVersion.of(MODEL, CANARY, "", 20), fingerprint=self.fingerprint)
        write_record(world.store, "m", ModelRecord(ServedVersion.of(MODEL, STABLE, "", 80), canary))

    def now(self) -> str:
        self.at += timedelta(milliseconds=1)
        return self.at.isoformat(timespec="milliseconds")

    def seconds_since(self, at: str) -> float:
        return (self.at - datetime.fromisoformat(at)).total_seconds()

    def counts(self, model_name: str, since: str | None = None) -> dict[int, dict[str, Any]]:
        start = datetime.fromisoformat(since or "") if self.kind == "batch" else BEGIN
        entries = {}
        for version in (STABLE, CANARY):
            mine = [each for each in self.counted if each[0] >= start and each[1] == version]
            figures = {"requests": sum(each[2] for each in mine), "errors": sum(each[3] for each in mine)}
            entries[version] = {**figures, "client_errors": 0, "server_since": 1.0}
        return entries

    def score(self, percent: int) -> None:
        """Scores a night's rows, and adds the labels that have come since the last."""
        point, random = self.point, self.random
        self.night += 1
        end = BEGIN + timedelta(days=self.night)
        self.at = end + timedelta(minutes=5)
        first = 0 if point.again else self.night * point.rows
        keys = pa.array([f"c{first + number}" for number in range(point.rows)])
        side = canary_side(keys, self.fingerprint, percent)
        chance = 0.1 + 0.8 * random.random(point.rows)
        label = (random.random(point.rows) < chance).astype(float)
        if point.again:  # a tenth of the customers surprise each night
            label = np.where(self.hard < 0.1, chance < 0.5, chance > 0.5).astype(float)
        answer, wrong = chance, random.random(point.rows)
        if point.canary == "inaccurate":
            answer = np.where(side & (wrong < 0.5), 1 - chance, chance)
        fails = side & (wrong < 0.08) & (point.canary == "failing")
        names = [
            f"{key}@{end.isoformat()}" if self.kind == "batch" else f"{key}-{self.night}" for key in keys.to_pylist()
        ]
        captured = {
            "request_id": pa.array(names), "row": pa.array(np.zeros(point.rows, np.int32)),
            "api": [{"batch": "batch", "bundled": "REST"}[self.kind]] * point.rows,
            "version": np.where(side, CANARY, STABLE), "output.probability": answer,
            "captured_at": pa.array([self.at] * point.rows, pa.timestamp("us", "UTC")),
        }  # fmt: skip
        for version, mine in ((STABLE, ~side), (CANARY, side)):
            self.counted.append((self.at, version, int(mine.sum()), int((fails & mine).sum())))
            table = pa.table(captured).filter(pa.array(mine & ~fails))
            pq.write_table(table, self.folder / "m" / f"{name_time(self.at)}-v{version}-{self.night}.parquet")
        comes = random.random(point.rows) < {"few": 0.05, "none": 0.0}.get(point.labels, 1.0)
        comes &= ~side if point.labels == "champion" else True
        days = np.where(label == 1, 1.0, 5.0) if point.delay == "label" else np.full(point.rows, float(point.delay))
        times = pa.array([end + timedelta(days=each) for each in days], pa.timestamp("us", "UTC"))
        columns = {"customer": keys, "at": times, "label": label, "request_id": names}
        self.known.append(pa.table(columns).filter(pa.array(comes)))
        table = pa.concat_tables(self.known)
        table = table.filter(pa.compute.less_equal(table["at"], pa.scalar(self.at, pa.timestamp("us", "UTC"))))
        if self.kind == "batch":
            older = pa.table({"customer": ["c1"], "at": [BEGIN - timedelta(days=1)], "churned": [0.5]})
            table = table.select(["customer", "at", "label"]).rename_columns(["customer", "at", "churned"])
            pq.write_table(pa.concat_tables([table, older.cast(table.schema)]), self.folder / "labels.parquet")
        elif table.num_rows:
            rows = pa.array(np.zeros(table.num_rows, np.int32))
            values = [table["request_id"], rows, table["at"], table["at"], table["label"]]
            feedback = pa.table(values, names=["request_id", "row", "at", "received_at", "label.churned"])
            pq.write_table(feedback, self.folder / "m" / "_feedback" / "labels.parquet")

    def roll_out(self, **limits: Any) -> RolloutDecision:
        """Polls after each night until the canary is decided."""
        nothing = lambda *_: None  # noqa: E731
        server: Any = SimpleNamespace(
            exclusive=lambda *_: contextlib.nullcontext(), serve_again=nothing, last_error=lambda *_: "",
            counts=self.counts, has_stats=self.kind == "bundled", reads_log=False, flush_capture=nothing,
        )  # fmt: skip
        plan = RolloutPlan.of(
            [20, 50, 100], 0.0, min_requests=100, timeout_s=TIMEOUT_NIGHTS * DAY_S, on_timeout="leave",
            approval=False, keep_versions=2, longest_wait_s=3600.0,
        )  # fmt: skip
        labels = None
        if self.kind == "batch":
            source = {"uri": str(self.folder / "labels.parquet")}
            labels = PerformanceOptions("m", source, keys=["customer"], label_time="at", horizon_s=5.5 * DAY_S)
        services = {"serving_capture_path": str(self.folder)}
        for _ in range(60):
            challenger = read_record(self.world.store, "m").challenger
            assert challenger is not None
            self.score(challenger.traffic_percent)
            context = self.world.context(services=services)
            rules = Limits(**{"wait_for_labels": True, **limits})
            self.reads.clear()
            outcome = rollouts.CanaryRollout(context, server, "m", CANARY, plan, rules, labels).poll()
            assert len(self.reads) <= 1, "of their source, in one poll"
            if isinstance(outcome, RolloutDecision):
                return outcome
        raise BadInput(f"{self.point}: undecided")

    def events(self) -> Iterator[tuple[str, str]]:
        for event in read_record(self.world.store, "m").history:
            yield event.event, event.at[:10]


def both(world: World, point: Point, seed: int, patch: pytest.MonkeyPatch) -> tuple[RolloutDecision, list[Any]]:
    """Rolls out with and without a server, and returns the decision and its events, which are the same."""
    results = []
    for kind in ("bundled", "batch"):
        nights = Nights(world, kind, point, seed, patch)
        decision = nights.roll_out()
        figures = [
            {name: each.numbers.get(name) for name in ("canary_rows", "stable_rows", "canary_loss", "p_value")}
            for each in decision.findings if each.what == "labels"
        ]  # fmt: skip
        results.append((decision, [*nights.events()], figures))
    (expected, events, figures), (decision, own_events, own_figures) = results
    assert (decision.decision, own_events) == (expected.decision, events), (decision.reasons, expected.reasons)
    assert (decision.canary, decision.stable) == (expected.canary, expected.stable)
    assert own_figures == figures
    return decision, events


@pytest.mark.parametrize(
    ("point", "decision", "reason"),
    [
        (Point(), "promoted", "labels: log loss of 'probability' is"),
        (Point("inaccurate"), "rolled_back", "labels: log loss of 'probability' is"),
        (Point("inaccurate", delay="label"), "rolled_back", "labels: log loss"),
        (Point("failing"), "rolled_back", "errors: "),
        (Point("inaccurate", labels="few"), None, ""),
        (
            Point(labels="none"),
            "left",
            "not judged within 777600 s: labels: no step has labelled rows of both versions yet",
        ),
        (Point("inaccurate", labels="champion"), "left", "no step has labelled rows of both versions yet; labels: "),
        (Point(delay="20"), "left", "no step has labelled rows of both versions yet"),
    ],
    ids=lambda each: f"{each.canary}-{each.labels}-{each.delay}" if isinstance(each, Point) else "",
)
def test_rollout_decides_as_with_a_server(
    world: World, monkeypatch: pytest.MonkeyPatch, point: Point, decision: str | None, reason: str
) -> None:
    result, events = both(world, point, 1, monkeypatch)
    assert decision in (None, result.decision) and reason in " ".join(result.reasons), result.reasons
    if decision == "left":
        assert events == [("left", f"2026-01-{3 + TIMEOUT_NIGHTS}")], "not before the timeout"


@campaign("histories", 3, 400)
def test_any_canary_is_decided_as_with_a_server(world: World, monkeypatch: pytest.MonkeyPatch, histories: int) -> None:
    for seed in range(histories):
        random = np.random.default_rng(seed)
        kinds = (("equal", "inaccurate", "failing"), ("all", "few", "none", "champion"), ("0", "2", "7", "label"))
        canary, labels, delay = (str(random.choice(names)) for names in kinds)
        both(world, Point(canary, labels, delay, rows=int(random.integers(50, 400))), seed, monkeypatch)


@campaign("histories", 4, 400)
def test_equal_canaries_of_keys_that_come_again_are_seldom_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch, histories: int
) -> None:
    """A key stays with its version, so a hard one weighs on the same side each night."""
    rolled_back = Counter[str]()
    for seed in range(histories):
        decision = Nights(world, "batch", Point(again=True, delay="1"), seed, monkeypatch).roll_out()
        rolled_back.update({decision.decision})
    assert rolled_back["rolled_back"] <= binom.ppf(1 - 1e-4, histories, 0.01), rolled_back
