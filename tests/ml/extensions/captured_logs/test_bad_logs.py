"""Entries that cannot be read as captured rows are refused, with their place."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.captured_logs import CapturedSource
from tests.ml.extensions.captured_logs import logs
from tests.ml.extensions.captured_logs.test_windows import entry, hourly

OPTIONS = {name: value for name, value in vars(hourly(Path("/log"))).items() if name not in ("uri", "time_column")}
BODIES = {"request": "q", "response": "s", "inputs": ("a", "b"), "outputs": ("p",)}


def capture(folder: Path, request: str, answer: str | None, encoding: str = "JSON", variant: str = "blue") -> None:
    parts = {"endpointInput": {"data": request, "encoding": encoding}}
    if answer is not None:
        parts["endpointOutput"] = {"data": answer, "encoding": encoding}
    meta = {"eventId": f"e-{request}-{variant}", "inferenceTime": "2026-09-21T15:00:00Z"}
    place = folder / "churn" / variant / "2026" / "09" / "21" / "15" / "x.jsonl"
    logs.append(place, [{"captureData": parts, "eventMetadata": meta}])


def tensor(name: str) -> dict[str, Any]:
    return logs.tensor(name, [1])


def tensors(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "a", "datatype": "", **fields}]}


def answer_of(model: str) -> str:
    return json.dumps({"model_name": model, "outputs": [tensor("p")]})


ROW = "'n' is not the number of a row"
SPLIT = {"dataframe_split": {"columns": ["a", "a"], "data": [[0, 1]]}}
UNDECODED, NAMELESS = "a body that cannot be decoded", "a request without any of the inputs"
TIME, NUMBER = "'t' is not a time", "of a version that is not a number"
OTHER, KIND = "of an id with another content", "'input.a' is not of type int64"


@pytest.mark.parametrize(
    ("line", "fields", "reason", "detail"),
    [
        (entry(1, t="2026-09-21T15:00:00"), {}, TIME, r"'t' is 2026-09-21T15:00:00, without a zone; if it is UTC"),
        (entry(1, t="noon"), {}, TIME, r"'t' is 'noon'; expected a time in ISO 8601"),
        (entry(1, t=1e300), {}, TIME, r"'t' is 1e\+300; expected a time in the years 1 to 9999"),
        (entry(1, v="blue"), {}, NUMBER, r"'blue', not a number; give .*versions=\{'blue': 1\}"),
        (entry(1, v=None), {}, NUMBER, r"the version is '', not a number"),
        (entry(1, v="007"), {}, NUMBER, r"the version is '007', not a number"),
        (entry(1, id=""), {}, "without an id", r"'id' is ''; expected the id of the request"),
        (entry(1, id=True), {}, "without an id", r"'id' is True; expected the id of the request"),
        (entry(1, id="\ud800"), {}, "without an id", r"'id' is '\\ud800'; expected .* in Unicode"),
        (entry(1, id="x" * 10**6), {}, "without an id", r"'id' is 'x+\.\.\.x+'; expected .* of at most 1000"),
        (entry(1, n=-1), {"row": "n"}, ROW, "'n' is -1; expected the number of a row, 0 or more"),
        (entry(1, n=True), {"row": "n"}, ROW, "'n' is True; expected the number of a row, 0 or more"),
        (entry(0, a=2), {}, OTHER, r"the id 'r0' has another content than before; name a field"),
        (entry(0, y=1), {"labels": {"y": "y"}}, OTHER, "the id 'r0' has another content than"),
        (entry(1, q="1,2\n3,4", s="1\n2", n=0), {**BODIES, "row": "n"}, "of several rows", "has 2 rows, but .n. "),
        (entry(1, q="x" * 131_073), BODIES, UNDECODED, r"not CSV in UTF-8 \(field larger than field limit"),
        (entry(1, q="{cut"), BODIES, UNDECODED, r"the body is not JSON \(.*\); it begins with b'\{cut'"),
        (entry(1, q="H4sIAAAA"), BODIES, UNDECODED, r"the body begins with b'\\x1f\\x8b.*expected JSON or CSV"),
        (entry(1, q=None), BODIES, UNDECODED, r"the body is null; expected instances"),
        (entry(1, q='{"a": 1, "a": 2}'), BODIES, UNDECODED, r"not JSON \(a field of 'a' occurs twice"),
        (entry(1, q=SPLIT), BODIES, UNDECODED, "inputs has the name 'a' twice"),
        (entry(1, q={"inputs": [tensor("a"), tensor("a")]}), BODIES, UNDECODED, "the body has the tensor 'a' twice"),
        (entry(1, q={"instances": [[1, 2]], "inputs": [[3, 4]]}), BODIES, UNDECODED, "has 'instances' and 'inputs'"),
        (entry(1, q=tensors(shape=[2], data=None)), BODIES, UNDECODED, r"shape \[2\] and 0 values"),
        (entry(1, q=tensors(shape=[-1, -1], data=[1])), BODIES, UNDECODED, r"shape \[-1, -1\] and 1 values"),
        (entry(1, q=tensors(shape=[1, 10**15, 0], data=[])), BODIES, UNDECODED, r"of 1000000000000001 lists"),
        (entry(1, q={"c": 1}), BODIES, NAMELESS, "inputs names 'a', 'b', none of which is"),
        (entry(1, q="1,2,3"), BODIES, "another number of values than names", r"rows of 3 values .*names 2 \(a, b\)"),
        (entry(1, q="[[1,2]]", s="[1,2]"), BODIES, "another number of rows than its answer", r"1 rows .* but 2 of 'p'"),
        (entry(1, a={"b": 1}), {}, KIND, r"'input\.a' is \{'b': 1\}, which is not of type int64"),
        (entry(1, a="x"), {}, KIND, r"line 2: 'input\.a' is 'x', which is not"),
        (entry(1, a=[1]), {}, KIND, r"'input\.a' is \[1\], which is not"),
        (entry(1, a=2**64), {}, KIND, r"'input\.a' is 18446744073709551616"),
        (entry(1, a=True), {}, KIND, r"'input\.a' is True"),
        (entry(1, a="x"), {"schema": {"input.a": "int32"}}, "'input.a' is not of type int32", r"'input\.a' is 'x'"),
        (entry(1, e="b"), {"endpoint_field": "e"}, "of endpoint 'b'", "choose an endpoint by the source's 'endpoint'"),
        (entry(1, s=answer_of("b")), BODIES, "of endpoint 'b'", "choose an endpoint by the source's 'endpoint'"),
        ({"x": 1}, {}, "without 'id'", r"there is no field 'id'; the entry has x"),
    ],
)  # fmt: skip
def test_unreadable_entry_is_left_out(
    line: Any,
    fields: Any,
    reason: str,
    detail: str,
    tmp_path: Path,
    make_context: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One among honest entries is counted; nothing but it fails the window, with the same words."""
    honest = {"q": [[1, 2]], "s": answer_of("a"), "e": "a", "n": 0, "y": None}
    line = {**honest, **line} if "id" in line else line
    logs.append(tmp_path / "log" / "x.jsonl", [entry(0, **honest), line, entry(2, **honest), entry(3, **honest)])
    ingest = logs.Ingests(make_context, tmp_path)
    table, rows = ingest(hourly(tmp_path / "log", **fields))
    assert table["request_id"].to_pylist() == ["r0", "r2", "r3"]
    assert rows.rejected == {reason: 2 if reason == "of several rows" else 1} and rows.rows_in == 3 + sum(
        rows.rejected.values()
    )
    assert re.search(detail, caplog.text)
    with pytest.raises(
        BadInput, match=rf"[12] rows in the window .* cannot be read, beside 3 others; at most 1%.*{detail}"
    ):
        ingest(hourly(shutil.copytree(tmp_path / "log", tmp_path / "again"), max_rejected=0.01, **fields))
    if "another content" not in reason and "endpoint" not in reason and "type" not in reason:
        logs.append(tmp_path / "alone" / "x.jsonl", [line])
        with pytest.raises(BadInput, match=rf"no captured rows for the window .*{re.escape(reason)}.*{detail}"):
            ingest(hourly(tmp_path / "alone", **fields))


