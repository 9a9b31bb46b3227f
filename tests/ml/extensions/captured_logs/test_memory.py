"""Memory that a log takes is bounded by bytes, whatever clients send."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.ml.extensions.captured_logs.test_windows import entry

_READ = """
import resource, sys
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import LogState
from airflow_hops.extensions.captured_logs.ml.ingest import copy_log
from airflow_hops.extensions.captured_logs.ml.plan import find_files
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import IN_PROCESS

source = CapturedSource(
    sys.argv[1], model="m", request_id="id", captured_at="t", time_unit="s", version="v", request="q", response="s",
    outputs=("p",),
)
_, plan = LogState().found(find_files(source)[0], "x").planned("x", None, None, now=0, lookback=3)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
whole = Window(None, None)
folder = OutputFolder(sys.argv[2])
counts, _ = copy_log("log", source, plan.to_dict(), whole, folder, IN_PROCESS, lambda share, text: None)
print(counts.rows_out, sum(counts.rejected.values()), peak() - before)
"""


def read(log: Path, folder: Path) -> list[int]:
    """Reads a log in a process of its own; returns rows, those left out, and the megabytes that it took."""
    folder.mkdir()
    command = [sys.executable, "-c", _READ, str(log), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [int(word) for word in done.stdout.split()]


def test_large_bodies_of_small_requests_are_left_out(tmp_path: Path) -> None:
    def tensor(*shape: int, count: int = 0) -> dict[str, Any]:
        return {"inputs": [{"name": "a", "datatype": "X", "shape": shape, "data": [1] * count}]}

    def zipped(content: bytes) -> str:
        return base64.b64encode(gzip.compress(content)).decode()

    names = {f"n{number}": 1 for number in range(50_000)}
    bombs: list[Any] = [
        tensor(10**15, 0), tensor(10**9, 0), tensor(1, 10**9, 0), tensor(10**5, *[1] * 90, count=10**5),
        zipped(b" " * (300 << 20)), zipped(b"[" + b"[]," * 10**7 + b"[]]"), zipped(b"[" * 10**7),
        json.dumps(names), json.dumps({"instances": [{f"n{row} {n}": 1 for n in range(100)} for row in range(1000)]}),
    ]  # fmt: skip
    honest = [entry(number, q={"a": number}, s=[0.5]) for number in range(20)]
    lines = [*honest, *(entry(100 + number, q=bomb, s=[0.5]) for number, bomb in enumerate(bombs))]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows, left_out, megabytes = read(tmp_path / "x.jsonl", tmp_path / "out")
    assert (rows, left_out) == (20, len(bombs))
    assert megabytes < 300


def test_equal_bodies_of_parquet_are_read_by_few(tmp_path: Path) -> None:
    body = json.dumps({"a": "x" * 500_000})
    rows = [{"id": f"r{number}", "t": 1_790_000_000, "v": 3, "q": body, "s": "[0.5]"} for number in range(400)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", compression="zstd")
    assert (tmp_path / "x.parquet").stat().st_size < 30_000
    count, left_out, megabytes = read(tmp_path / "x.parquet", tmp_path / "out")
    assert (count, left_out) == (400, 0) and megabytes < 300
