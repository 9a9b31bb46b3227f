"""Requests of 12 kinds of columns: as the model server captures them, and as the logs of other endpoints have them."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import RowCounts
from airflow_hops.core.models.logged_windows import LoggedWindow
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import PredictRequest, PredictResponse
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.core.records import LogRecords
from airflow_hops.extensions.captured_logs.core.windows import WindowPlan
from airflow_hops.extensions.captured_logs.ml.plan import plan_logs
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.step.context import StepContext, made_current
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.capture.rows import CallTables
from airflow_hops.serving.request_kind import RequestKind

TYPES = {
    "small": "int64", "large": "int64", "narrow": "int32", "single": "float32", "double": "float64",
    "holes": "float64", "flag": "bool", "word": "string", "text": "string", "digits": "string",
    "vector": "list<float>", "counts": "list<int64>",
}  # fmt: skip
"""Arrow type of each kind of column."""
SCHEMA = {f"input.{name}": kind for name, kind in TYPES.items() if not kind.startswith("list")}
FLAT = [name for name in TYPES if not TYPES[name].startswith("list")]
"""Columns that CSV can have."""
_TEXTS = [
    "",
    "a",
    'say "no"',
    "a,b;c",
    "line\nbreak",
    "Zürich",
    "日本",
    " padded ",
    "NaN",
    "null",
    "0",
    "[1]",
    "x" * 300,
]


@dataclass(frozen=True)
class Request:
    """A request of the test, with the answer to it."""

    request_id: str
    at_us: int
    version: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        return len(self.outputs["probability"])

    @property
    def time(self) -> str:
        moment = datetime.fromtimestamp(self.at_us // 10**6, UTC).replace(microsecond=self.at_us % 10**6)
        return moment.isoformat().replace("+00:00", "Z")

    def values(self, name: str) -> list[Any]:
        """The values of a column as JSON has them."""
        values = self.inputs[name] if name in self.inputs else self.outputs[name]
        return [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]

    def records(self, names: Sequence[str]) -> list[dict[str, Any]]:
        columns = [self.values(name) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def random_requests(seed: int, count: int, *, version: int = 3) -> list[Request]:
    """Requests of one to four rows, with values of which each type has few."""
    rng = np.random.default_rng(seed)
    results = []
    for number in range(count):
        rows = int(rng.integers(1, 5))

        def texts(pool: Sequence[str], rows: int = rows) -> np.ndarray:
            return np.array([rng.choice(pool).encode() for _ in range(rows)], object)

        doubles = rng.normal(0, 1, rows) * 10.0 ** rng.integers(-300, 300, rows)
        inputs = {
            "small": rng.integers(-5, 5, rows),
            "large": rng.integers(2**53, 2**63 - 1, rows) * rng.choice([-1, 1], rows),
            "narrow": rng.integers(-(2**31), 2**31 - 1, rows).astype(np.int32),
            "single": rng.normal(0, 1000, rows).astype(np.float32),
            "double": np.where(rng.random(rows) < 0.2, -0.0, doubles),
            "holes": np.where(rng.random(rows) < 0.5, np.nan, rng.normal(0, 1, rows)),
            "flag": rng.random(rows) < 0.5,
            "word": texts(["red", "green", "blue"]),
            "text": texts(_TEXTS),
            "digits": texts(["007", "12", "1e3", "-0", "+5"]),
            "vector": rng.normal(0, 1, (rows, 3)).astype(np.float32),
            "counts": rng.integers(0, 9, (rows, 2)),
        }
        outputs = {"probability": rng.random(rows).astype(np.float32)}
        at_us = 1_790_000_000_000_000 + number * 1_000_000 + int(rng.integers(0, 10**6))
        results.append(Request(f"r-{seed}-{number}", at_us, version, inputs, outputs))
    return results


def own_rows(requests: Sequence[Request], names: Sequence[str] = tuple(TYPES)) -> list[pa.Table]:
    """The tables that the model server's writer makes of requests."""
    tables = CallTables()
    for each in requests:
        request, response = PredictRequest(), PredictResponse()
        for message, arrays in ((request.inputs, each.inputs), (response.outputs, each.outputs)):
            for name, values in arrays.items():
                if name in names or name in each.outputs:
                    tensors.fill_proto(message[name], values)
        kind = RequestKind("mixed", each.version, "Predict", "GRPC")
        sent = request.SerializeToString(), response.SerializeToString()
        tables.add(CapturedCall(kind, each.request_id, each.at_us, 1.0, each.rows, *sent))
    return [group.to_table() for group in tables.groups]


