"""Captured requests: every row once, whole files, in time order."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from tests.serving.conftest import Server

pytestmark = pytest.mark.runtime


def rows_of(n: int, hour: int = 5) -> dict[str, Any]:
    return {"instances": [{"carrier": f"C{i}", "distance": [float(i)], "hour": hour} for i in range(n)]}


def captured(folder: Path) -> pa.Table:
    files = sorted(folder.glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


@pytest.fixture
def capture_path(tmp_path: Path) -> Path:
    return tmp_path / "captured"


@pytest.fixture
def start(
    start_server: Callable[..., Server], saved_models: Path, capture_path: Path, tmp_path: Path
) -> Callable[..., Server]:
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "flights" base_path: "{saved_models}/flights" }} '
        f'config {{ name: "vectors" base_path: "{saved_models}/vectors" }} }}'
    )
    return lambda **flags: start_server(model_config_file=config, capture_base_path=capture_path, **flags)


def test_flush_writes_each_row_with_features_and_outputs(
    start: Callable[..., Server], capture_path: Path, in_runtime: Callable[..., Any]
) -> None:
    server = start()
    started_s = time.time()
    server.predict("flights", rows_of(2), headers={"x-request-id": "first"})
    answer = in_runtime(
        """
        from airflow_hops.serving_api.client import ModelServerClient
        inputs = {"carrier": ["AA"], "distance": [[7.5]], "hour": [1]}
        result = ModelServerClient(address).predict("flights", inputs).request_id
        """,
        address=server.address,
    )
    status, counts = server.call("/v1/capture:flush", b"")
    assert status == 200
    assert counts["models"]["flights"]["written_rows"] == 3
    table = captured(capture_path / "flights")
    assert table.schema == pa.schema(
        {
            "request_id": pa.string(),
            "row": pa.int32(),
            "model": pa.string(),
            "version": pa.int64(),
            "signature": pa.string(),
            "api": pa.string(),
            "captured_at": pa.timestamp("us", "UTC"),
            "latency_ms": pa.float64(),
            "input.carrier": pa.string(),
            "input.distance": pa.float32(),
            "input.hour": pa.int64(),
            "output.carrier_id": pa.int64(),
            "output.score": pa.float32(),
        }
    )
    rows = table.to_pylist()
    assert [row["request_id"] for row in rows] == ["first", "first", answer]
    assert [row["row"] for row in rows] == [0, 1, 0]
    assert [row["api"] for row in rows] == ["rest", "rest", "grpc"]
    assert [row["input.carrier"] for row in rows] == ["C0", "C1", "AA"]
    assert [row["output.score"] for row in rows] == [3005.0, 3006.0, 3008.5]
    assert {(row["model"], row["version"], row["signature"]) for row in rows} == {("flights", 3, "serving_default")}
    assert all(started_s <= row["captured_at"].timestamp() <= time.time() for row in rows)
    assert all(row["latency_ms"] > 0 for row in rows)


def test_vectors_are_lists_and_text_that_is_no_utf8_is_binary(start: Callable[..., Server], capture_path: Path) -> None:
    server = start()
    server.predict("vectors", {"instances": [[1, 2, 3], [4, 5, 6]]})
    raw = {"b64": base64.b64encode(b"\xff").decode()}
    server.predict("vectors", {"signature_name": "strings", "instances": ["text", raw]})
    assert server.call("/v1/capture:flush", b"")[0] == 200
    tables = {t["signature"][0].as_py(): t for t in map(pq.read_table, (capture_path / "vectors").glob("*.parquet"))}
    assert tables["serving_default"]["input.x"].to_pylist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert tables["serving_default"]["output.y"].to_pylist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
    assert tables["strings"]["input.text"].to_pylist() == [b"text", b"\xff"]


def test_refused_requests_are_not_captured(start: Callable[..., Server]) -> None:
    server = start()
    server.error("/v1/models/flights:predict", {"instances": [1]})
    assert server.call("/v1/capture:flush", b"")[1]["models"] == {}


def test_sigterm_writes_what_was_captured(start: Callable[..., Server], capture_path: Path) -> None:
    server = start(capture_roll_seconds=3600)
    for _ in range(5):
        server.predict("flights", rows_of(3))
    assert not list(capture_path.rglob("*.parquet"))
    assert server.terminate() == 0
    assert captured(capture_path / "flights").num_rows == 15
    assert not [path for path in capture_path.rglob("*") if path.name.startswith(".")]


def test_files_roll_by_rows_and_seconds_and_sort_by_time(start: Callable[..., Server], capture_path: Path) -> None:
    server = start(capture_roll_rows=10, capture_roll_seconds=0.5)
    for hour in range(12):
        server.predict("flights", rows_of(4, hour))
    deadline_s = time.monotonic() + 10
    while server.call("/v1/capture")[1]["models"]["flights"]["written_rows"] < 48:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    files = sorted((capture_path / "flights").glob("*.parquet"))
    assert len(files) >= 4
    table = captured(capture_path / "flights")
    assert table["input.hour"].to_pylist() == [hour for hour in range(12) for _ in range(4)]
    assert max(pq.read_metadata(file).num_rows for file in files) <= 12


@pytest.mark.parametrize(("mode", "has_inputs", "has_outputs"), [("inputs", True, False), ("predictions", False, True)])
def test_mode_chooses_the_columns(
    start: Callable[..., Server], capture_path: Path, mode: str, has_inputs: bool, has_outputs: bool
) -> None:
    server = start(capture_mode=mode)
    server.predict("flights", rows_of(2))
    server.call("/v1/capture:flush", b"")
    names = captured(capture_path / "flights").column_names
    assert ("input.carrier" in names) is has_inputs
    assert ("output.score" in names) is has_outputs


def test_sampling_takes_an_exact_share(start: Callable[..., Server], capture_path: Path) -> None:
    server = start(capture_sampling_percent=25)
    for _ in range(40):
        server.predict("flights", rows_of(1))
    server.call("/v1/capture:flush", b"")
    assert captured(capture_path / "flights").num_rows == 10


def test_full_buffer_drops_and_counts_and_the_request_is_answered(start: Callable[..., Server]) -> None:
    server = start(capture_buffer_rows=10, capture_roll_seconds=3600)
    for _ in range(5):
        server.predict("flights", rows_of(4))
    counts = server.call("/v1/capture")[1]["models"]["flights"]
    assert (counts["captured_rows"], counts["dropped_rows"]) == (8, 12)


def test_folder_that_cannot_be_written_loses_rows_but_no_request(
    start: Callable[..., Server], capture_path: Path
) -> None:
    server = start()
    capture_path.mkdir(exist_ok=True)
    (capture_path / "flights").write_text("a file where the folder should be")
    server.predict("flights", rows_of(3))
    counts = server.call("/v1/capture:flush", b"")[1]["models"]["flights"]
    assert (counts["written_rows"], counts["failed_rows"]) == (0, 3)
    assert "3 rows of model flights are lost" in server.log()
    server.predict("flights", rows_of(3))


def test_new_files_sort_after_those_of_a_clock_that_was_ahead(start: Callable[..., Server], capture_path: Path) -> None:
    folder = capture_path / "flights"
    folder.mkdir(parents=True)
    ahead = folder / "29991231T235959.000000Z-v1-1.parquet"
    pq.write_table(pa.table({"x": [1]}), ahead)
    server = start()
    server.predict("flights", rows_of(1))
    server.call("/v1/capture:flush", b"")
    names = sorted(path.name for path in folder.glob("*.parquet"))
    assert len(names) == 2
    assert names[0] == ahead.name


def test_no_base_path_captures_nothing(shared_server: Server) -> None:
    status = shared_server.call("/v1/capture")[1]
    assert (status["enabled"], status["base_path"]) == (False, None)
