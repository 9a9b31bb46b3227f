"""Performance of the predictions in a log that has labels, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captured_flights import CaptureFolder

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.performance import PerformanceReport
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.ml.performance import stage
from tests.ml.extensions.captured_logs import logs
from tests.ml.extensions.captured_logs.test_verdicts import ingested
from tests.ml.performance.test_performance import champion, deployed, drawn, true_probability  # noqa: F401

REQUESTS, ROWS, BEGIN_S = 40, 25, 1_364_774_400


@pytest.fixture
def measure(run_shared_stage: Callable[..., Any], deployed: ArtifactStore) -> Callable[..., PerformanceReport]:  # noqa: F811
    def run(inputs: dict[str, Artifact], path: str = "", **options: Any) -> PerformanceReport:
        options = {"inputs": inputs, "services": {"serving_capture_path": path}, "model_name": "flights", **options}
        artifact = run_shared_stage(stage.run, kind="performance", **options)
        return PerformanceReport.from_dict(json.loads((deployed.local(artifact) / "performance.json").read_text()))

    return run


def test_labelled_log_is_measured_as_own_capture(
    measure: Callable[..., PerformanceReport], run_shared_stage: Callable[..., Any], tmp_path: Path
) -> None:
    rows, capture, lines = drawn(REQUESTS * ROWS, 7), CaptureFolder(tmp_path / "captured"), []
    rows["request"], rows["row"] = np.divmod(np.arange(len(rows)), ROWS)
    for number, each in rows.groupby("request"):
        at_us = (BEGIN_S + number) * 10**6
        x = each["x"].to_numpy()
        outputs = {"probability": true_probability(x).astype(np.float32)}
        for row in each.itertuples():
            label = row.late if number % 4 else None
            entry = {"id": f"request-{number}", "n": row.row, "t": at_us, "x": row.x, "late": label}
            score = float(outputs["probability"][row.row])
            lines.append({**entry, "v": 3, "p": score})
            # Another version, whose predictions are the worst.
            lines.append({**entry, "id": f"other{number}", "v": 9, "p": 1 - score})
        capture.answer({"x": x}, outputs, version=3, at_us=at_us)
    logs.write_lines(tmp_path / "log.jsonl", lines)
    source = CapturedSource(
        str(tmp_path / "log.jsonl"), model="flights", request_id="id", row="n", captured_at="t", time_unit="us",
        version="v", versions={"3": 3}, inputs={"x": "x"}, outputs={"probability": "p"}, labels={"late": "late"},
        schema={"input.x": "float32", "output.probability": "float32"},
    )  # fmt: skip
    snapshot = run_shared_stage(ingested(source), kind="snapshot")
    assert snapshot.rows["log"].rejected == {"of version '9', which was not deployed from here": len(rows)}
    report = measure({"captured": snapshot, "labels": snapshot}, label_column="label.late")
    assert [(each.version, each.rows, each.labelled) for each in report.versions] == [(3, 1000, 750)]
    labels = rows[rows["request"] % 4 > 0].assign(request_id=[f"request-{n}" for n in rows["request"] if n % 4])
    pq.write_table(pa.Table.from_pandas(labels[["request_id", "row", "late"]]), tmp_path / "labels.parquet")
    source_of_labels = {"uri": str(tmp_path / "labels.parquet")}
    own = measure({}, str(tmp_path / "captured"), source=source_of_labels)
    assert report.versions == own.versions and report.periods == own.periods
    assert report.versions[0].figures["auc"][0] > 0.7
