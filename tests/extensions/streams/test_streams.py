"""Topics in DAGs: the connection of type kafka, ranges in the artifact, retries and the cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source, row_source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.streams import TopicSource, TopicTrigger
from airflow_hops.extensions.streams.core.topic import Topic
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.testing.sources import PlannerContract
from tests.extensions.streams.kafka_brokers import Broker, as_json

pytestmark = pytest.mark.runtime


def test_offsets_are_planned_once_and_named_by_the_artifact(
    run_dag: Any, mock_kafka: Broker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, runtime: Any
) -> None:
    extra = {**mock_kafka.config, "sasl.password": "hidden-in-all-files"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    hops = {"store": str(tmp_path / "store"), "runtime": str(runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_STREAMS", json.dumps({"conn_type": "hops", "extra": hops}))
    mock_kafka.send("events", [(n % 4, as_json(id=n)) for n in range(40)])
    run = run_dag("streams", {"hops_conn_id": "hops_streams"}, "tests/extensions/streams/dags")
    (task,) = run.get_task_instances()
    assert task.state == "success"
    artifact = Artifact.from_dict({k: v for k, v in task.xcom_pull("ingest").items() if k != "seconds"})
    assert artifact.rows["events"].rows_out == 40
    store = ArtifactStore(hops["store"])
    ranges = {"topic": "events", "topic_id": None, "window": None, "offsets": {str(n): [0, 10] for n in range(4)}}
    assert store.manifest(artifact.uri).properties["plans"] == {"events": ranges}
    (plan,) = (tmp_path / "store" / "_state").rglob("ranges/*/*.json")
    assert json.loads(plan.read_text()) == ranges
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"hidden-in-all-files" in path.read_bytes()]


def test_only_ingest_reads_topics() -> None:
    with pytest.raises(BadInput, match="only IngestOperator reads kafka://; ingest it first"):
        list_files(Source("kafka://events"))
    with pytest.raises(BadInput, match=r"does not name files; pass a TopicSource, or only the URI"):
        row_source("events", Source("kafka://events"))
    with pytest.raises(BadInput, match="a TopicSource begins with kafka://"):
        TopicSource("/data")
    with pytest.raises(BadInput, match="format is 'csv', expected one of json, avro"):
        TopicSource("kafka://events", format="csv")


class TestTopicPlan(PlannerContract):
    @pytest.fixture
    def source(self, mock_kafka: Broker) -> TopicSource:
        mock_kafka.send("events", [(0, as_json(id=1))])
        return TopicSource("kafka://events", storage_options=mock_kafka.config)

    @pytest.fixture
    def hook(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuntimeHook:
        monkeypatch.setenv("AIRFLOW__HOPS__STORE", str(tmp_path / "store"))
        return RuntimeHook()

    @pytest.fixture
    def change(self, mock_kafka: Broker) -> Callable[[], Any]:
        return lambda: mock_kafka.send("events", [(0, as_json(id=2))])


class AssetState:
    """The state of an asset, as the triggerer hands it to a trigger."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


@pytest.fixture
def polls(mock_kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Awaitable[None]]:
    """Connects triggers to the broker; waits for a number of further polls of a running one."""
    connection = {"conn_type": "kafka", "extra": mock_kafka.config}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    counted, partitions = [0], Topic.partitions

    def counting(topic: Topic) -> list[int]:
        counted[0] += 1
        return partitions(topic)

    monkeypatch.setattr(Topic, "partitions", counting)

    async def wait(number: int) -> None:
        wanted = counted[0] + number
        async with asyncio.timeout(400):
            while counted[0] < wanted:
                await asyncio.sleep(0.01)

    return wait


def test_trigger_fires_once_for_new_records_and_those_of_an_outage(
    mock_kafka: Broker, polls: Callable[[int], Awaitable[None]]
) -> None:
    state = AssetState()

    def events() -> AsyncIterator[TriggerEvent]:
        path, arguments = TopicTrigger("events", poll_s=0.02).serialize()
        assert path == "airflow_hops.extensions.streams.triggers.TopicTrigger"
        trigger = TopicTrigger(**arguments)
        trigger.asset_state_store = state  # type: ignore[assignment]
        return trigger.run()

    async def watch() -> None:
        mock_kafka.send("events", [(0, b"old")] * 3)
        running = events()
        waiting = asyncio.ensure_future(anext(running))
        await polls(3)
        assert not waiting.done(), "records from before the watch fire nothing"
        mock_kafka.send("events", [(0, b"new"), (2, b"new"), (2, b"new")])
        records = 0
        while records < 3:  # a poll between two records sees one of them
            records += (await asyncio.wait_for(waiting, 400)).payload["records"]
            waiting = asyncio.ensure_future(anext(running))
        await polls(3)
        assert not waiting.done(), "an event comes once"
        assert records == 3
        assert state.values["hops_topic_ends.events"] == {"0": 4, "1": 0, "2": 2, "3": 0}
        waiting.cancel()
        mock_kafka.send("events", [(1, b"while no triggerer runs")])
        event = await asyncio.wait_for(anext(events()), 400)
        assert event.payload == {"topic": "events", "records": 1, "offsets": {"1": [0, 1]}}

    asyncio.run(watch())


def test_shared_trigger_fires_without_state(mock_kafka: Broker, polls: Callable[[int], Awaitable[None]]) -> None:
    trigger = TopicTrigger("events", poll_s=0.02)
    trigger.asset_state_store = AssetStateStoreAccessors([Asset("one"), Asset("two")])

    async def watch() -> Any:
        mock_kafka.send("events", [(0, b"old")])
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await polls(2)
        mock_kafka.send("events", [(0, b"new")])
        return (await asyncio.wait_for(waiting, 400)).payload

    assert asyncio.run(watch()) == {"topic": "events", "records": 1, "offsets": {"0": [1, 2]}}


def test_watched_asset_takes_the_trigger() -> None:
    asset = Asset("events", watchers=[AssetWatcher(name="kafka", trigger=TopicTrigger("events"))])
    with DAG("watched", schedule=[asset]) as dag:
        pass
    assert DagSerialization.to_dict(dag)
    assert isinstance(asset.watchers[0].trigger, BaseEventTrigger)
