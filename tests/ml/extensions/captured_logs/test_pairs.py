"""Events of KServe are joined only if no other response can be that of the request."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.extensions.captured_logs import CapturedSource
from tests.ml.extensions.captured_logs import logs
from tests.ml.extensions.captured_logs.test_windows import BEGIN_S


def event(kind: str, at_s: float, value: float, id_: str = "same") -> dict[str, Any]:
    tensor = logs.tensor("a" if kind == "request" else "prediction", [value])
    body = {"inputs": [tensor]} if kind == "request" else {"model_version": "3", "outputs": [tensor]}
    return {
        "id": id_, "time": datetime.fromtimestamp(BEGIN_S + at_s, UTC).isoformat(), "data": body,
        "type": f"org.kubeflow.serving.inference.{kind}", "inferenceservicename": "m", "endpoint": "",
    }  # fmt: skip


TWICE, OTHER = "delivered twice", "of an id with another content"
OVERLAP, ALONE = "of an id whose requests and responses overlap", "without a response"


@pytest.mark.parametrize(
    ("events", "pairs", "left_out"),
    [
        ([("request", 0, 1), ("response", 1, 0.1)] * 2, [(1, 0.1)], {TWICE: 1}),
        ([("request", 0, 1), ("response", 1, 0.1), ("request", 2, 2), ("response", 3, 0.1)], [(1, 0.1)], {OTHER: 1}),
        ([("request", 0, 1), ("response", 1, 0.1), ("request", 2, 2), ("response", 3, 0.2)], [(1, 0.1)], {OTHER: 1}),
        ([("request", 0, 1), ("request", 1, 2), ("response", 2, 0.1), ("response", 3, 0.1)], [(1, 0.1)], {OTHER: 1}),
        ([("request", 0, 1), ("request", 1, 2), ("response", 2, 0.1), ("response", 3, 0.2)], [], {OVERLAP: 2}),
        ([("request", 0, 1), ("request", 1, 2), ("response", 2, 0.1)], [], {OVERLAP: 2}),
        ([("request", 0, 1), ("response", 2, 0.1), ("request", 2, 2), ("response", 3, 0.2)], [], {OVERLAP: 2}),
    ],
)  # fmt: skip
def test_request_gets_its_own_response_or_none(
    events: Any, pairs: Any, left_out: dict[str, int], make_context: Any, tmp_path: Path
) -> None:
    """In any order of the log; requests of other ids are not concerned."""
    honest = [event(kind, 9, value, id_) for id_ in "xyz" for kind, value in (("request", 7), ("response", 0.7))]
    ingest = logs.Ingests(make_context, tmp_path)
    for number, order in enumerate(itertools.islice(itertools.permutations(events), 0, None, 5)):
        log = tmp_path / f"log-{number}.jsonl"
        logs.write_lines(log, [*honest, *(event(*each) for each in order)])
        source = CapturedSource(str(log), model="m", layout="kserve", inputs=("a",))
        table, rows = ingest(source)
        joined = zip(*(table[name].to_pylist() for name in ("request_id", "input.a", "output.prediction")), strict=True)
        ours = [values for id_, *values in joined if id_ == "same"]
        assert rows.rejected == left_out and len(ours) == len(pairs)
        assert all(tuple(each) in {(1, 0.1), (2, 0.1 if events[-1][2] == 0.1 else 0.2)} for each in ours)
