"""Topics in DAGs: the connection of type kafka, ranges in the artifact, retries and the cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka_brokers import Broker, as_json

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.sources import Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.source_files import list_files

pytestmark = pytest.mark.runtime


def test_offsets_are_planned_once_and_named_by_the_artifact(
    run_dag: Any, mock_kafka: Broker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, runtime: Any
) -> None:
    monkeypatch.setattr("airflow_hops.core.streams.topic.ADMIN_TIMEOUT_S", 1.0)
    extra = {**mock_kafka.config, "sasl.password": "hidden-in-all-files"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    hops = {"store": str(tmp_path / "store"), "runtime": str(runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_STREAMS", json.dumps({"conn_type": "hops", "extra": hops}))
    mock_kafka.send("events", [(n % 4, as_json(id=n)) for n in range(40)])
    run = run_dag("streams", {"hops_conn_id": "hops_streams"})
    (task,) = run.get_task_instances()
    assert task.state == "success"
    artifact = Artifact.from_dict({k: v for k, v in task.xcom_pull("ingest").items() if k != "seconds"})
    assert artifact.rows["events"].rows_out == 40
    store = ArtifactStore(hops["store"])
    ranges = {"topic": "events", "topic_id": None, "window": None, "offsets": {str(n): [0, 10] for n in range(4)}}
    assert store.manifest(artifact.uri).properties["topics"] == {"events": ranges}
    (plan,) = (tmp_path / "store" / "_state").rglob("ranges/*/*.json")
    assert json.loads(plan.read_text()) == ranges
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"hidden-in-all-files" in path.read_bytes()]


def test_only_ingest_reads_topics() -> None:
    with pytest.raises(BadInput, match="is a Kafka topic, which only IngestOperator reads; ingest it first"):
        list_files(Source("kafka://events"))
    with pytest.raises(BadInput, match="offsets and allow_gaps are for topics"):
        Source("/data", allow_gaps=True)
    with pytest.raises(BadInput, match="format is 'csv', expected one of json, avro, protobuf"):
        Source("kafka://events", format="csv")
