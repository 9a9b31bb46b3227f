"""A window without a usable request is the same through every source of captured rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import RowSource, Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.ml.plan import plan_logs
from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import plan_ranges
from airflow_hops.extensions.tables import QuerySource
from airflow_hops.ml.captured.snapshot import requests_of_snapshot
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from tests.extensions.streams.kafka_brokers import Broker, mock_kafka, short_patience  # noqa: F401
from tests.ml.extensions.captured_logs import logs
from tests.ml.extensions.captured_logs.test_windows import HOUR_S, entry, hourly, window

LOG = ("lines", "gzip", "Parquet", "folder", "S3", "KServe")
"""Ways that are logs, of which a window takes what is new."""
STATES: dict[str, list[Any] | None] = {
    "nothing yet": None,
    "empty": [],
    "late": [entry(1, -100 * HOUR_S), entry(2, -100 * HOUR_S)],
    "future": [entry(1, 100 * HOUR_S)],
    "foreign version": [entry(1, 9 * HOUR_S + 1, v=7)],
    "broken": ['{"id": "r1", '],
}
"""Entries of the tenth window, by the state of a log."""
REASONS = {
    "nothing yet": {},
    "empty": {},
    "late": {"outside window": 2},
    "future": {"captured in the future": 1},
    "foreign version": {"of version '7', which was not deployed from here": 1},
}
"""Reasons of entries that are counted and left out; other states are errors."""
OTHERS = {
    "query": {"empty", "late", "future"},
    "captured files": {"nothing yet", "empty", "late", "future"},
    "topic": {"nothing yet", "empty", "broken"},
}
"""Ways that are no logs, with the states that they can have: versions are chosen later, and times by the plan."""


def lines_of(entries: list[Any]) -> bytes:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in entries).encode()


def events_of(entries: list[Any]) -> list[Any]:
    """Entries as the events of KServe's logger, of a request and its response."""
    events: list[Any] = []
    for each in entries:
        if isinstance(each, str):
            events.append(each)
            continue
        time = datetime.fromtimestamp(each["t"], UTC).isoformat()
        answer = {"model_name": "m", "model_version": str(each["v"]), "outputs": [logs.tensor("p", [each["p"]])]}
        for kind, body in {"request": {"inputs": [logs.tensor("a", [each["a"]])]}, "response": answer}.items():
            facts = {"id": each["id"], "time": time, "type": f"org.kubeflow.serving.inference.{kind}"}
            events.append({**facts, "inferenceservicename": "m", "endpoint": "", "data": body})
    return events


def table_of(entries: list[Any]) -> pa.Table:
    columns = {"id": pa.string(), "t": pa.float64(), "v": pa.int64(), "a": pa.int64(), "p": pa.float64()}
    return pa.Table.from_pylist(entries, pa.schema(list(columns.items())))


def captured_table(entries: list[Any]) -> pa.Table:
    """Entries as the columns of captured files."""
    times = [datetime.fromtimestamp(each["t"], UTC) for each in entries]
    columns = {
        "request_id": pa.array([each["id"] for each in entries], pa.string()),
        "row": pa.array([0] * len(entries), pa.int32()),
        "model": pa.array(["m"] * len(entries), pa.string()),
        "version": pa.array([each["v"] for each in entries], pa.int64()),
        "captured_at": pa.array(times, pa.timestamp("us", "UTC")),
        "input.a": pa.array([each["a"] for each in entries], pa.int64()),
    }
    return pa.table(columns)


