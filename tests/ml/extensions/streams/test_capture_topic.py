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

from airflow_hops.core.contract.sources import Source
from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import plan_ranges
from airflow_hops.extensions.streams.serving.capture import CapturedTopic
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import IN_PROCESS
from airflow_hops.ml.stages.ingest import ingest_table
from airflow_hops.ml.stages.ingest.window import Window
from airflow_hops.serving.capture.batch import WaitingRecords, make_batch
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, pack
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.testing.capture_sinks import CaptureSinkContract
from tests.extensions.streams.kafka_brokers import Broker
from tests.ml.serving.test_capture import CaptureProcess, StartCapture, capture, capture_path, kill_writers, wait_for  # noqa: F401

ROW = {"model": "m0", "version": 1, "signature": "serving_default", "api": "grpc", "latency_ms": 1.0}


@pytest.fixture(params=["mock_kafka", "tansu"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def start(capture: StartCapture, tmp_path: Path) -> Callable[..., CaptureProcess]:  # noqa: F811
    def start_with(broker: Broker, **options: Any) -> CaptureProcess:
        config = tmp_path / "kafka.json"
        config.write_text(json.dumps(broker.config))
        return capture(sink=f"kafka://events?config={config}", roll_seconds=3600.0, **options)

    return start_with


def read(broker: Broker, topic: str, count: int) -> list[dict[str, Any]]:
    """Returns the committed messages of a topic; waits for a number of them, and a while for more."""
    consumer = confluent_kafka.Consumer(
        {**broker.config, "group.id": "test", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in partitions])
    values: list[dict[str, Any]] = []
    quiet = 0
    while quiet < (2 if len(values) >= count else 20):
        messages = [message for message in consumer.consume(1000, timeout=1) if message.error() is None]
        quiet = 0 if messages else quiet + 1
        values += [{**json.loads(message.value()), "key": message.key().decode()} for message in messages]
    consumer.close()
    return values


def keys(rows: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((row["request_id"], row["row"]) for row in rows)


class TestCapturedTopic(CaptureSinkContract):
    scheme = "kafka"

    @pytest.fixture
    def url(self, mock_kafka: Broker, tmp_path: Path) -> str:
        self.broker, config = mock_kafka, tmp_path / "kafka.json"
        config.write_text(json.dumps(mock_kafka.config))
        return f"kafka://events?config={config}"

    def rows(self, url: str, count: int, labels: bool = False) -> list[dict[str, Any]]:
        return read(self.broker, "events-labels" if labels else "events", count)


def test_rows_go_to_the_topic_and_to_files(broker: Broker, start: Any, capture_path: Path) -> None:  # noqa: F811
    ask = start(broker)
    assert len(ask(offer=30, rows=2)) == 30
    assert ask(flush=300) is True
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
    counts = ask(status=True)["models"]["m0"]
    assert (counts["captured_rows"], counts["written_rows"], counts["sent_rows"], counts["files"]) == (60, 60, 60, 1)


def test_labels_go_to_a_separate_topic(mock_kafka: Broker, start: Any, capture_path: Path, tmp_path: Path) -> None:  # noqa: F811
    ask = start(mock_kafka, base_path="", spool_path=str(tmp_path / "spool"))
    ask(offer=3)
    assert ask(labels=[{"model": "m0", "request_id": "r1", "label": {"late": True}}]) == 1
    assert ask(flush=300) is True
    assert len(read(mock_kafka, "events", 3)) == 3
    status = ask(status=True)
    assert (status["enabled"], status["base_path"]) == (True, None)
    assert status["sink"].startswith("kafka://events?")  # as monitors read it
    (label,) = read(mock_kafka, "events-labels", 1)
    assert (label["model"], label["request_id"], label["label.late"]) == ("m0", "r1", True)
    assert not list(capture_path.rglob("*.parquet"))
    counts = ask(status=True)["models"]["m0"]
    assert (counts["written_rows"], counts["sent_rows"], counts["sent_labels"]) == (3, 3, 1)


def test_broker_outage_loses_no_acknowledged_row(mock_kafka: Broker, start: Any, tmp_path: Path) -> None:
    ask = start(mock_kafka, base_path="", spool_path=str(tmp_path / "spool"), spool_bytes=64 * 1024)
    acknowledged = [request_id for request_id, _ in ask(offer=50)]
    assert ask(flush=300) is True
    with mock_kafka.out_of_order():
        acknowledged += [request_id for request_id, _ in ask(offer=50)]
        assert ask(flush=40) is False
        status = ask(status=True)
        assert "topic events" in status["error"] and status["lag_seconds"] > 0
        # The spool is bounded: what has no room is dropped, counted and not acknowledged.
        more = ask(offer=2000)
        acknowledged += [request_id for request_id, _ in more]
        counts = ask(status=True)["models"]["m0"]
        assert counts["dropped_rows"] == 2000 - len(more) > 0
        kill_writers(tmp_path / "spool")
    wait_for(lambda: ask(flush=300) is True, "the topic has the rows", 120)
    assert keys(read(mock_kafka, "events", len(acknowledged))) == Counter((each, 0) for each in acknowledged)
    assert ask(status=True)["error"] is None


def test_row_larger_than_a_message_is_counted(mock_kafka: Broker, start: Any, tmp_path: Path) -> None:
    mock_kafka.config["message.max.bytes"] = 1000  # of librdkafka's options the least
    ask = start(mock_kafka, base_path="", spool_path=str(tmp_path / "spool"))
    ask(offer=1)
    ask(labels=[{"model": "m0", "request_id": "r0", "label": "x" * 5000}])
    assert ask(flush=300) is True
    counts = ask(status=True)["models"]["m0"]
    assert (counts["sent_rows"], counts["failed_rows"]) == (1, 0)


def test_ingested_rows_equal_those_of_files(
    mock_kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_hops.extensions.streams.core.topic.ADMIN_TIMEOUT_S", 1.0)
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


def test_config_is_checked_at_start(start: Any, tmp_path: Path) -> None:
    broker = Broker("", None)  # type: ignore[arg-type]
    with pytest.raises(
        AssertionError, match=r"expected a JSON object of librdkafka's options, with 'bootstrap.servers'"
    ):
        start(broker)(status=True)