@pytest.mark.parametrize(
    ("line", "fields", "message"),
    [
        ({"t": 1_790_002_801}, {"time_unit": None}, r"'t' is 1790002801; give the source the time_unit of"),
        ({"e": "b"}, {"endpoint_field": "e"}, "the log has entries of 'a', and of 'b'; choose one by"),
        ({"q": [[1, 2]], "s": None}, BODIES, r"no captured rows .*\(2 without a response\); to watch inputs alone"),
    ],
)  # fmt: skip
def test_wrong_source_is_refused(line: Any, fields: Any, message: str, tmp_path: Path, make_context: Any) -> None:
    lines = [{**entry(number, e="a"), **(line if number or "e" not in line else {})} for number in range(2)]
    logs.append(tmp_path / "log" / "x.jsonl", lines)
    with pytest.raises(BadInput, match=message):
        logs.Ingests(make_context, tmp_path)(hourly(tmp_path / "log", **fields))


def test_refuses_other_files_and_empty_logs(tmp_path: Path, make_context: Any) -> None:
    log, ingest = tmp_path / "log", logs.Ingests(make_context, tmp_path)
    log.mkdir()
    assert ingest(hourly(log))[0].num_rows == 0
    with pytest.raises(BadInput, match="no file matches, and its folder does not exist"):
        ingest(hourly(log / "x" / "*.jsonl"))
    (log / "x.jsonl").write_text('{"a":' + "[" * 100_000)  # cut off
    assert ingest(hourly(log))[0].num_rows == 0
    (log / "y.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"y\.csv: begins with b'a,b.*expected JSON lines, also gzipped, or Parquet"):
        ingest(hourly(log))
    (log / "y.csv").unlink()
    pq.write_table(pa.table({"id": ["a"]}), log / "z.parquet")
    with pytest.raises(BadInput, match=r"z\.parquet, row 1: there is no field 't'; the entry has id"):
        ingest(hourly(log))
    content = (log / "z.parquet").read_bytes()
    (log / "z.parquet").unlink()
    (log / "w.parquet").write_bytes(content[:-3])
    with pytest.raises(BadInput, match=r"w\.parquet: the file is damaged, or not finished"):
        ingest(hourly(log))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n'.decode().encode("utf-16"), "begins with b'.xff.xfe"),
        (b'{"a": 1}\n'.decode().encode("utf-16-le"), "[12] no JSON object"),
        (bytes.fromhex("28b52ffd") + b"zstd", r"begins with b'\(.xb5/.xfd"),
        (b"PK\x03\x04", "begins with b'PK"),
        (gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], "damaged, or not finished"),
        (gzip.compress(b"a,b\n1,2\n"), "2 no JSON object"),
        (b'[{"a": 1}]', r"begins with b'\[\{"),
        (b"\x00" * 100, "begins with b'.x00"),
    ],
    ids=["utf-16", "utf-16 without a mark", "zstd", "zip", "cut gzip", "gzip of csv", "list", "zeros"],
)
def test_other_encodings_are_named(content: bytes, message: str, tmp_path: Path, make_context: Any) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "x.jsonl").write_bytes(content)
    with pytest.raises(BadInput, match=message):
        logs.Ingests(make_context, tmp_path)(hourly(tmp_path / "log"))


