"""Each record of a topic is in one snapshot, whatever happens to the runs that take it."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import recorded_ranges
from airflow_hops.extensions.streams.core.topic_ranges import TopicRanges
from tests.extensions.streams.kafka_brokers import Broker
from tests.ml.extensions.streams.test_topic import time_lookup  # noqa: F401
from tests.ml.taken_histories import Runs

HOURS, LATE = 5, 2
BEGIN_S, HOUR_S = 1_790_002_800, 3600


@dataclass
class TopicRuns(Runs):
    """Runs of the windows of a topic, to which records are sent while two of them plan.

    Attributes:
        waiting: Records that are not sent yet: partition, value, and time in milliseconds.
        sent: Values that were sent, by partition and offset.
    """

    store: ArtifactStore
    source: TopicSource
    broker: Broker
    waiting: list[tuple[int, bytes, int]] = field(default_factory=list)
    sent: dict[str, list[str]] = field(default_factory=dict)
    runs: int = 0

    def send(self, count: int) -> None:
        """Sends the first of the records that wait."""
        records, self.waiting[:count] = self.waiting[:count], []
        for partition, value, _ in records:
            self.sent.setdefault(str(partition), []).append(value.decode())
        self.broker.send(self.source.uri.removeprefix("kafka://"), records)

    def plan(self, hour: int) -> TopicRanges:
        self.runs += 1
        window = tuple(datetime.fromtimestamp(BEGIN_S + each * HOUR_S, UTC).isoformat() for each in (hour, hour + 1))
        task = Producer("dag", f"run-{self.runs}", "ingest")
        return recorded_ranges(self.store, task, "t", self.source, window)  # type: ignore[arg-type]

    def read(self, hour: int, plan: TopicRanges) -> list[str]:
        offsets = plan.offsets.items()
        return sorted(name for partition, (start, end) in offsets for name in self.sent.get(partition, [])[start:end])

    def commit(self, plan: TopicRanges) -> None:
        """No-op: a window's records are its own once they are planned."""

    def plan_both(self, first: int, second: int) -> list[tuple[int, Any]]:
        with ThreadPoolExecutor(2) as threads:
            plans = [(hour, threads.submit(self.plan, hour)) for hour in (first, second)]
            self.send(1)
            self.send(1)
            return [(hour, plan.result()) for hour, plan in plans]


def simulate(seed: int, broker: Broker, store: ArtifactStore) -> Counter[str]:
    rng, events, name = random.Random(seed), Counter[str](), f"events-{seed}"
    source = TopicSource(f"kafka://{name}", storage_options=broker.config)
    early = (0, b"early", BEGIN_S * 1000 - 1)
    runs = TopicRuns(store, source, broker, [early])
    runs.send(1)
    records: dict[int, list[tuple[int, bytes, int]]] = {}
    names = [f"r{number}" for number in range(rng.randint(5, 25))]
    for each in names:
        at_s = rng.uniform(0, HOURS) * HOUR_S
        # Early for a client whose clock is fast, late for a delayed delivery.
        hour = int(at_s // HOUR_S) + rng.choice([-1, 0, 0, 0, 1, LATE])
        records.setdefault(hour, []).append((rng.randrange(2), each.encode(), (BEGIN_S * 1000) + int(at_s * 1000)))
    for hour in runs.history(rng, HOURS + LATE + 1, HOURS + LATE, events):
        runs.waiting += rng.sample(lines := records.get(hour, []), len(lines))
        runs.send(rng.randint(0, len(runs.waiting)) if hour < HOURS + LATE else len(runs.waiting))
    for hour in range(HOURS + LATE + 1):  # those that were killed or never begun
        runs.run(hour)
    assert runs.counts() == Counter(names), f"seed {seed}"
    return events


def test_each_record_is_taken_once(mock_kafka: Broker, tmp_path: Any, time_lookup: None) -> None:  # noqa: F811
    for seed in range(10):
        simulate(seed, mock_kafka, ArtifactStore(str(tmp_path / str(seed))))


@pytest.mark.scheduled(part="campaigns")
@pytest.mark.timeout(3600)
def test_each_record_of_200_histories_is_taken_once(
    mock_kafka: Broker,
    tmp_path: Any,
    time_lookup: None,  # noqa: F811
) -> None:
    for seed in range(1000, 1200):
        simulate(seed, mock_kafka, ArtifactStore(str(tmp_path / str(seed))))
