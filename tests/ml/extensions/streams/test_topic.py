"""Topics as sources: each record of a window exactly once, the same at every try, and errors for what is missing."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import io
import itertools
import json
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import fastavro
import pyarrow.parquet as pq
import pytest
from http_answers import HttpRequest, answering

from airflow_hops.core.artifacts.artifact import Producer, RowCounts
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import plan_ranges, recorded_ranges
from airflow_hops.extensions.streams.core.topic import Topic
from airflow_hops.extensions.streams.core.topic_ranges import TopicRanges
from airflow_hops.extensions.streams.ml.ingest import read_records
from airflow_hops.ml.ingest import ingest_table
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.artifact_files import OutputFolder
from tests.extensions.streams.kafka_brokers import Broker, as_json

TASK = Producer("dag", "run1", "ingest")
WHOLE = Window(None, None)
PLAN_RANGES = "airflow_hops.extensions.streams.core.ranges.plan_ranges"


def source(broker: Broker, **fields: Any) -> TopicSource:
    more = fields.pop("storage_options", {})
    return TopicSource("kafka://events", storage_options={**broker.config, **more}, **fields)


def ingest(folder: Path, topic: TopicSource, ranges: TopicRanges, window: Window = WHOLE) -> RowCounts:
    output = OutputFolder(str(folder))
    return ingest_table("t", topic, window, output, plan=ranges.to_dict())[0]


def ingest_all(folder: Path, topic: TopicSource) -> RowCounts:
    return ingest(folder, topic, plan_ranges(topic, (None, None)))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows by offset, without the columns of Kafka."""
    rows = pq.read_table(folder / "t").sort_by("kafka_offset").to_pylist()
    return [{name: value for name, value in row.items() if not name.startswith("kafka_")} for row in rows]


def places(folder: Path) -> list[tuple[int, int]]:
    table = pq.read_table(folder / "t")
    return sorted(zip(table["kafka_partition"].to_pylist(), table["kafka_offset"].to_pylist(), strict=True))