# A log: its source, and the columns that survive in it. Each writes the requests below a folder.


def flat_lines(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
    lines = []
    for each in requests:
        for row, values in enumerate(each.records([*TYPES, "probability"])):
            meta = {"id": each.request_id, "n": row}
            lines.append({"meta": meta, "time": each.time, "model_version": str(each.version), "f": values})
    write_lines(folder / "log.jsonl", lines)
    inputs = {name: f"f.{name}" for name in TYPES}
    columns = {"request_id": "meta.id", "row": "meta.n", "captured_at": "time", "version": "model_version"}
    return source_of(folder / "*.jsonl", inputs=inputs, outputs={"probability": "f.probability"}, **columns), [*TYPES]


def flat_parquet(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
    rows = [
        {"id": each.request_id, "n": row, "at": each.at_us / 10**6, "v": each.version, **values}
        for each in requests
        for row, values in enumerate(each.records([*TYPES, "probability"]))
    ]
    table = pa.Table.from_pylist(rows)
    times = pa.array([each.at_us for each in requests for _ in range(each.rows)], pa.timestamp("us", "UTC"))
    table = table.set_column(table.column_names.index("at"), "at", times)
    half = len(rows) // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        if len(part):
            pq.write_table(part, folder / f"{number}.parquet")
    inputs = {name: name for name in TYPES}
    columns = {"request_id": "id", "row": "n", "captured_at": "at", "version": "v"}
    return source_of(folder, inputs=inputs, outputs={"probability": "probability"}, **columns), [*TYPES]


def bodies(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
    """Bodies of TensorFlow Serving's REST API, gzipped, in Base64, in a gzipped log."""
    lines = []
    for number, each in enumerate(requests):
        request = {"instances": each.records([*TYPES])}
        if number % 2:
            request = {"inputs": {name: each.values(name) for name in TYPES}}
        content = base64.b64encode(gzip.compress(json.dumps(request).encode())).decode()
        answer = json.dumps({"predictions": each.values("probability")})
        time = each.at_us
        lines.append({"id": each.request_id, "us": time, "v": each.version, "request": content, "response": answer})
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "log.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    columns = {"request_id": "id", "captured_at": "us", "time_unit": "us", "version": "v"}
    source = source_of(folder, request="request", response="response", outputs=("probability",), **columns)
    return source, [*TYPES]


def sagemaker(encoding: str) -> Any:
    def write(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
        names = FLAT if encoding == "CSV" else [*TYPES]
        for number, each in enumerate(requests):
            rows = each.records(names)
            if encoding == "CSV":
                table, answers = [[*row.values()] for row in rows], [[value] for value in each.values("probability")]
                if number % 3 == 1:  # with a header, whose order counts
                    table, answers = [[*reversed(row)] for row in ([*names], *table)], [["probability"], *answers]
                request, answer, kind = to_csv(table), to_csv(answers), "text/csv"
            else:
                request = json.dumps({"instances": rows})
                answer, kind = json.dumps({"predictions": each.values("probability")}), "application/json"
            if encoding == "BASE64":
                request, answer = (base64.b64encode(text.encode()).decode() for text in (request, answer))
            parts = {
                name: {"observedContentType": kind, "mode": mode, "data": data, "encoding": encoding}
                for name, mode, data in (("endpointInput", "INPUT", request), ("endpointOutput", "OUTPUT", answer))
            }
            event = {"eventId": each.request_id, "inferenceTime": each.time}
            line = {"captureData": parts, "eventMetadata": event, "eventVersion": "0"}
            hour = datetime.fromtimestamp(each.at_us / 10**6, UTC).strftime("%Y/%m/%d/%H")
            variant = "blue" if encoding == "CSV" else "v3"  # the name that a deployment of ours gives it
            append(folder / "mixed-prod" / variant / hour / f"{number % 3:02}-capture.jsonl", [line])
        options: dict[str, Any] = {"outputs": ("probability",)}
        if encoding == "CSV":
            options["versions"] = {"blue": 3}
        return source_of(folder, layout="sagemaker", inputs=tuple(names), **options), names

    return write


_INFERENCE = {
    "databricks_request_id": pa.string(), "client_request_id": pa.string(), "status_code": pa.int32(),
    "sampling_fraction": pa.float64(), "request": pa.string(), "response": pa.string(),
}  # fmt: skip
_AI_GATEWAY = {
    **_INFERENCE, "request_date": pa.date32(), "request_time": pa.timestamp("us", "UTC"), "requester": pa.string(),
    "execution_duration_ms": pa.int64(), "served_entity_id": pa.string(), "logging_error_codes": pa.list_(pa.string()),
}  # fmt: skip
_OLDER = {
    **_INFERENCE, "date": pa.date32(), "timestamp_ms": pa.int64(), "execution_time_ms": pa.int64(),
    "request_metadata": pa.map_(pa.string(), pa.string()),
}  # fmt: skip


def databricks(types: Mapping[str, pa.DataType], version: str) -> Any:
    """An inference table with the columns of Databricks' reference."""

    def write(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
        rows = []
        for each in requests:
            data = [[*row.values()] for row in each.records([*TYPES])]
            facts = {
                "databricks_request_id": each.request_id,
                "timestamp_ms": each.at_us // 1000,
                "request_time": each.at_us,
                "status_code": 200,
                "sampling_fraction": 1.0,
                "request": json.dumps({"dataframe_split": {"columns": [*TYPES], "data": data}}),
                "response": json.dumps({"predictions": each.values("probability")}),
                "served_entity_id": version,
                "request_metadata": [("endpoint_name", "mixed"), ("model_name", "v3"), ("model_version", version)],
            }
            rows.append({name: facts.get(name) for name in types})
        table = pa.Table.from_pylist(rows, pa.schema([*types.items()]))
        pq.write_table(table, folder / "part.parquet", use_deprecated_int96_timestamps=True)  # as Spark does
        options = {"versions": {version: 3}, "outputs": ("probability",)}
        return source_of(folder, layout="databricks", **options), [*TYPES]

    return write


def kserve(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
    events: list[dict[str, Any]] = []
    for number, each in enumerate(requests):
        request = {"inputs": [tensor(name, each.values(name)) for name in TYPES]}
        answer = {
            "model_name": "mixed",
            "model_version": "3",
            "outputs": [tensor("probability", each.values("probability"))],
        }
        for kind, body in (("request", request), ("response", answer)):
            event = {
                "specversion": "1.0", "id": each.request_id, "source": "http://localhost:9081/", "time": each.time,
                "type": f"org.kubeflow.serving.inference.{kind}", "inferenceservicename": "mixed", "endpoint": "",
            }  # fmt: skip
            data = (
                {"data": body} if number % 2 else {"data_base64": base64.b64encode(json.dumps(body).encode()).decode()}
            )
            events.append({**event, **data})
    write_lines(folder / "events.jsonl", events)
    return source_of(folder, layout="kserve"), [*TYPES]


_STORED = {
    "json": lambda name: name, "csv": lambda name: name[0].lower() + name[1:],
    "parquet": lambda name: name[0].lower() + name[1:],
    "parquet of the agent": lambda name: re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower(),
}  # fmt: skip
"""Names of the fields of KServe's records, by form: those of a Go struct, or of the tables of its marshallers."""


def kserve_records(form: str, batch: int) -> Any:
    """Records as KServe's agent uploads them (pkg/logger of its source): an object a batch, named by its last one."""

    def write(folder: Path, requests: Sequence[Request]) -> tuple[CapturedSource, Sequence[str]]:
        records: list[tuple[Request, str, Any]] = []
        for each in requests:
            request = {"inputs": [tensor(name, each.values(name)) for name in TYPES]}
            answer = {"model_version": "3", "outputs": [tensor("probability", each.values("probability"))]}
            records += [(each, "request", request), (each, "response", answer)]
        for start in range(0, len(records), batch):
            those = records[start : start + batch]
            each, kind, _ = those[-1]
            path = folder / f"{each.request_id}-{kind}.{form[:7]}"
            path.write_bytes(_stored(form, those))
            os.utime(path, ns=(each.at_us * 1000,) * 2)
        return source_of(folder, layout="kserve"), [*TYPES]

    return write


def _stored(form: str, records: Sequence[tuple[Request, str, Any]]) -> bytes:
    rows, is_json = [], form == "json"
    for each, kind, body in records:
        content = json.dumps(body).encode()
        facts = {
            "Url": {"Scheme": "s3", "Host": "logs", "User": None} if is_json else "s3://logs",
            "Bytes": content if form.endswith("agent") else base64.b64encode(content).decode(),
            "ContentType": "application/json", "ReqType": f"org.kubeflow.serving.inference.{kind}",
            "Id": each.request_id, "InferenceService": "mixed", "Namespace": "default", "Component": "predictor",
            "Endpoint": "default", "Metadata": {"K": ["v"]} if is_json else '{"K":["v"]}', "TlsSkipVerify": False,
        }  # fmt: skip
        rows.append({_STORED[form](name): value for name, value in facts.items()})
    if is_json:
        return json.dumps(rows[0] if len(rows) == 1 else rows).encode()
    if form == "csv":
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([list(rows[0]), *(each.values() for each in rows)])
        return text.getvalue().encode()
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


WAYS = {
    "KServe records, json": kserve_records("json", 1), "KServe records, json batches": kserve_records("json", 7),
    "KServe records, csv": kserve_records("csv", 5), "KServe records, parquet": kserve_records("parquet", 16),
    "KServe records, parquet of the agent": kserve_records("parquet of the agent", 4),
    "flat lines": flat_lines, "flat Parquet": flat_parquet, "bodies": bodies, "SageMaker CSV": sagemaker("CSV"),
    "SageMaker JSON": sagemaker("JSON"), "SageMaker BASE64": sagemaker("BASE64"), "KServe": kserve,
    "Databricks": databricks(_AI_GATEWAY, "e-17"), "Databricks, older": databricks(_OLDER, "7"),
}  # fmt: skip


def tensor(name: str, values: list[Any]) -> dict[str, Any]:
    """A tensor of the Open Inference Protocol."""
    shape = [len(values), *([len(values[0])] if isinstance(values[0], list) else [])]
    return {"name": name, "shape": shape, "datatype": "BYTES", "data": values}


def source_of(log: Path | str, **fields: Any) -> CapturedSource:
    return CapturedSource(str(log), model="mixed", schema={**SCHEMA, "output.probability": "float32"}, **fields)


def to_csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [{True: "true", False: "false"}[value] if isinstance(value, bool) else value for value in row] for row in rows
    )
    return text.getvalue()


def write_lines(path: Path, values: Sequence[Any]) -> None:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def append(path: Path, values: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.writelines(f"{json.dumps(value)}\n" for value in values)


class Ingests:
    """Plans, reads and commits windows of logs as IngestOperator does."""

    def __init__(self, make_context: Any, folder: Path) -> None:
        self._make_context, self._folder, self._count = make_context, folder, 0

    def __call__(
        self,
        source: CapturedSource,
        start: str | None = None,
        end: str | None = None,
        *,
        run_id: str | None = None,
        ends_before: str | None = None,
    ) -> tuple[pa.Table, RowCounts]:
        """Returns the rows of a window; ``ends_before`` a run that is killed before it reads, or before the commit."""
        self._count += 1
        context = self._make_context(run_id=run_id or f"run-{self._count}", task_id=self.task(source))
        (value,) = plan_logs(context, sources={"log": source.to_dict()}, window=[start, end]).values()
        if ends_before == "read":
            raise Killed
        plan = json.loads(json.dumps(value))
        folder = self._folder / f"snapshot-{self._count}"
        folder.mkdir()
        with made_current(context):
            rows, _ = ingest_table("log", source, Window.parse(start, end), OutputFolder(str(folder)), plan=plan)
        if ends_before == "commit":
            raise Killed
        commit(context, plan)
        return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("log/*.parquet"))), rows

    def task(self, source: CapturedSource) -> str:
        """The task that reads a log."""
        return f"ingest-{zlib.crc32(f'{self._folder} {source.uri}'.encode())}"


class Killed(Exception):
    """Raised instead of the end of a run that was killed."""


def commit(context: StepContext, plan: Any, logged: LoggedWindow | None = None) -> None:
    """Records that the step of a plan has succeeded."""
    window = WindowPlan.from_dict(plan)
    LogRecords.of_plan(context.store, window).commit(window, logged)


def sorted_rows(tables: Sequence[pa.Table], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of tables, in the order of their ids, with NaN as a text, as it equals nothing."""
    rows = [row for table in tables for row in table.select([*names]).to_pylist()]
    for row in sorted(rows, key=lambda row: (row["request_id"], row["row"])):
        yield tuple("NaN" if value != value else value for value in row.values())
