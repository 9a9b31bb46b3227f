"""One set of rules for the types of text, in ingest and statistics."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.ingest import Window
from airflow_hops.ml.readers import csv as readers_csv
from airflow_hops.ml.readers import jsonl as readers_jsonl
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.sources import plan_source
from tests.ml.readers.reading import ingested, read_for_statistics


def type_name(kind: pa.DataType) -> str:
    """Returns the type's name, with the name that Arrow gives to the items of lists, and Parquet does not."""
    return str(kind).replace("<element: ", "<item: ")


CSV_TYPES = {
    "int64": [
        ["1", "-9223372036854775808", "9223372036854775807"], [" 5", "7 ", "0"], ["1", "", "-3"], ["1", "NA"],
        ["1000000000000000001", "1000000000000000003"],
    ],
    "double": [
        ["1", "2.5"], [".5", "5.", "-0.0"], ["1", "nan"], ["0.1", "-inf", "Infinity"], ["1e-05", "1.5E+300", "2.0E10"],
        ["0.30000000000000004", "1.000000000000000056e-01", "0.10000000000000000000"], ["-0", "1"],
        ["9007199254740992", "0.5"], ["12.50", "3.00"], ["1.5e3", "2"],
    ],
    "string": [
        ["12345678901234567890", "12345678901234567891"], ["9223372036854775808", "1"], ["100000000000000000000"],
        ["007", "123"], ["00.5", "1.5"], ["0000", "0001"], ["0x1F", "16"], ["1E5", "2E7"], ["1E5", "12"], ["+5", "6"],
        ["+1.5", "2.5"], ["1_000", "2"], ["1e400", "1.5"], ["1e-400", "1.5"], ["0.12345678901234567890", "1.5"],
        ["9007199254740993", "0.5"], ["9007199254740993.5", "0.5"], ["9007199254740993", "nan"],
        ["٣", "1"], ["²", "1"], ["x", "1"], [" ", "1"], ["true", "1"], ["1,200", "950"], ["2,5", "2"], ["$5", "6"],
        ["12%", "13%"], ["2013-01-01", "1"], ["2013-02-30"], ["12:30:00"], ["31/01/2013"], ["1.2.3", "1.2"],
        ["1e", "1"], ["-", "1"], ["--1", "1"], ["1d5", "1"], ["0b1", "1"],
    ],
    "bool": [["true", "False", "TRUE"], ["false", ""]],
    "date32[day]": [["2013-01-01", "1999-12-31"]],
    "timestamp[us]": [["2013-01-01", "2013-01-01 05:00:00"], ["2013-01-01T05:00:00.123456000"]],
    "timestamp[us, tz=UTC]": [
        ["2013-01-01T05:00:00Z", "2013-01-01 05:00:00+01:00"],
        ["2013-01-01T05:00:00Z", "2013-01-01 05:00", "2013-01-01"],
    ],
}  # fmt: skip