@pytest.fixture(params=["mock_kafka", "tansu"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def time_lookup(mock_kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has consumers look up offsets by time as with Kafka, which neither test broker can do."""

    class Consumer(confluent_kafka.Consumer):
        def offsets_for_times(self, partitions: Any, timeout: float = -1) -> Any:
            result = []
            for place in partitions:
                low, _ = self.get_watermark_offsets(place, timeout=timeout)
                times_ms = mock_kafka.times_ms.get((place.topic, place.partition), [])
                later = (n for n, time_ms in enumerate(times_ms) if n >= low and time_ms >= place.offset)
                result.append(confluent_kafka.TopicPartition(place.topic, place.partition, next(later, -1)))
            return result

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)


def test_each_record_is_read_once_with_file_types(broker: Broker, tmp_path: Path) -> None:
    sent = [
        (i % 2, as_json(id=i, amount=i / 4, note=None if i % 3 else "ü\n"), 1_700_000_000_000 + i) for i in range(3000)
    ]
    broker.send("events", sent)
    broker.send("events", sent[:2])  # Tansu sees an end before its last batch
    topic = source(broker, offsets={"0": (0, 1400), "1": (100, 1500)})
    ranges = plan_ranges(topic, (None, None))
    counts = ingest(tmp_path, topic, ranges)
    assert (counts.rows_in, counts.rows_out) == (2800, 2800)
    assert places(tmp_path) == [(0, n) for n in range(1400)] + [(1, n) for n in range(100, 1500)]
    rows = pq.read_table(tmp_path / "t").sort_by("id").to_pylist()
    assert rows[0] == {
        "kafka_partition": 0, "kafka_offset": 0, "kafka_key": None, "id": 0, "amount": 0.0, "note": "ü\n",
        "kafka_time": dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
    }  # fmt: skip


def test_undecodable_record_is_rejected_with_offset_and_reason(mock_kafka: Broker, tmp_path: Path) -> None:
    values = [as_json(id=1), b"{broken", b"[1]", None, as_json(kafka_offset=1), as_json(id=2), b"\xff\xfe"]
    values += [b'{"id": 3, "x": {"y": 1, "y": 2}}', b'{"id":' + b"[" * 200 + b"]" * 200 + b"}", b'{"": 1}']
    values += [b'{"n": 9007199254740993,\n "f": 0.1}\n', b"{}"]
    mock_kafka.send("events", [(2, value) for value in values])
    counts = ingest_all(tmp_path, source(mock_kafka))
    reasons = {"not JSON": 2, "not a JSON object": 1, "no value (a tombstone)": 1}
    reasons |= {"a field has a name that begins with kafka_": 1}
    reasons |= {"a field occurs twice": 1, "values are nested too deeply": 1}
    reasons |= {"a field has no name that a column can have": 1}
    assert (counts.rows_in, counts.rows_out, counts.rejected) == (12, 4, reasons)
    assert [row["n"] for row in rows_of(tmp_path)] == [None, None, 9007199254740993, None]
    rejected = pq.read_table(tmp_path / "rejected" / "t").to_pylist()
    assert [(row["partition"], row["offset"], row["value"]) for row in rejected] == [
        (2, n, values[n]) for n in (1, 2, 3, 4, 6, 7, 8, 9)
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": {"n": "int64"}}, r"kafka://events, partition 1, offset 1, column 'n': 'x' is not"),
        ({"columns": ("n", "m")}, r"table 't': kafka://events: there is no column 'm'"),
    ],
)
def test_errors_of_values_name_the_topic_and_the_offset(
    mock_kafka: Broker, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    mock_kafka.send("events", [(1, as_json(n=1)), (1, as_json(n="x"))])
    with pytest.raises(BadInput, match=message):
        ingest_all(tmp_path, source(mock_kafka, **fields))


def test_topic_without_usable_records_is_an_error(mock_kafka: Broker, tmp_path: Path) -> None:
    mock_kafka.send("events", [(0, b"x"), (0, as_json(n=1), 1 << 60)])
    reasons = "1 not JSON, 1 its time is outside the years 1 to 9999"
    with pytest.raises(BadInput, match=rf"no usable records .*partition 0 offsets \[0, 2\).*{reasons}"):
        ingest_all(tmp_path, source(mock_kafka))


def test_windows_divide_records_out_of_order_without_loss(
    mock_kafka: Broker, tmp_path: Path, time_lookup: None
) -> None:
    base = 1_700_000_000_000
    times = [base + 1000 * n + (7000 if n % 5 == 0 else 0) for n in range(60)]
    mock_kafka.send("events", [(0, as_json(n=n), time_ms) for n, time_ms in enumerate(times)])
    store = ArtifactStore(str(tmp_path / "store"))
    bounds = [None, *(dt.datetime.fromtimestamp(base / 1000 + s, dt.UTC).isoformat() for s in (20, 40)), None]
    seen = []
    for start, end in itertools.pairwise(bounds):
        topic = source(mock_kafka)
        ranges = recorded_ranges(store, TASK, "t", topic, (start, end))
        folder = tmp_path / str(start)
        ingest(folder, topic, ranges, Window.parse(start, end))
        seen.append(places(folder))
    assert [place for part in seen for place in part] == [(0, n) for n in range(60)]
    assert all(seen)


def test_windows_planned_at_the_same_time_leave_no_record_between(
    mock_kafka: Broker, tmp_path: Path, time_lookup: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = 1_700_000_000_000
    start, middle, end = (dt.datetime.fromtimestamp(base / 1000 + s, dt.UTC).isoformat() for s in (0, 10, 20))
    store = ArtifactStore(str(tmp_path / "store"))
    mock_kafka.send("events", [(0, as_json(n=0), base)])
    results = list[TopicRanges]()

    def plan_next() -> None:
        results.append(recorded_ranges(store, TASK, "t", source(mock_kafka), (middle, end)))

    def plan_slowly(*arguments: Any) -> TopicRanges:
        monkeypatch.setattr(PLAN_RANGES, plan_ranges)
        planned = plan_ranges(*arguments)
        mock_kafka.send("events", [(0, as_json(n=1), base + 9500), (0, as_json(n=2), base + 11_000)])
        following.start()
        following.join(1)
        return planned

    following = threading.Thread(target=plan_next)
    monkeypatch.setattr(PLAN_RANGES, plan_slowly)
    first = recorded_ranges(store, TASK, "t", source(mock_kafka), (start, middle))
    following.join()
    assert [first.offsets["0"], results[0].offsets["0"]] == [(0, 1), (1, 3)]


def test_expired_offsets_are_named(mock_kafka: Broker, tmp_path: Path, time_lookup: None) -> None:
    filler = "x" * 100_000
    mock_kafka.send("events", [(0, as_json(n=n, filler=filler), 1_700_000_000_000 + n) for n in range(80)])
    with contextlib.closing(confluent_kafka.Consumer({**mock_kafka.config, "group.id": "test"})) as consumer:
        low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("events", 0), timeout=10)
    assert 0 < low < high == 80, "the mock cluster keeps 5 MiB of a partition"
    with pytest.raises(BadInput, match=rf"'events', partition 0: offsets 0 to {low - 1} have expired"):
        ingest_all(tmp_path, source(mock_kafka, offsets={"0": (0, 80)}))
    start = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    with pytest.raises(
        BadInput, match=rf"partition 0: offsets before {low} have expired, and may belong to the window"
    ):
        plan_ranges(source(mock_kafka), (start, None))


def test_topic_that_shrank_or_lost_a_partition_is_named(mock_kafka: Broker, tmp_path: Path) -> None:
    mock_kafka.send("events", [(0, as_json(n=0))])
    topic = source(mock_kafka)
    with pytest.raises(
        HopsError, match=r"partition 0: offsets 0 to 4 were planned, but it ends at 1; the topic shrank"
    ):
        ingest(tmp_path, topic, TopicRanges("events", None, None, {"0": (0, 5)}))
    with pytest.raises(BadInput, match=r"created again: partition 9, .*it has 4 partitions, 0 to 3"):
        ingest(tmp_path, topic, TopicRanges("events", None, None, {"9": (0, 5)}))


def test_recreated_topic_is_named(tansu: Broker, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    tansu.send("events", [(0, as_json(n=n)) for n in range(5)])
    topic = source(tansu, offsets={"0": (0, 3)})
    ranges = plan_ranges(topic, (None, None))
    assert ranges.topic_id
    admin = AdminClient(tansu.config)
    admin.delete_topics(["events"])["events"].result(20)
    admin.create_topics([NewTopic("events", 2, 1)])["events"].result(20)
    tansu.send("events", [(0, as_json(n=n)) for n in range(5)])
    with pytest.raises(BadInput, match="'events' was deleted and created again after its offsets were planned"):
        ingest(tmp_path, topic, ranges)


def test_transaction_gaps_need_a_topic_without_compaction(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = confluent_kafka.Producer({**broker.config, "transactional.id": "t"})
    producer.init_transactions(20)
    for n in range(3):
        producer.begin_transaction()
        producer.produce("events", as_json(n=n), partition=0)
        producer.flush(20)
        producer.commit_transaction(20)
    topic = source(broker, offsets={"0": (0, 5)})
    ranges = plan_ranges(topic, (None, None))
    with pytest.raises(
        BadInput, match=r"2 offsets of the range .*partition 0 offset 1, partition 0 offset 3.*cannot be read"
    ):
        ingest(tmp_path / "1", topic, ranges)
    allowed = source(broker, offsets={"0": (0, 5)}, allow_gaps=True)
    assert ingest(tmp_path / "2", allowed, ranges).rows_out == 3
    # Neither broker reports policies.
    monkeypatch.setattr("airflow_hops.extensions.streams.core.topic.Topic.cleanup_policy", lambda self: "delete")
    assert ingest(tmp_path / "3", topic, ranges).rows_out == 3
    monkeypatch.setattr(
        "airflow_hops.extensions.streams.core.topic.Topic.cleanup_policy", lambda self: "compact,delete"
    )
    with pytest.raises(BadInput, match=r"cleanup\.policy is 'compact,delete'"):
        ingest(tmp_path / "4", topic, ranges)


def test_unknown_topic_and_options_are_bad_input(tansu: Broker) -> None:
    with pytest.raises(BadInput, match="'nowhere'"):
        plan_ranges(TopicSource("kafka://nowhere", storage_options=tansu.config), (None, None))
    with pytest.raises(BadInput, match=r"'events': librdkafka refuses|'events' at .*No such configuration property"):
        plan_ranges(source(tansu, storage_options={"bootstrap.server": "x"}), (None, None))
    with pytest.raises(BadInput, match="no partition 7; it has 2 partitions"):
        plan_ranges(source(tansu, offsets={"7": (0, 1)}), (None, None))
    with pytest.raises(BadInput, match=r"'0': \(3, 1\); expected the number of a partition"):
        source(tansu, offsets={"0": (3, 1)})
    for uri, options, message in (
        ("kafka://a/b", tansu.config, "'kafka://a/b' is not a topic; expected kafka://topic"),
        ("kafka://events", {}, "the connection has no 'bootstrap.servers'"),
        ("kafka://events", {**tansu.config, "error_cb": "x"}, "'events': librdkafka refuses the connection's extra"),
    ):
        with pytest.raises(BadInput, match=message):
            plan_ranges(TopicSource(uri, storage_options=options), (None, None))


def test_incompatible_plans_are_refused(mock_kafka: Broker, tmp_path: Path, time_lookup: None) -> None:
    mock_kafka.send("events", [(0, as_json(n=0), 1_700_000_000_000)])
    bounds = "2023-11-14T00:00:00", "2023-11-15T00:00:00"
    store = ArtifactStore(str(tmp_path / "store"))
    ranges = recorded_ranges(store, TASK, "t", source(mock_kafka), bounds)
    with pytest.raises(BadInput, match=r"were planned for the window .*, but the step's is"):
        ingest(tmp_path, source(mock_kafka), ranges)
    (plan,) = (tmp_path / "store").rglob("*.json")
    plan.write_text("{}")
    with pytest.raises(BadInput, match="not a plan of a topic's offsets"):
        recorded_ranges(store, TASK, "t", source(mock_kafka), bounds)


def test_brokers_that_fall_silent_are_retried(stoppable_kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    stoppable_kafka.send("events", [(0, as_json(n=n)) for n in range(3)])
    topic = source(stoppable_kafka)
    with Topic(topic.uri, topic.storage_options) as opened:
        records = read_records(opened, plan_ranges(topic, (None, None)), allow_gaps=False)
        monkeypatch.setattr("airflow_hops.extensions.streams.ml.ingest._SILENCE_S", 0.2)
        monkeypatch.setattr("airflow_hops.extensions.streams.core.topic.TIMEOUT_S", 0.2)
        with stoppable_kafka.out_of_order():
            with pytest.raises(HopsError, match=r"sent nothing for 0 s; offset 0 is next") as silent:
                list(records)
            with pytest.raises(HopsError) as unanswered:
                plan_ranges(topic, (None, None))
    assert silent.value.retryable and unanswered.value.retryable


class Registry:
    """The part of a Confluent schema registry's API that readers use."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.fails = 0
        self.options: dict[str, Any] = {}

    def answer(self, request: HttpRequest) -> tuple[int, Any]:
        schema = self.schemas.get(int(request.path.partition("?")[0].rpartition("/")[2]))
        if schema is None or self.fails:
            return self.fails or 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, schema


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    with answering(registry.answer) as url:
        registry.options = {"schema.registry.url": url}
        yield registry


def framed(schema_id: int, content: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + content


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


V1 = {
    "type": "record", "name": "Event", "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "key", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}  # fmt: skip
V2 = {**V1, "fields": [*V1["fields"], {"name": "more", "type": ["null", "double"]}]}


def test_avro_schema_versions_are_joined(mock_kafka: Broker, registry: Any, tmp_path: Path) -> None:
    registry.schemas |= {1: {"schema": json.dumps(V1)}, 2: {"schema": json.dumps(V2)}}
    time, key = dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC), uuid.uuid4()
    row = {"id": 2**53 + 1, "at": time, "price": decimal.Decimal("12.30"), "key": key, "tags": {"x": 1}, "kind": "B"}
    one, two = framed(1, avro(V1, row)), framed(2, avro(V2, {**row, "key": None, "more": 0.5}))
    poison = [framed(9, b"x"), framed(1, b"\x01"), b"{}", one + b"x"]
    mock_kafka.send("events", [(0, value) for value in [one, two, *poison]])
    counts = ingest_all(tmp_path, source(mock_kafka, storage_options=registry.options))
    assert (counts.rows_in, counts.rows_out) == (6, 2)
    assert counts.rejected == {
        "schema is not in the registry": 1, "not Avro of its schema": 2, "no schema ID": 1,
    }  # fmt: skip
    first, second = rows_of(tmp_path)
    assert first == {**row, "key": str(key), "tags": [("x", 1)], "more": None}
    assert (second["more"], second["key"]) == (0.5, None)


@pytest.mark.parametrize(
    ("union", "values"),
    [
        (["null", "int", "double"], [1, 0.5, None]),
        (["int", "long"], [1, 2**62 + 1]),
        (["string", {"type": "enum", "name": "Kind", "symbols": ["A"]}], ["b", "A"]),
        (["string", "long"], None),
        (["long", "double"], None),  # which would round large numbers
    ],
)
def test_avro_unions_are_read(
    union: list[Any], values: list[Any] | None, mock_kafka: Broker, registry: Any, tmp_path: Path
) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": union}]}
    schema = {"type": "record", "name": "Event", "fields": [{"name": "of", "type": ["null", inner]}]}
    registry.schemas[1] = {"schema": json.dumps(schema)}
    mock_kafka.send("events", [(0, framed(1, avro(schema, {"of": {"n": n}}))) for n in values or [1]])
    topic = source(mock_kafka, storage_options=registry.options)
    if values is None:
        with pytest.raises(BadInput, match=r"Avro field 'of\.n' is a union of .*int64.* write a field for each type"):
            ingest_all(tmp_path, topic)
    else:
        ingest_all(tmp_path, topic)
        assert [row["of"]["n"] for row in rows_of(tmp_path)] == values


def test_registry_that_fails_is_retried(mock_kafka: Broker, registry: Any, tmp_path: Path) -> None:
    registry.fails = 500
    mock_kafka.send("events", [(0, framed(1, b"x"))])
    topic = source(mock_kafka, storage_options={**registry.options, "schema.registry.max.retries": 0})
    with pytest.raises(HopsError, match="schema registry http") as failure:
        ingest_all(tmp_path, topic)
    assert failure.value.retryable
    registry.fails = 401
    with pytest.raises(BadInput, match="schema registry http"):
        ingest_all(tmp_path, topic)
    away = {"schema.registry.url": "http://127.0.0.1:1", "schema.registry.max.retries": 0}
    with pytest.raises(HopsError, match=r"http://127\.0\.0\.1:1 does not answer"):
        ingest_all(tmp_path, source(mock_kafka, storage_options=away))
    with pytest.raises(BadInput, match=r"schema registry: .*nonsense"):
        ingest_all(tmp_path, source(mock_kafka, storage_options={**away, "schema.registry.nonsense": 1}))
    with pytest.raises(BadInput, match=r"needs a schema registry; give 'schema.registry.url'"):
        ingest_all(tmp_path, source(mock_kafka, format="avro"))


def test_non_tabular_values_are_named(mock_kafka: Broker, registry: Any, tmp_path: Path) -> None:
    narrow = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}
    priced = {"type": "record", "name": "Event", "fields": [{"name": "price", "type": narrow}]}
    wide = {**priced, "fields": [{"name": "price", "type": {**narrow, "precision": 9}}]}
    registry.schemas |= {1: {"schema": json.dumps(priced)}, 2: {"schema": json.dumps("string")}}
    registry.schemas[3] = {"schema": "{}", "schemaType": "JSON"}
    good, large = avro(priced, {"price": decimal.Decimal(1)}), avro(wide, {"price": decimal.Decimal(123456)})
    mock_kafka.send("events", [(0, framed(1, large)), (1, framed(2, b"\x02a")), (2, framed(3, b"{}"))])
    mock_kafka.send("events", [(2, framed(1, good))])
    for partition, message in (
        ("0", r"no usable records .*1 a value of 'price' is not of type decimal128\(2, 0\)"),
        ("1", '"string" is not a record, as rows must be'),
        ("2", "has values in JSON, and others with types"),
    ):
        ends = {"0": (0, 1), "1": (0, 1), "2": (0, 2)}
        topic = source(mock_kafka, storage_options=registry.options, offsets={partition: ends[partition]})
        with pytest.raises(BadInput, match=message):
            ingest(tmp_path / partition, topic, plan_ranges(topic, (None, None)))


def record(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Event", "fields": [{"name": "a", "type": kind}], **more}


def nested(levels: int) -> Any:
    return {"type": "array", "items": nested(levels - 1)} if levels else "long"


UNUSABLE = [
    (record(["null", "Event"]), b"\x00", "schema is recursive: Event has itself as a field"),
    (record(nested(40)), b"\x00", "schema has more than 32 levels or 50000 types"),
    (record(nested(400)), b"\x00", "schema has more than 32 levels"),
    (record({"type": "array", "items": "null"}), b"\xfe\xff\xff\xff\x0f\x00", "the array 'a' has items of zero bytes"),
    (
        record({"type": "array", "items": record("null", name="Empty")}),
        b"\xfe\xff\xff\xff\x0f\x00",
        "the array 'a' has items of zero bytes",
    ),
    (
        record({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 45}),
        b"\x02\x01",
        "no table can hold",
    ),
    (
        record({"type": "record", "name": "Empty", "fields": []}),
        b"",
        "no table can hold its types (Cannot write struct",
    ),
    (record("nonsense"), b"\x00", "schema 8 cannot be used (UnknownType: nonsense"),
    ({"type": "record"}, b"\x00", "schema 9 cannot be used (SchemaParseException: "),
]


def test_values_of_unusable_schemas_are_rejected(mock_kafka: Broker, registry: Any, tmp_path: Path) -> None:
    registry.schemas |= {n: {"schema": json.dumps(schema)} for n, (schema, _, _) in enumerate(UNUSABLE, 1)}
    # Each record of a level has two of the next.
    wide: Any = "long"
    for level in range(20):
        fields = [{"name": "a", "type": wide}, {"name": "b", "type": wide if level == 0 else f"L{level}"}]
        wide = {"type": "record", "name": f"L{level + 1}", "fields": fields}
    registry.schemas |= {90: {"schema": json.dumps(wide)}, 91: {"schema": "{"}}
    registry.schemas |= {92: {"schema": json.dumps(record("long"))}, 93: {"schema": "", "schemaType": "PROTOBUF"}}
    values = [framed(n, value) for n, (_, value, _) in enumerate(UNUSABLE, 1)]
    values += [framed(90, b"\x02"), framed(91, b"\x02"), framed(92, b"\x02"), framed(93, b"\x02")]
    mock_kafka.send("events", [(0, value) for value in values])
    counts = ingest_all(tmp_path, source(mock_kafka, storage_options=registry.options))
    assert (counts.rows_in, counts.rows_out) == (len(values), 1)
    reasons = pq.read_table(tmp_path / "rejected" / "t").sort_by("offset")["reason"].to_pylist()
    expected = [reason for _, _, reason in UNUSABLE]
    expected += ["schema has more than 32 levels", "schema 91 cannot be used (JSON"]
    expected.append("schema is protobuf, expected json or avro")
    assert [reason[: len(start)] for reason, start in zip(reasons, expected, strict=True)] == expected


def test_decimals_with_too_many_digits_are_rejected(mock_kafka: Broker, registry: Any, tmp_path: Path) -> None:
    schema = record({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2})
    registry.schemas[1] = {"schema": json.dumps(schema)}
    numbers = [decimal.Decimal("1.25"), decimal.Decimal(10**40)]
    mock_kafka.send("events", [(0, framed(1, avro(schema, {"a": number}))) for number in numbers])
    counts = ingest_all(tmp_path, source(mock_kafka, storage_options=registry.options))
    assert pq.read_table(tmp_path / "t")["a"].to_pylist() == numbers[:1]
    assert counts.rejected == {"a value of 'a' is not of type decimal128(38, 2)": 1}
