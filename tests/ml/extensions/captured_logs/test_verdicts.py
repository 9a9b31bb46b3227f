"""Requests through every log get the verdict that they get through the model server's own capture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import SnapshotProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.skew import SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.schema import stage as schema
from airflow_hops.ml.skew import stage as skew
from airflow_hops.ml.statistics import stage as statistics
from airflow_hops.ml.step.context import StepContext
from tests.ml.extensions.captured_logs import logs

FEATURES = ["small", "large", "narrow", "single", "double", "holes", "flag", "word", "digits"]
"""Those that a model can take."""


def ingested(source: CapturedSource, properties: SnapshotProperties | None = None) -> Callable[[StepContext], Artifact]:
    """A step that ingests all of a log."""

    def ingest(context: StepContext) -> Artifact:
        (plan,) = logs.plan_logs(context, sources={"log": source.to_dict()}, window=[None, None]).values()
        with context.output() as writer:
            place = OutputFolder(str(writer.path))
            rows, _ = ingest_table("log", source, Window(None, None), place, plan=plan)
            return writer.commit(rows={"log": rows}, properties=(properties or SnapshotProperties()).to_dict())

    return ingest


def changed(requests: list[logs.Request]) -> list[logs.Request]:
    """Requests of which two features have drifted."""
    for each in requests:
        each.inputs["single"][:] += np.float32(1500)
        each.inputs["word"][:1] = b"red"
    return requests


@pytest.fixture(scope="module")
def champion(
    run_shared_stage: Any, shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory
) -> ArtifactStore:
    """Records a champion of the model ``mixed`` with the statistics of 1,000 requests."""
    tables = logs.own_rows(logs.random_requests(1, 1000), FEATURES)

    def write(context: StepContext) -> Artifact:
        with context.output() as writer:
            (writer.path / "train").mkdir()
            for number, table in enumerate(tables):
                table = table.select([f"input.{name}" for name in FEATURES]).rename_columns(FEATURES)
                table = table.set_column(FEATURES.index("flag"), "flag", table["flag"].cast("int64"))
                pq.write_table(table, writer.path / "train" / f"{number}.parquet")
            return writer.commit(properties={"splits": ["train"]})

    examples = run_shared_stage(write, kind="examples")
    figures = run_shared_stage(statistics.run, kind="statistics", inputs={"examples": examples})
    frozen = run_shared_stage(schema.run, kind="schema", inputs={"statistics": figures})
    model = {"uri": "file:///m", "kind": "model", "fingerprint": "m", "properties": {"features": FEATURES}}
    served = {
        "version": 3, "model": model, "statistics": figures.uri, "schema": frozen.uri, "fingerprint": "m",
        "serving_path": "/m/3", "since": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    event = {"at": "2026-01-01T00:00:00+00:00", "event": "deployed", "version": 3}
    record = {"champion": served, "challenger": None, "history": [event]}
    shared_store.write_text(shared_store.internal("_models", "mixed.json"), json.dumps(record))
    return shared_store


def test_window_without_requests_is_insufficient_until_the_log_is_silent(
    champion: ArtifactStore, run_shared_stage: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    logs.append(log, [{"id": "r", "t": "2027-01-01T00:00:00Z", "v": 9, "a": 1, "p": 1.0}])
    fields = {"request_id": "id", "captured_at": "t", "version": "v", "inputs": {"a": "a"}, "outputs": {"p": "p"}}
    source = CapturedSource(str(log), model="mixed", **fields)
    empty = run_shared_stage(ingested(source), kind="snapshot")
    assert empty.rows["log"].rejected == {"of version '9', which was not deployed from here": 1}

    def note(until: str | None) -> None:
        """Notes a report on requests up to a time."""

        def write(context: StepContext) -> Artifact:
            with context.output() as writer:
                return writer.commit(properties=SkewProperties(captured_until=until).to_dict())

        report = run_shared_stage(write, kind="skew")
        producer = champion.manifest(report.uri).producer
        note_report(champion, "mixed", report, [3], None, producer)

    def judge() -> Any:
        options = {"model_name": "mixed", "silent_after_s": 3 * 86_400}
        return run_shared_stage(skew.run, kind="skew", inputs={"captured": empty}, **options)

    days = [(datetime.now(UTC) - timedelta(days=number)).isoformat() for number in range(10)]
    with pytest.raises(BadInput, match=r"in all the time that its champion serves.*reach the log or topic that is"):
        judge()
    note(days[9])
    note(None)  # of a window without requests
    with pytest.raises(BadInput, match=f"was captured since {re.escape(days[9])}, longer than silent_after"):
        judge()
    note(days[1])
    note(None)
    judged = judge()
    assert SkewProperties.of(judged).verdict == "insufficient"
    report = json.loads((champion.local(judged) / "report.json").read_text())
    assert report["notes"][0] == "The ingest left out 1 row: 1 of version '9', which was not deployed from here"
    # Silence counts up to the end of the window, as of one that is caught up with.
    note(days[9])
    empty = run_shared_stage(ingested(source, SnapshotProperties((days[8], days[7]))), kind="snapshot")
    assert SkewProperties.of(judge()).verdict == "insufficient"


@pytest.mark.slow
@pytest.mark.parametrize("is_changed", [False, True])
def test_verdicts_are_equal(is_changed: bool, champion: ArtifactStore, run_shared_stage: Any, tmp_path: Path) -> None:
    requests = [replace(each, at_us=each.at_us // 1000 * 1000) for each in logs.random_requests(2, 1000)]  # of all logs
    requests = changed(requests) if is_changed else requests

    def judge(snapshot: Artifact) -> Any:
        options = {"model_name": "mixed", "predictions": False, "attribute": False}
        artifact = run_shared_stage(skew.run, kind="skew", inputs={"captured": snapshot}, **options)
        report = json.loads((champion.local(artifact) / "report.json").read_text())
        return {name: report[name] for name in ("verdict", "features", "versions", "rows_current", "captured_until")}

    def own(context: StepContext) -> Artifact:
        with context.output() as writer:
            (writer.path / "captured").mkdir()
            for number, table in enumerate(logs.own_rows(requests)):
                pq.write_table(table, writer.path / "captured" / f"{number}.parquet")
            return writer.commit()

    expected = judge(run_shared_stage(own, kind="snapshot"))
    assert expected["verdict"] == ("drift" if is_changed else "stable")
    for way, write in logs.WAYS.items():
        folder = tmp_path / way
        folder.mkdir()
        source, _ = write(folder, requests)

        assert judge(run_shared_stage(ingested(source), kind="snapshot")) == expected, way
