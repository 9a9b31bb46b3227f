"""Sources of statistics: every format gives the same rows."""

from __future__ import annotations

import csv
import itertools
import json
import multiprocessing
import pickle
import random
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tensorflow_data_validation as tfdv
from statistics_equality import compare, in_memory, nested_table
from written_tables import generated_columns, table_of, without_nulls, write

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers import csv as readers_csv
from airflow_hops.ml.readers import jsonl as readers_jsonl
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.formats import layout, parquet, text
from airflow_hops.ml.statistics.sources import SourcePlan, TypesDoNotFit, plan_source
from tests.ml.conftest import Bucket

FORMATS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet")


def read_all(source: Any, **options: Any) -> tuple[SourcePlan, list[pa.RecordBatch]]:
    """All rows, as an engine reads them: it starts over with wider types."""
    plan = plan_source(source, **options)
    for _ in range(3):
        try:
            return plan, [batch for part in plan.parts for batch in plan.read(part)]
        except TypesDoNotFit as misfit:
            plan = plan.widen(pickle.loads(pickle.dumps(misfit)))
    raise AssertionError("types did not fit a third time")


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Plain rows: a list of one is its value, bytes are text, and what is missing is not there."""
    return [
        without_nulls({name: _plain(value) for name, value in row.items()})
        for batch in batches
        for row in batch.to_pylist()
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1:
        return _plain(value[0])
    return value.decode() if isinstance(value, bytes) else value


def _ordered(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "ratio", "text", "whole") if name in row}


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_is_recognised_without_extension(tmp_path: Path, small_parts: None, format_: str) -> None:
    table = table_of(500)
    path = write(table, tmp_path / f"t.{format_}")
    plan, batches = read_all(path)
    result = sorted(json.dumps(_ordered(row)) for row in rows_of(batches))
    assert result == sorted(map(json.dumps, rows_of(table.to_batches())))
    again = pickle.loads(pickle.dumps(plan))
    assert [batch for part in again.parts for batch in again.read(part)] == batches
    (tmp_path / "nameless").write_bytes(path.read_bytes())
    assert rows_of(read_all(tmp_path / "nameless")[1]) == rows_of(batches)
    _, projected = read_all(path, exclude=["text"], columns=["text", "id", "whole"])
    assert {name for batch in projected for name in batch.schema.names} == {"id", "whole"}
    # Columnar files are read in parts; the batches of others are dealt out.
    assert (len(plan.parts) > 1) == (format_ == "parquet")


def test_tables_and_batches_are_sources(small_parts: None) -> None:
    table = table_of(500)
    for values, parts in ((table, 3), (iter(table.to_batches(max_chunksize=30)), 1)):
        plan, batches = read_all(values, exclude=["whole"])
        assert pa.Table.from_batches(batches) == table.drop(["whole"])
        types = {name: str(kind) for name, kind in plan.types.items()}
        assert (types, len(plan.parts)) == ({"id": "int64", "ratio": "float", "text": "string"}, parts)


@pytest.mark.parametrize("format_", ["csv.gz", "jsonl", "parquet"])
def test_units_of_a_part_are_distributed_once(tmp_path: Path, small_parts: None, format_: str) -> None:
    path = write(table_of(500), tmp_path / f"t.{format_}")
    if format_ == "parquet":
        pq.write_table(table_of(500), path)  # in one row group
    plan, batches = read_all(path)
    shares = [_read_share(plan, number, 3) for number in range(3)]
    assert sorted(itertools.chain(*shares)) == sorted(row["id"] for row in rows_of(batches)) == list(range(500))
    assert all(shares)


def _read_share(plan: SourcePlan, number: int, shares: int) -> list[int]:
    batches = [batch for part in plan.parts for _, batch, _ in plan.read_units(part, layout.UnitShare(number, shares))]
    return [row["id"] for row in rows_of(batches)]


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_folder_is_read_with_its_subfolders_and_a_feature_may_be_absent_from_some_files(
    tmp_path: Path, format_: str
) -> None:
    (tmp_path / "below").mkdir()
    write(table_of(20), tmp_path / f"a.{format_}")
    write(table_of(20, 20).drop(["whole"]), tmp_path / "below" / f"b.{format_}")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.csv").write_text("{")
    (tmp_path / "below" / f".b.{format_}.crc").write_text("x")
    if format_ != "parquet":
        (tmp_path / f"empty.{format_}").write_text("")
    plan, batches = read_all(str(tmp_path))
    rows = rows_of(batches)
    assert sorted(row["id"] for row in rows) == list(range(40))
    assert sorted(plan.types) == ["id", "ratio", "text", "whole"]
    assert sum("whole" in row for row in rows) == 18  # of 20 rows, two are missing
    assert len(rows_of(read_all(tmp_path / f"a*.{format_}")[1])) == 20


def test_quoted_newlines_end_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    path = tmp_path / "quoted.csv"
    for _ in range(30):
        rows = [
            ["".join(draw.choices('ab,"\n', weights=[5, 5, 1, 1, 1], k=draw.randint(1, 6))) for _ in range(3)]
            for _ in range(draw.randint(1, 40))
        ]
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator=draw.choice(["\n", "\r\n"]))
            writer.writerows([["x", "y", "z"], *rows])
        for module in (readers_csv, text):
            monkeypatch.setattr(module, "BLOCK_BYTES", draw.randint(1, 80))
        _, batches = read_all(path)
        assert [list(row.values()) for batch in batches for row in batch.to_pylist()] == rows, path.read_text()


def test_csv_with_a_byte_order_mark_in_another_encoding_and_with_given_types(tmp_path: Path) -> None:
    bom, latin = tmp_path / "bom.csv", tmp_path / "latin.csv"
    bom.write_bytes("\ufeffx,y\n1,2\n".encode())
    latin.write_bytes("x,y\nMünchen,1\n".encode("latin-1"))
    assert rows_of(read_all(bom)[1]) == [{"x": 1, "y": 2}]
    assert rows_of(read_all(Source(str(latin), encoding="latin-1"))[1]) == [{"x": "München", "y": 1}]
    values = Source(str(bom), schema={"x": "string"}, columns=("x",), null_values=("2",))
    assert rows_of(read_all(values)[1]) == [{"x": "1"}]


def test_late_types_restart_a_source_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [",".join(["1"] * 30) for _ in range(4000)]
    for number in range(30):
        lines[2000 + 60 * number] = ",".join(["late" if i == number else "1" for i in range(30)])
    (tmp_path / "late.csv").write_text("\n".join([",".join(f"c{i}" for i in range(30)), *lines]) + "\n")
    with (tmp_path / "late.jsonl").open("w") as stream:
        for number in range(4000):
            stream.write(json.dumps({f"f{number // 200}": number, "n": 1 if number < 3000 else 1.5}) + "\n")
    for module in (readers_csv, readers_jsonl):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4000)
    for name, columns, types in (("late.csv", 30, {"string"}), ("late.jsonl", 21, {"double", "int64"})):
        plan, batches = read_all(tmp_path / name)
        assert (len(plan.types), {str(t) for t in plan.types.values()}, len(rows_of(batches))) == (columns, types, 4000)


def test_batches_are_bounded_in_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [batch.num_rows for batch in read_all(pa.table({"n": np.zeros(100_000)}))[1]]
    assert sum(rows) == 100_000
    assert max(rows) <= 65_536
    for module in (layout, parquet):
        monkeypatch.setattr(module, "BATCH_BYTES", 1 << 20)
    long = pa.table({"s": [("x" * 100_000 if n % 2 else "y") for n in range(60)], "n": list(range(60))})
    wide = pa.table({f"c{i}": pa.array(np.zeros(600), pa.float64()) for i in range(1000)})
    pq.write_table(wide, tmp_path / "wide.parquet")
    sources = {kind: write(long, tmp_path / f"long.{kind}") for kind in ("parquet", "jsonl", "csv")}
    for source in (long, *sources.values(), wide, tmp_path / "wide.parquet"):
        _, batches = read_all(source)
        assert max(batch.nbytes for batch in batches) <= 1 << 20, source
        assert sum(batch.num_rows for batch in batches) in (60, 600)


def test_fixed_size_lists_and_bytes_become_variable(tmp_path: Path) -> None:
    retained = pa.table(
        {
            "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "code": pa.array([b"ab", b"\xff\xfe", None], pa.binary(2)),
            "category": pa.array(["x", None, "x"]).dictionary_encode(),
            "flag": pa.array([True, False, None]),
            "nested": pa.array([[[1], [2, 3]], [], None], pa.list_(pa.list_(pa.int64()))),
            "structs": pa.array([[{"a": 1, "b": ["x"]}], None, []]),
            "nothing": pa.nulls(3),
        }
    )
    _, batches = read_all(retained)
    types = {column.name: str(column.type) for column in batches[0].schema}
    assert types["vector"] == "list<item: float>"
    assert types["code"] == "binary"
    assert types["structs"] == "list<item: struct<a: int64, b: list<item: string>>>"
    assert pa.Table.from_batches(batches).select(["vector", "code", "nested"]).to_pylist() == [
        {"vector": [1.0, 2.0], "code": b"ab", "nested": [[1], [2, 3]]},
        {"vector": None, "code": b"\xff\xfe", "nested": []},
        {"vector": [3.0, 4.0], "code": None, "nested": None},
    ]


def test_struct_field_is_left_out_by_dotted_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": [1], "a": [{"b": 3, "c": ["x"]}]}), tmp_path / "dotted.parquet")
    left = [rows_of(read_all(tmp_path / "dotted.parquet", exclude=[name])[1]) for name in ("a", "a.b")]
    assert left == [[{"a.b": 1}], [{"a": {"b": 3, "c": ["x"]}}]]


def test_times_and_decimals_are_read_as_numbers_and_other_types_are_refused(tmp_path: Path) -> None:
    moments = pa.array([1_000_000, None, -2_000_000], pa.timestamp("us"))
    seconds = [1, None, -2]
    columns = {
        "t": (moments, seconds), "z": (moments.cast(pa.timestamp("us", "UTC")), seconds),
        "d": (pa.array([1, None, -1], pa.int32()).cast(pa.date32()), [86_400, None, -86_400]),
        "n": (pa.array([Decimal("1.25"), None, Decimal(-3)], pa.decimal128(5, 2)), [1.25, None, -3.0]),
        "m": (pa.array([1, None, -3], pa.duration("ms")), [1_000, None, -3_000]),
        "k": (pa.array([[("a", 1)], [], []], pa.map_(pa.string(), pa.int64())), [[{"key": "a", "value": 1}], [], []]),
        "s": (pa.StructArray.from_arrays([moments], ["t"]), [{"t": each} for each in seconds]),
        "l": (pa.array([[1], None, []], pa.list_(pa.timestamp("s"))), [[1], None, []]),
    }  # fmt: skip
    table = pa.table({name: column for name, (column, _) in columns.items()})
    pq.write_table(table, tmp_path / "t.parquet")
    for source in (tmp_path / "t.parquet", table):
        rows = [row for batch in read_all(source)[1] for row in batch.to_pylist()]
        assert {name: [row[name] for row in rows] for name in columns} == {n: each for n, (_, each) in columns.items()}
    other = pa.table({"ok": [1], "col": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(BadInput, match=r"^table: column 'col' is .* has no statistics; expected numbers, booleans"):
        read_all(other)
    assert rows_of(read_all(other, exclude=["col"])[1]) == [{"ok": 1}]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_corrupt_file_among_good_ones_is_named(tmp_path: Path, format_: str) -> None:
    write(table_of(300), tmp_path / f"a.{format_}")
    bad = write(table_of(300, 1000), tmp_path / f"b.{format_}")
    write(table_of(300, 2000), tmp_path / f"c.{format_}")
    whole = bad.read_bytes()
    for damage in ("head", "midst"):
        bad.write_bytes(_damaged(whole, format_, damage))
        with pytest.raises(BadInput, match=re.escape(bad.name)) as failure:
            read_all(tmp_path)
        assert bad.name in str(pickle.loads(pickle.dumps(failure.value)))


def _damaged(data: bytes, format_: str, damage: str) -> bytes:
    if damage == "head":
        return b"\x00\x01" * 50
    if format_ in ("csv", "jsonl"):
        lines = data.split(b"\n")
        return b"\n".join([*lines[:-8], b'{"broken": ' if format_ == "jsonl" else b"1,2,3,4,5,6,7", *lines[-8:]])
    if format_ == "parquet":  # the header of the first page; the footer stays whole
        return data[:4] + bytes(b ^ 0x55 for b in data[4:24]) + data[24:]
    middle = len(data) // 2
    # Compressed and checked formats notice a changed byte; others notice an end that is missing.
    if format_ in ("csv.gz", "jsonl.gz"):
        return data[:middle] + bytes(b ^ 0x55 for b in data[middle : middle + 20]) + data[middle + 20 :]
    return data[:middle]


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet"])
def test_statistics_of_every_format_match_tfdv(tmp_path: Path, format_: str) -> None:
    tables = [(generated_columns(300), {"weight_feature": "weight", "num_top_values": 3})]
    if format_ != "csv":
        tables.append((nested_table().select(["numbers", "large", "words"]), {}))
    for number, (table, settings) in enumerate(tables):
        path = write(table, tmp_path / f"{number}.{format_}")
        theirs = in_memory(table, tfdv.StatsOptions(**settings))
        assert compare(generate_statistics(path, options=tfdv.StatsOptions(**settings)), theirs, table) == []


def _files(folder: Path, **tables: pa.Table) -> Path:
    """A folder with tables in files, named after them: the underscore stands for the dot."""
    folder.mkdir()
    for name, table in tables.items():
        write(table, folder / name.replace("_", "."))
    return folder


def test_file_without_statistics_is_refused(tmp_path: Path) -> None:
    encoding = "'a' is not text in utf8; name its encoding in the source's 'encoding'"
    for content, fields, exclude, message in (
        (b"", {}, [], "none of its files has a row"),
        ("a\nMünchen\n".encode("latin-1"), {}, [], encoding),
        (b"a,b\n1,2\n", {"columns": ()}, [], "columns is empty"),
        (b"a\n1\n", {}, ["a"], "no column is left to read"),
    ):
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(BadInput, match=message):
            read_all(Source(str(tmp_path / "t.csv"), **fields), exclude=exclude)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "absent.csv", "absent.csv': no file matches"),
        (
            lambda folder: _files(folder, a_parquet=pa.table({"x": [1]}), b_parquet=pa.table({"x": ["one"]})),
            "t/b.parquet: column 'x' is string, but int64 in ",
        ),
        (lambda folder: _files(folder, a_parquet=table_of(3), b_csv=table_of(3)), "files of different formats: csv ("),
        (lambda folder: 7, "source is of type int, expected a path, a URI, a Source"),
        (lambda folder: [7], "source holds a value of type int, expected record batches"),
    ],
)
def test_bad_input_names_file_field_and_value(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        read_all(make(tmp_path / "t"))


def test_sources_on_s3_are_read_also_in_a_forked_process(bucket: Bucket, tmp_path: Path) -> None:
    options = {**bucket.options, "key": "testing", "secret": "testing"}
    expected = rows_of(table_of(60).to_batches())
    for format_ in ("csv", "jsonl.gz", "parquet"):
        path = write(table_of(60), tmp_path / f"t.{format_}")
        bucket.fs.put_file(str(path), f"{bucket.url}/{path.name}")
        plan, batches = read_all(Source(f"{bucket.url}/t.{format_}", storage_options=options))
        assert [_ordered(row) for row in rows_of(batches)] == expected, format_
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        forked = pool.submit(_read_parts, plan).result(timeout=300)
    assert [_ordered(row) for row in forked] == expected
    for name in ("a", "below/b"):
        bucket.fs.put_file(str(tmp_path / "t.parquet"), f"{bucket.url}/folder/{name}.parquet")
    assert len(rows_of(read_all(Source(f"{bucket.url}/folder", storage_options=options))[1])) == 120


def _read_parts(plan: SourcePlan) -> list[dict[str, Any]]:
    return rows_of([batch for part in plan.parts for batch in plan.read(part)])
