"""Capture to Kafka: the acknowledgement of capture to files, through outages of the broker and killed processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import plan_ranges
from airflow_hops.extensions.streams.serving.capture import CapturedTopic
from airflow_hops.ml.ingest import ingest_table
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import IN_PROCESS
from airflow_hops.serving.capture.batch import WaitingRecords, make_batch
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, pack
from airflow_hops.serving.request_kind import RequestKind
from tests.extensions.streams.kafka_brokers import Broker
from tests.ml.serving.test_capture import Recorder, StartCapture, capture, capture_path, kill_writers, wait_for  # noqa: F401

ROW = {"model": "m0", "version": 1, "signature": "serving_default", "api": "grpc", "latency_ms": 1.0}


@pytest.fixture(params=["mock_kafka", "tansu"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def start(capture: StartCapture, tmp_path: Path) -> Callable[..., Recorder]:  # noqa: F811
    def start_with(broker: Broker, **options: Any) -> Recorder:
        (tmp_path / "kafka.json").write_text(json.dumps(broker.config))
        places = {"base_path": "", "spool_path": str(tmp_path / "spool")}
        return capture(sink=f"kafka://events?config={tmp_path / 'kafka.json'}", **{**places, **options})

    return start_with


def read(broker: Broker, topic: str, count: int) -> list[dict[str, Any]]:
    """Returns all committed messages of a topic, once there are as many as expected."""
    options = {"group.id": "test", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({**broker.config, **options, "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in partitions])
    values: list[dict[str, Any]] = []
    ended: set[int] = set()

    def all_read() -> bool:
        for message in consumer.consume(1000, timeout=0.1):
            if message.error() is None:
                ended.discard(message.partition())
                values.append({**json.loads(message.value()), "key": message.key().decode()})
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return len(values) >= count and len(ended) == len(partitions)

    wait_for(all_read, lambda: f"{len(values)} of {count} messages", poll_s=0.0)
    consumer.close()
    return values


def keys(rows: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((row["request_id"], row["row"]) for row in rows)


def test_a_later_sender_goes_on(mock_kafka: Broker, tmp_path: Path) -> None:
    """The writer of a spool was killed, and another one has taken the spool over."""
    (tmp_path / "kafka.json").write_text(json.dumps(mock_kafka.config))
    request, response = protocol.PredictRequest(), protocol.PredictResponse()
    tensors.fill_proto(request.inputs["x"], np.arange(2, dtype=np.float32))
    message = request.SerializeToString(), response.SerializeToString()
    kind = RequestKind("m", 1, Method.PREDICT.label, "GRPC")
    for number in range(2):
        call = CapturedCall(kind, f"r{number}", 1_700_000_000, 1.0, 2, *message)
        (part,) = make_batch(WaitingRecords.of([pack(call)]), CaptureOptions()).parts
        assert CapturedTopic(f"kafka://events?config={tmp_path / 'kafka.json'}", "sender").send([part]) == {}
    rows = read(mock_kafka, "events", 4)
    assert keys(rows) == Counter((f"r{number}", row) for number in range(2) for row in range(2))


@pytest.mark.slow
def test_rows_go_to_the_topic_and_to_files(broker: Broker, start: Any, capture_path: Path) -> None:  # noqa: F811
    recorder = start(broker, base_path=str(capture_path))
    assert len(recorder.send(30, rows=2)) == 30
    assert recorder.flush(300)
    rows = read(broker, "events", 60)
    expected = keys([{"request_id": f"r{n}", "row": row} for n in range(30) for row in (0, 1)])
    assert keys(rows) == expected
    row = next(row for row in rows if (row["request_id"], row["row"]) == ("r7", 1))
    captured_at = "2023-11-14T22:13:20.000007+00:00"
    assert row == ROW | {
        "key": "r7", "request_id": "r7", "row": 1, "captured_at": captured_at, "input.x": [7.0] * 3, "output.y": 7,
    }  # fmt: skip
    (file,) = (capture_path / "m0").glob("*.parquet")
    assert keys(pq.read_table(file).to_pylist()) == expected
    counts = recorder.status()["models"]["m0"]
    assert (counts["captured_rows"], counts["written_rows"], counts["sent_rows"], counts["files"]) == (60, 60, 60, 1)


def test_labels_go_to_a_separate_topic(mock_kafka: Broker, start: Any, capture_path: Path) -> None:  # noqa: F811
    mock_kafka.config["message.max.bytes"] = 1000  # of librdkafka's options the least
    recorder = start(mock_kafka)
    recorder.send(3)
    assert recorder.label(request_id="r1", label={"late": True}) == 1
    recorder.label(request_id="r0", label="x" * 5000)  # larger than a message
    assert recorder.flush(300)
    assert len(read(mock_kafka, "events", 3)) == 3
    status = recorder.status()
    assert (status["enabled"], status["base_path"]) == (True, None)
    assert status["sink"].startswith("kafka://events?")  # as monitors read it
    (label,) = read(mock_kafka, "events-labels", 1)
    assert (label["model"], label["request_id"], label["label.late"]) == ("m0", "r1", True)
    assert not list(capture_path.rglob("*.parquet"))
    counts = status["models"]["m0"]
    assert (counts["written_rows"], counts["sent_rows"], counts["sent_labels"], counts["failed_rows"]) == (3, 3, 2, 0)


@pytest.mark.slow
def test_broker_outage_loses_no_acknowledged_row(stoppable_kafka: Broker, start: Any, tmp_path: Path) -> None:
    recorder = start(stoppable_kafka, spool_bytes=64 * 1024)
    acknowledged = recorder.send(50)
    assert recorder.flush(300)
    with stoppable_kafka.out_of_order():
        acknowledged += recorder.send(50)
        assert not recorder.flush(40)
        status = recorder.status()
        assert "topic events" in status["error"] and status["lag_seconds"] > 0
        # The spool is bounded: what has no room is dropped, counted and not acknowledged.
        more = recorder.send(2000)
        acknowledged += more
        assert recorder.status()["models"]["m0"]["dropped_rows"] == 2000 - len(more) > 0
        kill_writers(tmp_path / "spool")
    wait_for(lambda: recorder.flush(300), "the topic has the rows", 120)
    assert keys(read(stoppable_kafka, "events", len(acknowledged))) == Counter((each, 0) for each in acknowledged)
    assert recorder.status()["error"] is None


def test_ingested_rows_equal_those_of_files(
    mock_kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floats = [0.1, 1e-45, 3.4028235e38, np.nan, np.inf, -np.inf]
    texts = ["ü".encode(), b"", b"NaN", b"\n", b"{", b'"']
    inputs = {
        "single": np.array(floats, np.float32), "double": np.array(floats) / 3,
        "half": np.array([*floats[:2], *floats[3:], 1], np.float16),
        "vector": np.array([floats] * 6, np.float32), "matrix": np.arange(24.0).reshape(6, 2, 2) / 7,
        "complex": np.array(floats, np.complex64), "flag": np.array([True, False] * 3),
        "small": np.arange(6, dtype=np.int8), "large": np.array([2**63 - 1] * 6),
        "unsigned": np.arange(6, dtype=np.uint64),
        "text": np.array(texts, object), "bytes": np.array([b"\xff\x00"] * 6, object),
        "words": np.array([[b"a", b"b"]] * 6, object), "empty": np.zeros((6, 0), np.float32),
    }  # fmt: skip
    request = protocol.PredictRequest()
    for name, array in inputs.items():
        tensors.fill_proto(request.inputs[name], array)
    kind = RequestKind("m", 1, Method.PREDICT.label, "GRPC")
    message = request.SerializeToString(), protocol.PredictResponse().SerializeToString()
    calls = [CapturedCall(kind, f"r{n}", 1_700_000_000_000_001 + n, 0.3, 6, *message) for n in range(3)]
    (part,) = make_batch(WaitingRecords.of(map(pack, calls)), CaptureOptions()).parts
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(mock_kafka.config))
    assert CapturedTopic(f"kafka://events?config={config}", "sender").send([part]) == {}
    topic = TopicSource("kafka://events", storage_options=mock_kafka.config, allow_gaps=True)
    whole, output = Window(None, None), OutputFolder(str(tmp_path))
    plan = plan_ranges(topic, (None, None)).to_dict()
    ingest_table("topic", topic, whole, output, IN_PROCESS, print, plan)
    file = tmp_path / "captured.parquet"
    file.write_bytes(part.encode())
    ingest_table("files", Source(str(file)), whole, output, IN_PROCESS, print)
    from_files, from_topic = (
        pq.read_table(tmp_path / table).sort_by([("request_id", "ascending"), ("row", "ascending")])
        for table in ("files", "topic")
    )
    from_topic = from_topic.select(from_files.column_names)
    assert from_topic.schema.remove_metadata() == from_files.schema.remove_metadata()
    # Compared as text, since NaN is unequal to itself
    assert repr(from_topic.to_pylist()) == repr(from_files.to_pylist())
    assert len(from_files) == 18 and {f"input.{name}" for name in inputs} < {*from_files.column_names}


def test_config_is_checked_at_start(start: Any) -> None:
    with pytest.raises(OSError, match="expected a JSON object of librdkafka's options"):
        start(Broker(""))
