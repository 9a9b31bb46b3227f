"""Captured requests and labels of a topic give the figures of those in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.captured.snapshot import requests_of_snapshot
from airflow_hops.serving.capture.batch import labels_table
from airflow_hops.serving.capture.record import CapturedLabel
from tests import flights_examples
from tests.captured_flights import CaptureFolder
from tests.extensions.streams.captured_topic import ingest_captured
from tests.extensions.streams.kafka_brokers import Broker
from tests.ml.performance.test_performance import ROWS, Served
from tests.ml.skew.test_skew import Detect


@pytest.mark.slow
def test_labels_of_topic_and_table_agree(
    serve: Callable[..., Served], mock_kafka: Broker, tmp_path: Path, run_shared_stage: Callable[..., Any]
) -> None:
    served, us = serve(), 1_000_000
    rows = served.rows.iloc[: 2 * ROWS]
    labels = [
        CapturedLabel("flights", row.request_id, row.row, {"late": row.late}, row.known_at * us, row.known_at * us)
        for row in rows.itertuples()
    ]
    snapshot = ingest_captured(mock_kafka, tmp_path, run_shared_stage, [labels_table(labels)], labels=True)
    by_table = served.measured(rows, keys=["request_id", "row"], time_feature=None)
    options = {"label_column": "label.late", "label_time": "at"}
    by_topic = served.measured(inputs={"labels": snapshot}, **options)
    assert by_topic.versions == by_table.versions and by_topic.delay_s == by_table.delay_s is not None
    assert by_topic.versions[0].labelled == 2 * ROWS
    (tmp_path / "later").mkdir()
    none = ingest_captured(mock_kafka, tmp_path / "later", run_shared_stage, [], labels=True)
    unlabelled = served.measured(inputs={"labels": none}, **options).versions[0]
    assert unlabelled.labelled == 0 and unlabelled.rows == by_topic.versions[0].rows


@pytest.mark.slow
def test_predictions_of_topic_and_files_agree(
    serve: Callable[..., Served], mock_kafka: Broker, tmp_path: Path, run_shared_stage: Callable[..., Any]
) -> None:
    served = serve()
    snapshot = ingest_captured(mock_kafka, tmp_path, run_shared_stage, [pq.read_table(file) for file in served.files])
    of_files, of_topic = served.measured(served.rows), served.measured(served.rows, inputs={"captured": snapshot})
    for ours, theirs in zip(of_topic.versions, of_files.versions, strict=True):
        for name, figures in ours.estimates.items():  # of a sample of the rows, whose order differs
            assert figures == pytest.approx(theirs.estimates[name], abs=0.01)
    same = [replace(each, estimates={}) for each in of_files.versions]
    of_topic = replace(of_topic, versions=tuple(replace(each, estimates={}) for each in of_topic.versions))
    assert of_topic == replace(of_files, versions=tuple(same), captured_files=None)
    assert [each.labelled for each in of_topic.versions] == [8 * ROWS, ROWS]


@pytest.mark.slow
def test_rows_of_a_topic_are_compared_like_those_of_files(
    detect: Detect,
    captured: CaptureFolder,
    run_shared_stage: Any,
    shared_store: ArtifactStore,
    mock_kafka: Broker,
    tmp_path: Path,
    flights_raw: Path,
) -> None:
    july = flights_examples.months(flights_raw, 7, 7).iloc[::8]
    files = [captured.add(july.iloc[:1500]), captured.add(july.iloc[1500:], version=4)]
    tables = [pq.read_table(file) for file in files]
    other = pa.table({"request_id": ["o"], "row": [0], "model": ["other"], "version": [1], "input.z": [1.0]})
    other = other.append_column("captured_at", tables[0]["captured_at"][:1])
    snapshot = ingest_captured(mock_kafka, tmp_path, run_shared_stage, [*tables, other])
    assert snapshot.rows["captured"].rows_out == len(july) + 1
    _, of_files = detect(alpha=0.01)
    assert of_files["verdict"] == "drift"
    for _ in range(2):  # no cursor: each run compares its snapshot
        artifact, of_topic = detect(services={"serving_capture_path": ""}, inputs={"captured": snapshot}, alpha=0.01)
        assert artifact.rows["captured"].rows_in == len(july)
        for report in (of_files, of_topic):
            report.pop("captured_files", None)
        assert of_topic == of_files
    few = detect(services={"serving_capture_path": ""}, inputs={"captured": snapshot}, min_rows=10**6)[1]
    assert few["verdict"] == "insufficient"
    assert few["notes"][0].startswith("Too few rows in the snapshot, which the next run does not compare again")
    with pytest.raises(BadInput, match=r"no captured rows of model 'flihgts'; it has rows of 'flights', 'other'"):
        requests_of_snapshot(snapshot, shared_store.local(snapshot), "flihgts", tmp_path / "scratch")
    (tmp_path / "other" / "t").mkdir(parents=True)
    pq.write_table(other.drop(["row"]), tmp_path / "other" / "t" / "part.parquet")
    with pytest.raises(BadInput, match=r"table 't': there is no column 'row'; expected captured requests"):
        requests_of_snapshot(snapshot, tmp_path / "other", "flights", tmp_path / "scratch" / "other")