def test_requests_that_databricks_did_not_log_are_counted(tmp_path: Path, make_context: Any) -> None:
    """It leaves out a body that is too large, and has copies and errors."""
    requests = logs.random_requests(3, 5)
    (tmp_path / "log").mkdir()
    source, _ = logs.WAYS["Databricks"](tmp_path / "log", requests)
    path = tmp_path / "log" / "part.parquet"
    entries = pq.read_table(path).to_pylist()
    entries[1] |= {"request": None, "logging_error_codes": ["MAX_REQUEST_SIZE_EXCEEDED"]}
    entries[2] |= {"response": None, "logging_error_codes": ["MAX_RESPONSE_SIZE_EXCEEDED"]}
    entries[3] |= {"response": '{"error_code": "BAD_REQUEST"}', "status_code": 400}
    schema = pq.read_schema(path)
    ingest = logs.Ingests(make_context, tmp_path)
    pq.write_table(pa.Table.from_pylist([*entries, entries[4]], schema), path)
    table, rows = ingest(source)
    assert {*table["request_id"].to_pylist()} == {requests[0].request_id, requests[4].request_id}
    once = dict.fromkeys(("without a request", "without a response", "answered with status 400"), 1)
    assert rows.rejected == {**once, "delivered twice": requests[4].rows}
    pq.write_table(pa.Table.from_pylist(entries[1:2], schema), tmp_path / "log" / "newer.parquet")
    with pytest.raises(BadInput, match=r"no captured rows .*\(1 without a request\)"):
        ingest(source)


