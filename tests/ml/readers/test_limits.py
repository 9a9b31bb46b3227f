"""Limits of readers: files that are small on disk and large in memory are refused with the limit, and cost little."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.ingest import parts
from airflow_hops.ml.readers import parquet as parquet_reader
from airflow_hops.ml.readers import raw_file
from airflow_hops.ml.readers.csv_quotes import RowCutter
from tests.ml.readers.reading import by_ingest, check_refused, ingested, snapshot


def test_open_quote_needs_memory_of_one_row(own_process: Callable[..., Any]) -> None:
    assert own_process(_cutter_memory) < 32 << 10  # KiB; of 16 MiB


def _cutter_memory() -> int:
    """Returns by how many KiB the peak of this process grows when rows are cut."""
    cutter, text = RowCutter("t.csv", Source("/t.csv")), b'a,b\n1,"open\n' + b"2,x\n" * (4 << 20)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cutter.end_of_rows(text) == 4
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start


def test_endless_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_file, "MAX_ROW_BYTES", 1_000_000)
    for name, content in (
        ("t.csv", b'a,b\n1,"open\n' + b"2,x\n" * 2_000_000),
        ("t.csv.gz", gzip.compress(b"a,b\n1," + b"0" * 6_000_000)),
        ("t.jsonl.gz", gzip.compress(b'{"a": "' + b"0" * 6_000_000)),
        ("t.jsonl", b'{"a": 1}\n{"a": "' + b"0" * 6_000_000),
    ):
        check_refused(tmp_path / name, "a row does not end within 1000000 bytes, the limit of a row", content)
    words, content = "a quote is open at the end, in the row that begins with b'2,\"open", 'a,b\n1,x\n2,"open\n'
    check_refused(tmp_path / "t.csv", words, content + "3,x\n" * 99)


def test_too_wide_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [f'"c{number}": 1' for number in range(60_000)]
    for name, content, words in (
        ("t.csv", ",".join(f"c{number}" for number in range(60_000)) + "\n", "the limit is 50000 columns"),
        # Of which Arrow's parser crashes
        ("t.csv", "a,b\n1,2\n" + "," * 1_000_000 + "\n3,4\n", "the limit is 50000 columns"),
        ("t.jsonl", f"{{{', '.join(fields)}}}\n", "60000 columns; the limit is 50000 columns"),
        ("t.jsonl", "".join(f"{{{field}}}\n" for field in fields), "60000 columns; the limit is 50000 columns"),
    ):
        check_refused(tmp_path / name, words, content)
    unquoted = 'a,b\n1,"' + "," * 1_000_000 + '"\n'
    check_refused(tmp_path / "t.csv", "the limit is 50000 columns", unquoted, [by_ingest], quote="")
    monkeypatch.setattr(raw_file, "MAX_COLUMNS", 10)
    pq.write_table(pa.table({f"c{number}": [1] for number in range(11)}), tmp_path / "t.parquet")
    check_refused(tmp_path / "t.parquet", "11 columns; the limit is 10 columns")


def test_rows_and_quoted_commas_do_not_count_as_columns(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1, "b": {"c": ":"}}\n' * 60_000)
    assert ingested(tmp_path / "t.jsonl", tmp_path).num_rows == 60_000
    for quote in ('"', "'"):
        (tmp_path / "t.csv").write_text(f"a,b\n1,{quote}{',' * 60_000}{quote}\n")
        assert ingested(tmp_path / "t.csv", tmp_path, quote=quote)["b"].to_pylist() == ["," * 60_000]


def repeated(text: str, rows: int, nest: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """A table with one text in every row, which Parquet holds once."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    return pa.table({"id": range(rows), "x": nest(column)})


def in_lists(column: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(column) + 1), pa.int32()), column.cast(pa.string()))


@pytest.mark.parametrize("nest", [lambda column: column, in_lists], ids=["flat", "lists"])
def test_long_repeated_parquet_value_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nest: Callable[[pa.Array], pa.Array]
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(repeated("m" * 10_000, 3000, nest), path)
    assert path.stat().st_size < 200_000
    # Batches are bounded by the value.
    monkeypatch.setattr(parquet_reader, "_BATCH_BYTES", 1_000_000)
    assert parquet_reader.most_rows(path, pq.read_metadata(path), 0, ["id", "x"], "t") == 100
    assert parquet_reader.most_rows(path, pq.read_metadata(path), 0, ["id"], "t") >= 3000
    assert pq.read_metadata(snapshot(path, tmp_path) / "part-00000.parquet").num_rows == 3000
    monkeypatch.setattr(parquet_reader, "MAX_ROW_GROUP_BYTES", 20_000_000)
    check_refused(path, "decoded; the limit of a row group is 20000000")
    monkeypatch.setattr(parquet_reader, "MAX_ROW_BYTES", 9000)
    check_refused(path, "a value has 10000 bytes; the limit of a value is 9000")


def test_snapshot_row_groups_do_not_depend_on_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 100_000)
    pq.write_table(pa.table({"x": ["m" * (number % 50) * 100 for number in range(2000)]}), tmp_path / "t.parquet")
    written = []
    for rows in (7, 1 << 16):
        monkeypatch.setattr(parquet_reader, "_BATCH_ROWS", rows)
        written.append((snapshot(tmp_path / "t.parquet", tmp_path) / "part-00000.parquet").read_bytes())
    assert written[0] == written[1]
    metadata = pq.read_metadata(tmp_path / "t" / "part-00000.parquet")
    assert [metadata.row_group(index).num_rows for index in range(3)] == [46, 45, 44]
