"""Random logs in each layout: rows of random types, and among them entries that hostile clients wrote."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.extensions.captured_logs import CapturedSource
from tests.ml.extensions.captured_logs import logs

KINDS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda rng: rng.randrange(-50, 50),
    "large": lambda rng: rng.randrange(2**53, 2**62),
    "float": lambda rng: rng.choice([rng.gauss(0, 1), 2.0, 1e-300, 0.1]),
    "holes": lambda rng: rng.choice([rng.random(), None]),
    "bool": lambda rng: rng.random() < 0.5,
    "text": lambda rng: rng.choice(["a", "Zürich", 'say "x"', "a,b;c", "x" * 200, "日本", "{", "line\nbreak"]),
    "vector": lambda rng: [rng.random() for _ in range(3)],
}
"""Values in JSON by kind of column."""
CELLS: dict[str, Callable[[random.Random], str]] = {
    "int": lambda rng: rng.choice(["6", " 6", "-12", "NA", "40", "9 "]),
    "float": lambda rng: rng.choice(["0.5", " 1.25", "NA", "", "3", "1e-05", "nan"]),
    "bool": lambda rng: rng.choice(["true", "False", "NA"]),
    "date": lambda rng: rng.choice(["2026-01-31", "2025-12-01", ""]),
    "time": lambda rng: rng.choice(["2026-01-31T12:00:00Z", "2026-01-31 12:00:00+01:00"]),
    "code": lambda rng: rng.choice(["007", "008", "1E5"]),
    "text": lambda rng: rng.choice(["red", "Zürich", "a b", "NA", "", 'say "x"', "a,b"]),
}
"""Cells of CSV by kind of column."""
WRONG: dict[str, list[Any]] = {
    "int": ["x", {"b": 1}, [1, 2], True, 2**70, "6"],
    "large": ["x", True, 2**70],
    "float": ["x", {"b": 1}, [1, 2], False, 2**70, 2**60 + 1],
    "holes": ["x", [[1], [2]]],
    "bool": [7, "true", [True, False]],
    "text": [7, "\ud800", {"a": "b"}, 0.5, ["a", "b"]],
    "vector": ["x", 1.5, ["a"], [[1.0, 2.0]], [1.0, "a"], {"a": 1}],
}
"""Values that are not of a kind of column."""
BEGIN_S = 1_790_000_000
REFUSALS = [
    "", "  ", "[]", "{}", "null", "<html><body>502</body></html>", '{"detail": "no"}', '{"predictions": null}',
    '{"error_code": "BAD", "message": "no"}', '{"error": "x", "prediction": null}', '{"outputs": [], "error": 1}',
]  # fmt: skip
"""Answers without predictions."""
BOMBS = [
    "\ud800,",  # which Parquet does not hold
    '{"inputs": [{"name": "%s", "datatype": "X", "shape": [1000000000000000, 0], "data": []}]}',
    '{"inputs": [{"name": "%s", "datatype": "X", "shape": [1, 1000000000, 0], "data": []}]}',
    "[" * 100_000,
    '{"%s": 1, "%s": 2}',
    '{"instances": [[1]], "inputs": [[1]]}',
    '{"cut',
    base64.b64encode(gzip.compress(b" " * (33 << 20))).decode(),
    base64.b64encode(gzip.compress(b'{"a": 1}')[:-9]).decode(),
]
"""Requests that cannot be decoded."""


@dataclass(frozen=True)
class Entry:
    """A logged request."""

    id: Any
    at_s: Any
    request: Any
    answer: Any
    version: Any = "3"
    status: int = 200


@dataclass
class Log:
    """A log of a layout.

    Attributes:
        names: Columns.
        kinds: Kind of each.
        rows: Honest rows: id of the request, number of the row, and values.
        entries: All entries.
        left_out: Rows that are left out, by reason.
    """

    names: list[str]
    kinds: dict[str, str]
    rows: list[tuple[str, int, list[Any]]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def draw(rng: random.Random, layout: str) -> Log:
    """Draws a log for a layout."""
    pool = CELLS if layout == "csv" else KINDS
    chosen = ["int", *rng.choices(list(pool), k=rng.randrange(1, 4))]
    log = Log([f"c{number}" for number in range(len(chosen))], {f"c{n}": kind for n, kind in enumerate(chosen)})
    count = rng.randrange(6, 14)
    for number in range(count):
        size = 1 if layout == "flat" else rng.choice([1, 1, 2, 3])
        rows = [[pool[log.kinds[name]](rng) for name in log.names] for _ in range(size)]
        _add(rng, layout, log, f"r{number}", number, rows)
    for number in range(rng.randrange(count // 2)):
        _add_hostile(rng, layout, log, f"h{number}", 1000 + 10 * number)
    return log


def _add(rng: random.Random, layout: str, log: Log, id_: str, at_s: int, rows: list[list[Any]]) -> Entry:
    log.rows += [(id_, number, row) for number, row in enumerate(rows)]
    log.entries.append(_entry(rng, layout, log, id_, at_s, rows))
    return log.entries[-1]


def _entry(rng: random.Random, layout: str, log: Log, id_: str, at_s: int, rows: list[list[Any]]) -> Entry:
    scores = [rng.random() for _ in rows]
    if layout == "flat":
        return Entry(id_, at_s, dict(zip(log.names, rows[0], strict=True)), scores[0])
    if layout == "csv":
        one_line = ",".join(map(str, scores))
        return Entry(id_, at_s, _csv(rows), rng.choice([one_line, _csv([[score] for score in scores])]))
    return Entry(id_, at_s, _encoded(rng, _request(rng, log.names, rows)), _encoded(rng, _answer(rng, scores)))


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _request(rng: random.Random, names: list[str], rows: list[list[Any]]) -> Any:
    records = [dict(zip(names, row, strict=True)) for row in rows]
    columns = {name: [row[column] for row in rows] for column, name in enumerate(names)}
    if len(rows) > 1:
        whole: Any = columns
    else:
        whole = records[0]
    tensors = [
        {
            "name": name,
            "datatype": "X",
            "shape": [len(rows), *([3] if isinstance(values[0], list) else [])],
            "data": values,
        }
        for name, values in columns.items()
    ]
    forms = [
        {"instances": records}, {"instances": rows}, {"dataframe_records": records}, {"inputs": columns},
        {"dataframe_split": {"columns": names, "data": rows}}, {"inputs": tensors}, whole, records,
        {"instances": [{"features": row} for row in rows]},
        {"instances": [{"data": {"features": {"values": row}}} for row in rows]},
        "".join(f"{json.dumps(record)}\n" for record in records),
        "".join(json.dumps(record) for record in records),
    ]  # fmt: skip
    return rng.choice(forms)


def _answer(rng: random.Random, scores: list[float]) -> Any:
    records = [{"prediction": score} for score in scores]
    whole = {"prediction": scores if len(scores) > 1 else scores[0]}
    tensor = {"name": "prediction", "datatype": "X", "shape": [len(scores)], "data": scores}
    forms = [
        {"predictions": scores}, {"predictions": records}, {"predictions": [[score] for score in scores]}, whole,
        {"outputs": {"prediction": scores}}, {"outputs": [tensor]}, records, ",".join(map(str, scores)),
        "".join(f"{json.dumps(record)}\n" for record in records), "".join(f"{score}\n" for score in scores),
    ]  # fmt: skip
    return rng.choice(forms)


def _encoded(rng: random.Random, body: Any) -> Any:
    text = body if isinstance(body, str) else json.dumps(body)
    way = rng.randrange(4)
    if way == 0 or (way > 1 and text[:1] not in "{["):
        return text
    if way == 1:
        return body
    content = text.encode() if way == 2 else gzip.compress(text.encode())
    return base64.b64encode(content).decode()


def _add_hostile(rng: random.Random, layout: str, log: Log, id_: str, at_s: int) -> None:
    """Adds an entry that is left out, and its reason."""
    pool = CELLS if layout == "csv" else KINDS
    row = [pool[log.kinds[name]](rng) for name in log.names]
    entry = _entry(rng, layout, log, id_, at_s, [row])
    bomb = rng.choice(BOMBS[layout == "databricks" :]).replace("%s", log.names[0])
    rows = 1
    victim = next(
        each for each in rng.sample(log.entries, len(log.entries)) if each.at_s in range(1000) and each.version == "3"
    )
    size = sum(each == victim.id for each, _, _ in log.rows)
    way = rng.choice(["id", "time", "version", "twice", "same id", "value", "answer", "request", "names", "status"])
    if way == "id":
        entry, reason = replace(entry, id=rng.choice(["", None, "x" * 2000])), "without an id"
    elif way == "time":
        times = (
            ["yesterday", None] if layout == "databricks" else ["yesterday", None, True, [1], 1e300, "2026-01-01T10:00"]
        )
        entry, reason = replace(entry, at_s=rng.choice(times[layout == "databricks" :])), "is not a time"
    elif way == "version" and layout in ("lines", "flat"):
        entry, reason = (
            replace(entry, version=rng.choice(["007", "blue", "", "3.0", "٣", "1" * 40])),
            "of a version that",
        )
    elif way == "twice":
        entry, reason, rows = victim, "delivered twice", size
    elif way == "same id" and layout != "kserve":
        entry, reason = replace(entry, id=victim.id), "of an id with another content"
    elif way == "value" and layout not in ("csv", "parquet"):
        name = rng.choice(log.names)
        row[log.names.index(name)] = rng.choice(WRONG[log.kinds[name]])
        request: Any = dict(zip(log.names, row, strict=True))
        if layout != "flat":
            request = rng.choice([{"instances": [request]}, {"instances": [row]}, request, json.dumps(request)])
        entry, reason = replace(entry, request=request), f"'input.{name}' is not of type"
    elif way == "value" and layout == "csv" and {"int", "float"} & {*log.kinds.values()}:
        name = next(name for name in log.names if log.kinds[name] in ("int", "float"))
        row[log.names.index(name)] = rng.choice(["x", "1_000", "007", "²"])
        entry, reason = replace(entry, request=_csv([row])), f"'input.{name}' is not of type"
    elif way == "answer" and layout != "flat":
        entry, reason = replace(entry, request=bomb, answer=rng.choice(REFUSALS)), "answered without predictions"
    elif way == "request" and layout not in ("flat", "csv"):
        entry, reason = replace(entry, request=bomb), "a body that cannot be"
    elif way == "names" and layout not in ("flat", "csv"):
        entry, reason = replace(entry, request={"instances": [{"other": 1}]}), "a request without any of the inputs"
    elif way == "status" and layout == "databricks":
        entry, reason = replace(entry, request=bomb, answer=None, status=400), "answered with status 400"
    else:
        return
    is_twice = layout == "kserve" and way in ("id", "time")  # in both events
    log.left_out[reason] += 2 if is_twice else rows
    log.entries.append(entry)


# Writers of layouts. Each writes the entries below a folder, and returns the source.


def write(layout: str, folder: Path, log: Log, rng: random.Random) -> CapturedSource:
    """Writes the log in a layout, and returns its source."""
    folder.mkdir()
    entries = rng.sample(log.entries, len(log.entries))
    ids = [entry.id for entry in entries]
    # The first of two entries with an id counts.
    in_order = {id_: iter([entry for entry in log.entries if entry.id == id_]) for id_ in ids}
    entries = [next(in_order[id_]) for id_ in ids]
    return _WRITERS[layout](folder, log, entries, rng)


def _lines(folder: Path, log: Log, entries: list[Entry], rng: random.Random) -> CapturedSource:
    fields = [
        {"id": each.id, "t": _time(each, BEGIN_S), "v": each.version, "q": each.request, "s": each.answer}
        for each in entries
    ]
    _write(folder / "log.jsonl", fields, log, rng)
    columns = {
        "request_id": "id",
        "captured_at": "t",
        "time_unit": "s",
        "version": "v",
        "request": "q",
        "response": "s",
    }
    return CapturedSource(str(folder), model="m", inputs=tuple(log.names), **columns)


def _flat(folder: Path, log: Log, entries: list[Entry], rng: random.Random) -> CapturedSource:
    fields = [
        {"id": each.id, "t": _time(each, BEGIN_S), "v": each.version, "f": each.request, "p": each.answer}
        for each in entries
    ]
    _write(folder / "log.jsonl.gz", fields, log, rng)
    inputs = {name: f"f.{name}" for name in log.names}
    columns = {"request_id": "id", "captured_at": "t", "time_unit": "s", "version": "v"}
    return CapturedSource(str(folder), model="m", inputs=inputs, outputs={"prediction": "p"}, **columns)


def _sagemaker(folder: Path, log: Log, entries: list[Entry], rng: random.Random) -> CapturedSource:
    fields = []
    for each in entries:
        sides = {}
        for name, body in (("endpointInput", each.request), ("endpointOutput", each.answer)):
            text = body if isinstance(body, str) else json.dumps(body)
            # By the text, so that copies are equal.
            is_encoded = len(text) % 2 and "\ud800" not in text
            data = base64.b64encode(text.encode()).decode() if is_encoded else text
            sides[name] = {"data": data, "encoding": "BASE64" if is_encoded else "JSON"}
        meta = {"eventId": each.id, "inferenceTime": _iso(each)}
        fields.append({"captureData": sides, "eventMetadata": meta, "eventVersion": "0"})
    # The same digest needs the same bytes.
    place = folder / "churn" / "v3" / "2026" / "09" / "21" / "15" / "x.jsonl"
    place.parent.mkdir(parents=True)
    _write(place, fields, log, rng)
    return CapturedSource(str(folder), model="m", layout="sagemaker", inputs=tuple(log.names))


def _databricks(folder: Path, log: Log, entries: list[Entry], rng: random.Random) -> CapturedSource:
    def text(body: Any) -> str | None:
        return body if isinstance(body, str | None) else json.dumps(body)

    rows = [
        {
            "databricks_request_id": each.id, "request_time": None if each.at_s is None else _microseconds(each),
            "status_code": each.status, "request": text(each.request), "response": text(each.answer),
            "served_entity_id": "e-17",
        }
        for each in entries
    ]  # fmt: skip
    types = {"databricks_request_id": pa.string(), "request_time": pa.timestamp("us", "UTC"), "status_code": pa.int32()}
    texts = dict.fromkeys(("request", "response", "served_entity_id"), pa.string())
    schema = pa.schema([*types.items(), *texts.items()])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "x.parquet", row_group_size=rng.choice([3, 100]))
    return CapturedSource(str(folder), model="m", layout="databricks", inputs=tuple(log.names), versions={"e-17": 3})


def _kserve(folder: Path, log: Log, entries: list[Entry], rng: random.Random) -> CapturedSource:
    events = []
    for each in entries:
        for kind, body in (("request", each.request), ("response", each.answer)):
            event = {
                "id": each.id, "time": _iso(each), "type": f"org.kubeflow.serving.inference.{kind}",
                "inferenceservicename": "m", "endpoint": "3",
            }  # fmt: skip
            events.append({**event, "data": body})
    rng.shuffle(events)
    _write(folder / "events.jsonl", events, log, rng)
    return CapturedSource(str(folder), model="m", layout="kserve", inputs=tuple(log.names))


def _write(path: Path, fields: list[Any], log: Log, rng: random.Random) -> None:
    """Writes JSON lines with damaged ones among them, and some objects on one line, as Firehose does."""
    lines = []
    for each in fields:
        text = json.dumps({**each, "end": {}}).encode()
        if lines and lines[-1].endswith(b"}}") and rng.random() < 0.3:
            lines[-1] += text
        else:
            lines.append(text)
        if rng.random() < 0.05 and len(fields) > 5:
            lines.append(rng.choice([b'{"id": "r', b"[1]", b"\xff\xfe{}", b'{"id": 1, "id": 2}', b"[" * 5000, b"x"]))
            log.left_out["no JSON object"] += 1
    content = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _time(entry: Entry, begin_s: int) -> Any:
    return begin_s + entry.at_s if type(entry.at_s) is int else entry.at_s


def _microseconds(entry: Entry) -> int:
    return (BEGIN_S + entry.at_s) * 10**6


def _iso(entry: Entry) -> Any:
    is_time = type(entry.at_s) is int
    return datetime.fromtimestamp(BEGIN_S + entry.at_s, UTC).isoformat() if is_time else entry.at_s


_WRITERS: dict[str, Callable[[Path, Log, list[Entry], random.Random], CapturedSource]] = {
    "lines": _lines, "flat": _flat, "sagemaker": _sagemaker, "csv": _sagemaker, "databricks": _databricks,
    "kserve": _kserve,
}  # fmt: skip
LAYOUTS = tuple(_WRITERS)


def write_plain(layout: str, folder: Path, log: Log) -> dict[str, Any]:
    """Writes the honest rows as a plain file that an ingest reads, and returns the fields of its source."""
    folder.mkdir()
    rows = [values for _, _, values in log.rows]
    if layout == "csv":
        (folder / "x.csv").write_text(_csv([log.names, *rows]))
        return {"uri": str(folder / "x.csv"), "format": "csv", "header": True}
    table = pa.table({name: [row[column] for row in rows] for column, name in enumerate(log.names)})
    pq.write_table(table, folder / "x.parquet")
    return {"uri": str(folder / "x.parquet")}


__all__ = ["LAYOUTS", "Log", "draw", "logs", "write", "write_plain"]