@pytest.fixture
def written(
    request: pytest.FixtureRequest, store: ArtifactStore, tmp_path: Path
) -> Callable[[str, list[Any] | None], RowSource]:
    """Writes entries in a way, and returns their source; ``None`` writes nothing at all."""

    def write(way: str, entries: list[Any] | None) -> RowSource:
        place = tmp_path / "log"
        place.mkdir()
        if way == "S3":
            bucket = request.getfixturevalue("bucket")
            if entries is not None:
                bucket.fs.pipe_file(f"{bucket.url.removeprefix('s3://')}/log/x.jsonl", lines_of(entries))
            return hourly(f"{bucket.url}/log", storage_options=bucket.options, versions={"1": 1})
        if way in LOG:
            name = {"lines": "x.jsonl", "gzip": "x.gz", "Parquet": "x.parquet", "folder": "deep/x.jsonl"}.get(
                way, "events.jsonl"
            )
            path = place / name
            path.parent.mkdir(exist_ok=True)
            if entries is not None and way == "Parquet":
                pq.write_table(table_of(entries), path)
            elif entries is not None and way == "KServe":
                path.write_bytes(lines_of(events_of(entries)))
            elif entries is not None:
                path.write_bytes(gzip.compress(lines_of(entries)) if way == "gzip" else lines_of(entries))
            if way == "KServe":
                return CapturedSource(str(path), model="m", layout="kserve", versions={"1": 1}, lookback=3)
            return hourly(place if way == "folder" else path, versions={"1": 1})
        if way == "topic":
            broker: Broker = request.getfixturevalue("mock_kafka")
            name = f"captured-{tmp_path.name}"
            if entries is None:
                return TopicSource(f"kafka://{name}", storage_options=broker.config, may_be_empty=True)
            earlier = [json.dumps(entry(0))]  # in the window before
            rows = [each if isinstance(each, str) else json.dumps(each) for each in (*earlier, *entries)]
            broker.send(name, [(0, row.encode()) for row in rows])
            offsets = {"0": (1, len(rows))}
            return TopicSource(f"kafka://{name}", storage_options=broker.config, may_be_empty=True, offsets=offsets)
        if way == "query":
            with store.create(store.uri("dag", "fetch", "rows"), "rows", Producer("dag", "fetch", "rows")) as writer:
                pq.write_table(captured_table(entries or []), writer.path / "part-00000.parquet")
                fetched = writer.commit()
            query = {"sql": "SELECT * FROM log", "time_column": "captured_at", "may_be_empty": True}
            source = QuerySource.from_value("log", {"uri": "sql://log", **query})
            rows = {"rows": {"SELECT * FROM log": fetched.to_dict()}, "store": store.root, "store_options": {}}
            return source.with_options({"log": {"dialect": "fetched", **rows}})
        if entries is not None:
            pq.write_table(captured_table(entries), place / "x.parquet")
        return Source(str(place), time_column="captured_at", may_be_empty=True)

    return write


CASES = [
    *((way, state) for way in LOG for state in STATES if (way, state) != ("Parquet", "broken")),
    *((way, state) for way, states in OTHERS.items() for state in sorted(states)),
]


@pytest.mark.parametrize(("way", "state"), CASES)
def test_windows_without_requests_agree(
    way: str, state: str, written: Callable[..., RowSource], make_context: Any, store: ArtifactStore, tmp_path: Path
) -> None:
    source = written(way, STATES[state])

    def ingest() -> tuple[Artifact, Any]:
        plan: Any = None
        if isinstance(source, CapturedSource):
            context = make_context(task_id="ingest")
            (plan,) = plan_logs(context, sources={"log": source.to_dict()}, window=window(9)).values()
        elif isinstance(source, TopicSource):
            plan = plan_ranges(source, (None, None)).to_dict()
        with store.create(store.uri("dag", "run", "ingest"), "snapshot", Producer("dag", "run", "ingest")) as writer:
            folder = OutputFolder(str(writer.path))
            bounds = (None, None) if isinstance(source, TopicSource) else window(9)
            rows, _ = ingest_table("log", source, Window.parse(*bounds), folder, plan=json.loads(json.dumps(plan)))
            assert isinstance(folder.columns("log", ()), dict)
            return writer.commit(rows={"log": rows}), rows

    if state not in REASONS or (state == "nothing yet" and way in OTHERS):
        with pytest.raises(BadInput, match=r"no file matches|Unknown topic|no captured rows|no usable records"):
            ingest()
        return
    snapshot, rows = ingest()
    assert rows.rows_out == 0 and rows.rows_in == sum(rows.rejected.values())
    assert rows.rejected == REASONS[state] or way in OTHERS
    requests = requests_of_snapshot(snapshot, store.local(snapshot), "m", tmp_path / "scratch")
    assert requests.names() == []
