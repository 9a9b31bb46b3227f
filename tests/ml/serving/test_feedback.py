"""Labels that arrive later, joined by request id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server_process import Start

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.captured.feedback import join_feedback, read_feedback


def test_labels_are_joined_with_their_rows(start_server: Start, saved_models: Path, tmp_path: Path) -> None:
    captured = tmp_path / "captured [1]"
    server = start_server(model_name="flights", model_base_path=saved_models / "flights", capture_base_path=captured)
    row = {"carrier": "AA", "distance": [1.0], "hour": 5}
    for name in ("one", "two", "three"):
        server.predict("flights", {"instances": [row, row]}, headers={"x-request-id": name})

    def feedback(*entries: dict[str, Any]) -> Any:
        status, answer = server.call("/v1/feedback", [{"model": "flights", **entry} for entry in entries])
        assert status == 200, answer
        return answer

    assert feedback({"request_id": "one", "label": 1}, {"request_id": "one", "row": 1, "label": 0}) == {
        "accepted": 2,
        "dropped": 0,
    }
    # The label that became known last is right, whenever the server was told.
    feedback({"request_id": "two", "label": {"late": True, "minutes": 17}, "at": "2026-03-01T10:00:00+00:00"})
    feedback({"request_id": "two", "label": {"minutes": 3.5}, "at": "2026-02-01T10:00:00+00:00"})
    feedback({"request_id": "three", "label": {"minutes": 2**60 + 1}})
    feedback({"request_id": "nobody", "label": "x"}, {"request_id": "one", "label": 2.5})
    server.flush()
    counts = server.call("/v1/capture")[1]["models"]["flights"]
    assert (counts["captured_labels"], counts["written_labels"], counts["written_rows"]) == (7, 7, 6)

    for entry, words in (
        ({"model": "flights", "request_id": "one"}, "feedback 0: 'label' is null; expected a number"),
        ({"model": "flights", "label": 1}, "feedback 0: 'request_id' is null; expected a text"),
        ({"model": "flights", "request_id": "a", "label": 1, "row": -1}, "'row' is -1"),
        ({"model": "flights", "request_id": "a", "label": [1]}, "'label' is [1]"),
        # Half of a character alone is no text that a file could hold, and must not take other labels with it.
        (b'{"model": "flights", "request_id": "a", "label": "\\ud800"}', "'label' is \"\\ud800\""),
        (b'{"model": "flights", "request_id": "\\ud800", "label": 1}', "'request_id' is \"\\ud800\""),
        (b'{"model": "flights", "request_id": "a", "label": {"\\ud800": 1}}', "'label', '\\ud800' is 1"),
        ({"model": "flights", "request_id": "a", "label": 1, "at": "soon"}, "'at' is \"soon\"; expected a time"),
        ({"model": "flights", "request_id": "a", "label": 1, "lable": 1}, 'a field is "lable"'),
        ([{"model": "flights", "request_id": "a", "label": 1}, 7], "feedback 1: the entry is 7"),
        (b"{", "JSON Parse error"),
    ):
        status, message = server.error("/v1/feedback", entry)
        assert (status, words in message) == (400, True), message
    assert server.error("/v1/feedback", {"model": "trains", "request_id": "a", "label": 1})[0] == 404
    assert server.call("/v1/capture")[1]["models"]["flights"]["captured_labels"] == 7

    folder = captured / "flights"
    rows = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])
    # "x" is the label of nobody; a text and a number under one name are texts together, and do not end the reading.
    table = join_feedback(rows, read_feedback(folder))
    names = ["request_id", "row", "label.value", "label.late", "label.minutes"]
    assert table.num_columns - rows.num_columns == 3
    assert join_feedback(rows, read_feedback(captured)).equals(rows)
    with pytest.raises(BadInput, match="feedback without a column 'row'; found"):
        join_feedback(rows, read_feedback(folder).drop(["row"]))
    foreign = tmp_path / "foreign" / "_feedback"
    foreign.mkdir(parents=True)
    for name, key in (("a", "one"), ("b", 1)):
        pq.write_table(pa.table({"request_id": [key], "label.value": [1]}), foreign / f"{name}.parquet")
    with pytest.raises(BadInput, match="'request_id' is of types int64 and string; expected one"):
        read_feedback(foreign.parent)
    assert table.select(names).to_pylist() == [
        {"request_id": "one", "row": 0, "label.value": "2.5", "label.late": None, "label.minutes": None},
        {"request_id": "one", "row": 1, "label.value": "0", "label.late": None, "label.minutes": None},
        {"request_id": "two", "row": 0, "label.value": None, "label.late": True, "label.minutes": 17.0},
        {"request_id": "two", "row": 1, "label.value": None, "label.late": None, "label.minutes": None},
        {"request_id": "three", "row": 0, "label.value": None, "label.late": None, "label.minutes": 2.0**60},
        {"request_id": "three", "row": 1, "label.value": None, "label.late": None, "label.minutes": None},
    ]