def test_refuses_what_data_capture_lacks(tmp_path: Path, make_context: Any) -> None:
    source = CapturedSource(str(tmp_path / "churn"), model="m", layout="sagemaker", inputs=("a",), versions={"blue": 1})
    ingest = logs.Ingests(make_context, tmp_path)
    capture(tmp_path, "1", None, "CSV")
    with pytest.raises(BadInput, match="1 without a response"):
        ingest(source)
    capture(tmp_path, "2", "0.5", "CSV")
    capture(tmp_path, "3", "0.5", "CSV", "green")
    table, rows = ingest(source)
    assert table["input.a"].to_pylist() == [2] and table["output.prediction"].to_pylist() == [0.5]
    assert rows.rejected == {"without a response": 1, "of version 'green', which was not deployed from here": 1}
    capture(tmp_path, "no base64", "0.5", "BASE64")
    with pytest.raises(
        BadInput, match=r", byte \d+, endpointOutput: the data is not in Base64, which its encoding says"
    ):
        ingest(source)
    logs.append(tmp_path / "other" / "x.jsonl", [{"captureData": {}}])
    source = replace(source, uri=f"captured://{tmp_path}/other")
    with pytest.raises(BadInput, match=r"x\.jsonl: expected data capture's folders, <endpoint>/<variant>/"):
        ingest(source)


def test_mode_inputs_reads_inputs_alone(tmp_path: Path, make_context: Any) -> None:
    fields = {"layout": "sagemaker", "inputs": ("a",), "versions": {"blue": 1}, "mode": "inputs"}
    capture(tmp_path, base64.b64encode(json.dumps({"instances": [[1.5], [2]]}).encode()).decode(), None, "BASE64")
    table, _ = logs.Ingests(make_context, tmp_path)(CapturedSource(str(tmp_path / "churn"), model="m", **fields))
    assert table["input.a"].to_pylist() == [1.5, 2.0]
    assert not [name for name in table.column_names if name.startswith("output.")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": ""}, "model is ''; expected the name under which the model has its record"),
        ({"layout": "azure"}, "layout is 'azure', expected one of columns, sagemaker"),
        ({"mode": "some"}, "mode is 'some'"),
        ({"request_id": None}, "request_id is None; expected the name of the log's field"),
        ({"version": None}, r"neither 'version' names a field of the log, nor does versions=\{'': 1\} give"),
        ({"versions": {"a": "1"}}, r"versions\['a'\] is '1'; expected the number of a version"),
        ({"inputs": ("a",)}, r"inputs is \('a',\); expected the log's field by name"),
        ({"inputs": {}}, r"inputs is \{\}; expected the log's field by name"),
        ({"request": "q", "inputs": ("a",), "outputs": ("p",)}, "response is None; expected the field with the"),
        ({"time_zone": "CET"}, "time_zone is 'CET'; expected 'UTC' or None"),
        ({"time_unit": "min"}, "time_unit is 'min', expected one of s, ms, us"),
        ({"lookback": 0}, "lookback is 0; expected 1 or more windows"),
    ],
)  # fmt: skip
def test_refuses_fields_of_a_source(fields: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CapturedSource("/log", **{**OPTIONS, **fields})