def csv_of(columns: dict[str, list[str]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return (
        "\n".join([",".join(columns), *(",".join(f'"{cell}"' if cell else "" for cell in row) for row in rows)]) + "\n"
    )


def test_csv_columns_have_one_type_in_ingest_and_statistics(tmp_path: Path) -> None:
    cases = [(kind, values) for kind, columns in CSV_TYPES.items() for values in columns]
    for number, (kind, values) in enumerate(cases):
        # Ordinary values of the same type come first.
        path = tmp_path / f"{number}.csv"
        path.write_text(csv_of({"a": [*[values[-1]] * 20, *values], "b": ["x"] * (20 + len(values))}))
        snapshot = ingested(str(path), tmp_path / str(number))
        assert str(snapshot.schema.field("a").type) == kind, values
        read = read_for_statistics(str(path))
        # Statistics have no times.
        expected = "string" if kind.startswith(("date", "timestamp")) else kind
        assert str(read.schema.field("a").type) == expected, values
        if kind == "string":
            assert snapshot["a"].to_pylist()[20:] == values
        if kind == expected:
            assert str(read["a"].to_pylist()) == str(snapshot["a"].to_pylist()), values


# JSON values, the type in a snapshot, and the values that are text.
JSON_TYPES = [
    ("int64", ["1", "-5", "null"], None),
    ("int64", ["1000000000000000001", "1000000000000000003"], None),
    ("double", ["1", "2.5", "1e5"], None),
    ("double", ["0.30000000000000004", "1"], None),
    ("double", ["9007199254740992", "0.5"], None),
    ("string", ["12345678901234567890", "12345678901234567891"], ["12345678901234567890", "12345678901234567891"]),
    ("string", ["1", "12345678901234567890"], ["1", "12345678901234567890"]),
    ("string", ["0.12345678901234567890"], ["0.12345678901234567890"]),
    ("string", ["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
    ("string", ["0.5", "9007199254740993"], ["0.5", "9007199254740993"]),
    ("string", ["1e400", "1"], ["1e400", "1"]),
    ("string", ["1.50", '"late"'], ["1.50", "late"]),
    ("string", ['"late"', "1.50"], ["late", "1.50"]),
    ("string", ["true", "1"], ["true", "1"]),
    ("string", ['"007"', '"12"'], ["007", "12"]),
    ("string", ['[1, "a"]', "1", '{"k": null}'], ['[1, "a"]', "1", '{"k": null}']),
    ("bool", ["true", "false", "null"], None),
    ("list<item: double>", ["[1]", "[]", "[0.5]", "null"], None),
    ("list<item: int64>", ["[]", "[1, null]"], None),
    ("list<item: string>", ["[9007199254740993]", "[0.5]"], [["9007199254740993"], ["0.5"]]),
    ("list<item: string>", ["[1]", '["a"]'], [["1"], ["a"]]),
    ("struct<x: int64, y: string>", ['{"x": 1}', '{"y": "b"}', "{}"], None),
    ("struct<x: double>", ['{"x": 1}', '{"x": 0.5}'], None),
    ("struct<a: int64>", ["{}", '{"a": 1}'], [{"a": None}, {"a": 1}]),
    ("list<item: list<item: double>>", ["[]", "[[1], [2.5]]"], None),
    ("timestamp[us]", ['"2020-01-01 00:00:00.123456000"', '"2500-01-01 00:00"'], None),
    ("struct<x: string>", ['{"x": 9007199254740993}', '{"x": 0.5}'], [{"x": "9007199254740993"}, {"x": "0.5"}]),
    ("struct<at: string>", ['{"at": "2013-01-01T05:00:00Z"}', "null"], [{"at": "2013-01-01T05:00:00Z"}, None]),
    ("list<item: string>", ['["2013-01-01"]', "[]"], [["2013-01-01"], []]),
    ("struct<x: struct<a: int64>>", ['{"x": {}}', '{"x": {"a": 1}}'], [{"x": {"a": None}}, {"x": {"a": 1}}]),
    ("list<item: struct<a: int64>>", ["[{}]", '[{"a": 1}]', "[null]"], [[{"a": None}], [{"a": 1}], [None]]),
    ("string", ["{}", "null"], ["{}", None]),
    ("list<item: string>", ["[{}]", "[]"], [["{}"], []]),
    ("struct<x: string>", ['{"x": {}}', '{"x": null}'], [{"x": "{}"}, {"x": None}]),
    ("date32[day]", ['"2013-01-01"', '"1999-12-31"'], None),
    ("timestamp[us]", ['"2013-01-01"', '"2013-01-01T05:00:00.25"'], None),
    ("timestamp[us, tz=UTC]", ['"2013-01-01T05:00:00+02:00"', '"2013-01-01 05:00:00"', '"2013-01-01"'], None),
    ("string", ['"2013-01-01"', '"later"'], ["2013-01-01", "later"]),
]  # fmt: skip


def test_json_fields_have_one_type_in_ingest_and_statistics(tmp_path: Path) -> None:
    for number, (kind, values, texts) in enumerate(JSON_TYPES):
        path = tmp_path / f"{number}.jsonl"
        lines = [*[values[0]] * 20, *values]
        path.write_text("".join(f'{{"b": "x", "a": {value}}}\n' for value in lines))
        snapshot = ingested(str(path), tmp_path / str(number))
        assert type_name(snapshot.schema.field("a").type) == kind, values
        if texts is not None:
            assert snapshot["a"].to_pylist()[20:] == texts
        read = read_for_statistics(str(path))
        is_time = kind.startswith(("date", "timestamp"))
        assert str(read.schema.field("a").type) == ("string" if is_time else kind), values
        if not is_time:
            assert read["a"].to_pylist() == snapshot["a"].to_pylist(), values


@pytest.fixture
def read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Asserts that rows of one column are read alike as one file, as two, in blocks, by ingest and for statistics."""
    numbers = itertools.count()

    def check(suffix: str, header: str, lines: list[str], cut: int) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name, part in (("whole", lines), ("part-1", lines[:cut]), ("part-2", lines[cut:])):
            if part:
                (folder / f"{name}.{suffix}").write_text(header + "".join(f"{line}\n" for line in part))
        whole = ingested(f"{folder}/whole.{suffix}", folder / "whole")
        is_time = str(whole.schema.field("a").type).startswith(("date", "timestamp"))
        for block_bytes in (24, 1 << 20):
            for module in (readers_csv, readers_jsonl):
                monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
            for files in ("whole", "part-*"):
                source = f"{folder}/{files}.{suffix}"
                table, read = ingested(source, folder / f"{files[:4]}-{block_bytes}"), read_for_statistics(source)
                assert (table.schema, str(table.to_pydict())) == (whole.schema, str(whole.to_pydict())), source
                if is_time:  # statistics have no times
                    assert str(read.schema.field("a").type) == "string"
                else:
                    assert str(read["a"].to_pylist()) == str(whole["a"].to_pylist())

    return check


FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS_AS_TEXT = st.integers().map(str) | st.floats().map(repr)
CELLS = NUMBERS_AS_TEXT | st.sampled_from(sorted({cell for of in CSV_TYPES.values() for cells in of for cell in cells}))
JSON_VALUES = st.sampled_from(sorted({value for _, values, _ in JSON_TYPES for value in values}))


@FEW
@given(cells=st.lists(CELLS, min_size=1, max_size=6), cut=st.integers(0, 6))
@example(cells=["2013-01-01", "", ""], cut=1)  # a file, and a block, without any of the dates
@example(cells=["1999-12-31", "10000000000000.0"], cut=1)  # a block with the header alone
def test_csv_rows_are_read_alike_in_any_files_and_blocks(read_in_parts: Any, cells: list[str], cut: int) -> None:
    read_in_parts("csv", "a,b\n", [f'"{cell}",x' if cell else ",x" for cell in cells], cut)


@FEW
@given(values=st.lists(JSON_VALUES | st.integers().map(str), min_size=1, max_size=6), cut=st.integers(0, 6))
@example(values=["[]", "[[1], [2.5]]"], cut=1)  # a block is read in the types of later ones
@example(values=["{}", '{"a": 1}'], cut=1)
@example(values=["-0", "2"], cut=1)
@example(values=['"2020-01-01 00:00:00.123456000"', '"2500-01-01 00:00"'], cut=1)
def test_json_rows_are_read_alike_in_any_files_and_blocks(read_in_parts: Any, values: list[str], cut: int) -> None:
    read_in_parts("jsonl", "", [f'{{"b": "x", "a": {value}}}' for value in values], cut)


def test_empty_objects_have_the_fields_of_other_files(tmp_path: Path) -> None:
    for number, line in enumerate(('{"x": {}}', '{"x": {"a": 1}}')):
        (tmp_path / f"{number}.jsonl").write_text(line)
    assert ingested(f"{tmp_path}/*.jsonl", tmp_path / "t")["x"].to_pylist() == [{"a": None}, {"a": 1}]


NUMBERS = [
    (pa.array([1, None]), pa.array([0.5, 2.0]), "double"),
    (pa.array([1, None], pa.int8()), pa.array([0.5, 2.0], pa.float32()), "double"),
    (pa.array([1, (1 << 24) + 1]), pa.array([0.5, 2.0], pa.float32()), "double"),
    (pa.array([[1], None, []]), pa.array([[0.5], [], None]), "list<item: double>"),
    (pa.array([{"x": 1}, None]), pa.array([{"x": 0.5, "y": "b"}, None]), "struct<x: double, y: string>"),
    (pa.nulls(2), pa.array([1, 2]), "int64"),
    (pa.array([[], []], pa.list_(pa.null())), pa.array([[1], [2]]), "list<item: int64>"),
]


@pytest.mark.parametrize(("one", "other", "kind"), NUMBERS, ids=[kind for _, _, kind in NUMBERS])
def test_typed_files_widen(tmp_path: Path, one: pa.Array, other: pa.Array, kind: str) -> None:
    tables = [pa.table({"a": column}) for column in (one, other)]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    for files in ("*", "[0]*"):  # also the one file by itself has statistics
        assert generate_statistics(str(tmp_path / f"{files}.parquet")).datasets[0].num_examples
    plan = plan_source(str(tmp_path / "*.parquet"))
    rows = [row for part in plan.parts for batch in plan.read(part) for row in batch.to_pylist()]
    assert type_name(plan.types["a"]) == kind
    snapshot = ingested(str(tmp_path / "*.parquet"), tmp_path / "t")
    assert type_name(snapshot.schema.field("a").type) == kind
    assert snapshot.to_pylist() == rows


def test_integers_beyond_float64_are_refused_among_floats(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, (1 << 53) + 1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [0.5]}), tmp_path / "2.parquet")
    for work in (lambda source: ingested(source, tmp_path / "t"), generate_statistics):
        with pytest.raises(BadInput, match=r"1\.parquet.* column 'a'.*9007199254740993"):
            work(str(tmp_path / "*.parquet"))


def logged(caplog: pytest.LogCaptureFixture, work: Callable[[], Any]) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        work()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("suffix", "row"), [("csv", 3), ("csv", 1500), ("jsonl", 1500)])
def test_cell_turning_a_column_into_text_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (readers_csv, readers_jsonl):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4000)
    values = [str(number) for number in range(2000)]
    values[row - 1] = "late"
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        path.write_text(csv_of({"a": values, "b": values}).replace('"late"\n', '"1"\n'))
    else:
        path.write_text("".join(f'{{"a": {value}}}\n' for value in values).replace("late", '"late"'))
    for work in (lambda: ingested(str(path), tmp_path / "t"), lambda: generate_statistics(str(path))):
        messages = [message for message in logged(caplog, work) if "text" in message or "wider" in message]
        place = f"t.{suffix}, row {row}, column 'a': "
        assert any(place in message and "late" in message for message in messages), messages


def test_good_data_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(1)
    values = {
        "n": [str(n) for n in range(300)], "f": [repr(draw.random()) for _ in range(300)],
        "e": [f"{draw.random():.18e}" for _ in range(300)], "t": [f"2013-01-{n % 28 + 1:02}" for n in range(300)],
        "s": [f"name {n}" for n in range(300)], "m": ["" if n % 2 else "3.50" for n in range(300)],
        "c": [f"{'ABC'[n % 3]}{n}" if n % 2 else str(n) for n in range(300)], "z": [f"{n:05}" for n in range(300)],
    }  # fmt: skip
    (tmp_path / "t.csv").write_text(csv_of(values))
    with (tmp_path / "t.jsonl").open("w") as stream:
        for n in range(300):
            stream.write(json.dumps({"n": n, "f": draw.random(), "s": f"name {n}", "b": n % 2 == 0}) + "\n")
    for name in ("t.csv", "t.jsonl"):
        path = str(tmp_path / name)
        assert logged(caplog, lambda path=path: ingested(path, tmp_path / "t")) == []
        assert logged(caplog, lambda path=path: generate_statistics(path)) == []


def test_bad_window_is_refused() -> None:
    with pytest.raises(BadInput, match="window_end '2013-01-01' is not after window_start '2013-02-01'"):
        Window.parse("2013-02-01", "2013-01-01")
    with pytest.raises(BadInput, match="window_start is 'January', expected a time in ISO 8601"):
        Window.parse("January", None)


@pytest.mark.parametrize(
    ("text", "header", "rows"),
    [
        ("5.1,x\n4.9,y\n", ("a", "b"), [{"a": 5.1, "b": "x"}, {"a": 4.9, "b": "y"}]),
        ("\ufeff\n7,x", ["a", "b"], [{"a": 7, "b": "x"}]),
        ("year,2019\nsum,3\n", True, [{"year": "sum", "2019": 3}]),
        ("id,2019\n1,3\n", None, [{"id": 1, "2019": 3}]),
        ("0,1,2\n5,6,7\n", None, [{"0": 5, "1": 6, "2": 7}]),
        ('\ufeff"a,b"\n1\n', None, [{"a,b": 1}]),
    ],
)
def test_names_come_from_the_file_or_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, header: Any, rows: list[dict[str, Any]]
) -> None:
    (tmp_path / "t.csv").write_text(text)
    source = Source.from_value("t", {"uri": str(tmp_path / "t.csv"), "header": header})
    for block_bytes in (4, 1 << 20):
        monkeypatch.setattr(readers_csv, "BLOCK_BYTES", block_bytes)
        assert ingested(source, tmp_path / "t").to_pylist() == read_for_statistics(source).to_pylist() == rows


def test_rows_do_not_depend_on_line_ends(tmp_path: Path) -> None:
    for text in ("\n\na,b\n1,x\n", "\r\na,b\r\n1,x", "a,b\r1,x\r", 'a,b\n1,"x"'):
        (tmp_path / "t.csv").write_text(text, newline="")
        rows = [{"a": 1, "b": "x"}]
        assert ingested(str(tmp_path / "t.csv"), tmp_path / "t").to_pylist() == rows
        assert read_for_statistics(str(tmp_path / "t.csv")).to_pylist() == rows


def test_text_encoding_is_checked() -> None:
    for encoding in ("rot13", "base64", "undefined", "utf9"):
        with pytest.raises(BadInput, match=f"{encoding}.*not a text encoding"):
            Source("t.csv", encoding=encoding)


def test_explicit_type_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n007,12345678901234567890\n1,2\n")
    (tmp_path / "t.jsonl").write_text('{"a": "007", "b": 12345678901234567890}\n{"a": "1", "b": 2}\n')
    for name in ("t.csv", "t.jsonl"):
        numbers = Source(str(tmp_path / name), schema={"a": "int64", "b": "float64"})
        texts = Source(str(tmp_path / name), schema={"a": "string", "b": "string"})
        rows = [{"a": 7, "b": 1.2345678901234567e19}, {"a": 1, "b": 2.0}]
        assert ingested(numbers, tmp_path / "t").to_pylist() == read_for_statistics(numbers).to_pylist() == rows
        rows = [{"a": "007", "b": "12345678901234567890"}, {"a": "1", "b": "2"}]
        assert ingested(texts, tmp_path / "t").to_pylist() == read_for_statistics(texts).to_pylist() == rows


@pytest.mark.parametrize(
    ("marks", "cells", "kind", "values"),
    [
        ({"decimal": ","}, ["2,5", "2", "-0,25"], "double", [2.5, 2.0, -0.25]),
        ({"decimal": ",", "thousands": "."}, ["1.234,5", "950", "2.000"], "double", [1234.5, 950.0, 2000.0]),
        ({"thousands": ","}, ["1,200", "950", "-1,234,567"], "int64", [1200, 950, -1234567]),
        ({"thousands": " "}, ["1 200", "950"], "int64", [1200, 950]),
        ({"units": ["$"]}, ["$5", "-$ 6.50", "$-7"], "double", [5.0, -6.5, -7.0]),
        ({"units": ["%", "€"], "decimal": ","}, ["12,5 %", "13%"], "double", [12.5, 13.0]),
        ({"thousands": ","}, ["1,200", "12,34"], "string", ["1,200", "12,34"]),
        ({"decimal": ","}, ["2,5", "x"], "string", ["2,5", "x"]),
        ({"units": ["$", "€"]}, ["$5", "€6"], "string", ["$5", "€6"]),
        ({"units": ["$"], "thousands": ","}, ["$12345678901234567890"], "string", ["$12345678901234567890"]),
    ],
)  # fmt: skip
def test_number_format_of_a_source_is_applied(
    tmp_path: Path, marks: dict[str, Any], cells: list[str], kind: str, values: list[Any]
) -> None:
    (tmp_path / "t.csv").write_text(csv_of({"a": cells}))
    source = Source.from_value("t", {"uri": str(tmp_path / "t.csv"), **marks})
    for table in (ingested(source, tmp_path / "t"), read_for_statistics(source)):
        assert (str(table.schema.field("a").type), table["a"].to_pylist()) == (kind, values)
    if kind != "string":
        arguments = Source.from_value("t", {**source.to_dict(), "schema": {"a": "float64"}})
        assert ingested(arguments, tmp_path / "t")["a"].to_pylist() == values


@pytest.mark.parametrize(
    ("layout", "texts", "kind", "values"),
    [
        ("%d/%m/%Y", ["31/01/2013", "1/2/2013"], "date32[day]", ["2013-01-31", "2013-02-01"]),
        ("%m/%d/%Y %H:%M", ["01/31/2013 05:06"], "timestamp[us]", ["2013-01-31 05:06:00"]),
        ("%d.%m.%Y %H:%M:%S", ["31.01.2013 05:06:07"], "timestamp[us]", ["2013-01-31 05:06:07"]),
        ("%b %d, %Y", ["Jan 31, 2013"], "date32[day]", ["2013-01-31"]),
    ],
)
def test_time_format_of_a_source_is_applied(
    tmp_path: Path, layout: str, texts: list[str], kind: str, values: list[str]
) -> None:
    (tmp_path / "t.csv").write_text(csv_of({"a": texts, "b": texts}))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"a": text, "b": text}) + "\n" for text in texts))
    for name in ("t.csv", "t.jsonl"):
        table = ingested(Source(str(tmp_path / name), schema={"a": layout}), tmp_path / "t")
        assert (str(table.schema.field("a").type), list(map(str, table["a"].to_pylist()))) == (kind, values)
        assert table["b"].to_pylist() == texts
    for wrong in ("31/02/2013", "2013-01-31", "13"):
        (tmp_path / "t.csv").write_text(csv_of({"a": [texts[0], wrong]}))
        with pytest.raises(BadInput, match=rf"t\.csv, row 2, column 'a': '{wrong}' is not of type {layout}"):
            ingested(Source(str(tmp_path / "t.csv"), schema={"a": layout}), tmp_path / "t")


def test_times_without_a_zone_are_reported_as_utc(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.csv").write_text(
        "at,seen\n2013-01-01 05:00:00,2013-01-01T05:00:00Z\n2013-01-01 05:00:00,2013-01-01 05:00:00\n"
    )
    source = Source(str(tmp_path / "t.csv"), time_column="at")
    with caplog.at_level(logging.INFO):
        assert str(ingested(source, tmp_path / "t")["at"][0].as_py()) == "2013-01-01 05:00:00+00:00"
    assert [message for message in caplog.messages if "UTC" in message] == [
        f"{source.uri}: times without a zone are read as UTC: 'at'",
        f"{source.uri}, row 2, column 'seen': '2013-01-01 05:00:00' has no zone, as other times have, and is read as "
        "UTC; 1 of 2 values are times without a zone",
    ]
