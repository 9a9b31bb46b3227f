"""Snapshots hold what Spark reads: the types and values of Parquet and JSON, from ingest to Spark."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.prepare.spark import read_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.statistics import generate_statistics
from tests.ml.readers.reading import ingested, snapshot

OLD, NEW, MICROS = datetime(1500, 3, 1, 12), datetime(9999, 12, 31), datetime(2020, 2, 29, 1, 2, 3, 456789)
NO_TEXT = pa.StringArray.from_buffers(2, *pa.array([b"ok", b"\xff"]).buffers()[1:])
DAY = 86_400_000_000
DIGITS = Decimal("1." + "1" * 45)
FLAT: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{f"int{n}": (pa.type_for_alias(f"int{n}"), [-(2 ** (n - 1)), 2 ** (n - 1) - 1]) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (pa.type_for_alias(f"uint{n}"), [0, 2**n - 1]) for n in (8, 16, 32)},
    "uint64": (pa.uint64(), [0, 2**63 - 1]),
    "bool": (pa.bool_(), [True, False]),
    "float": (pa.float32(), [0.5, -1.5]),
    "double": (pa.float64(), [1e300, -0.1]),
    "string": (pa.string(), ["é", ""]),
    "large_string": (pa.large_string(), ["é", ""]),
    "binary": (pa.binary(), [b"\xff", b""]),
    "large_binary": (pa.large_binary(), [b"\xff", b""]),
    "fixed_binary": (pa.binary(4), [b"abcd", b"\0\1\2\3"]),
    "decimal128": (pa.decimal128(38, 2), [Decimal("1.50"), Decimal("9" * 36)]),
    "decimal256": (pa.decimal256(50, 2), [Decimal("1.50"), Decimal("9" * 36)]),
    "date32": (pa.date32(), [date(1, 1, 1), date(1500, 3, 1)]),
    "date64": (pa.date64(), [date(1500, 3, 1), date(9999, 12, 31)]),
    "timestamp_s": (pa.timestamp("s"), [OLD, NEW]),
    "timestamp_ms": (pa.timestamp("ms"), [OLD, NEW]),
    "timestamp_us": (pa.timestamp("us"), [OLD, MICROS]),
    "timestamp_ns": (pa.timestamp("ns"), [datetime(1700, 1, 1), MICROS]),
    "duration_s": (pa.duration("s"), [timedelta(days=3), timedelta(seconds=-1)]),
    "duration_ns": (pa.duration("ns"), [timedelta(days=3), timedelta(microseconds=-1)]),
    "null": (pa.null(), [None, None]),
}  # fmt: skip


def cases() -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Every type that Arrow writes to Parquet, by itself, in lists, in structs and in maps."""
    nested = {
        name: (wrap(kind), [put(value) for value in values])
        for flat, (kind, values) in FLAT.items()
        for name, wrap, put in (
            (f"list_{flat}", pa.list_, lambda value: [value]),
            (f"struct_{flat}", lambda kind: pa.struct([("x", kind)]), lambda value: {"x": value}),
        )
    }
    more = {
        "large_list": (pa.large_list(pa.uint8()), [[1], []]),
        "fixed_list": (pa.list_(pa.uint8(), 2), [[1, 2], [3, 4]]),
        "empty_lists": (pa.list_(pa.null()), [[], []]),
        "lists_of_lists": (pa.list_(pa.list_(pa.uint16())), [[[1], []], []]),
        "map": (pa.map_(pa.string(), pa.uint8()), [[("a", 1)], []]),
        "map_of_times": (pa.map_(pa.string(), pa.timestamp("ms")), [[("a", OLD)], []]),
        "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "é"]),
    }
    return {**FLAT, **nested, **more}


def write(path: Path, columns: dict[str, pa.Array]) -> Path:
    pq.write_table(pa.table(columns), path, version="2.6")
    return path


def plain(value: Any) -> Any:
    """A value of Spark's as Arrow has it."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    return {name: plain(item) for name, item in value.asDict().items()} if hasattr(value, "asDict") else value


def test_every_type_of_parquet_reaches_spark_unchanged(spark: Any, tmp_path: Path) -> None:
    types = cases()
    columns = {name: pa.array([*values, None], kind) for name, (kind, values) in types.items()}
    columns["fixed_list"] = columns["fixed_list"].take(pa.array([0, 1, 0]))  # Arrow writes no missing one
    written = snapshot(write(tmp_path / "t.parquet", {"row": pa.array([0, 1, 2]), **columns}), tmp_path / "t")
    rows = read_table(spark, written).orderBy("row").collect()
    assert {name: [plain(row[name]) for row in rows] for name in types} == {
        name: column.to_pylist() for name, column in columns.items()
    }


@pytest.mark.parametrize(
    ("value", "words", "advised", "stored"),
    [
        (pa.array([1, 2**64 - 1], pa.uint64()), "row 2, column 'x': 18446744073709551615", "string",
         ["1", "18446744073709551615"]),
        (pa.array([Decimal(1), Decimal("1" * 45)], pa.decimal256(50, 0)), "row 2, column 'x': Decimal('1111", "string",
         ["1", "1" * 45]),
        (pa.array([DIGITS], pa.decimal256(60, 45)), "column 'x' is decimal256(60, 45)", "string", [str(DIGITS)]),
        (pa.array([1000, 1001], pa.timestamp("ns")), "row 2, column 'x': '1970-01-01 00:00:00.000001001'", "timestamp",
         [datetime.fromisoformat("1970-01-01T00:00:00.000001Z")] * 2),
        (pa.array([-1], pa.timestamp("ns")), "row 1, column 'x': '1969-12-31 23:59:59.999999999'", "string",
         ["1969-12-31 23:59:59.999999999"]),
        (pa.array([0, 10**18], pa.timestamp("us")), "row 2, column 'x': '<value out of range: 1000000000000000000>'",
         "int64", [0, 10**18]),
        (pa.array([10**13], pa.timestamp("s")), "row 1, column 'x'", "int64", [10**16]),
        (pa.array([[10**18]], pa.list_(pa.timestamp("us"))), "row 1, column 'x'", None, None),
        (pa.array([0, 10**7], pa.int32()).cast(pa.date32()), "row 2, column 'x': '29349-01-26'", "int32", [0, 10**7]),
        (pa.array([1], pa.duration("ns")), "row 1, column 'x'", "int64", [1]),
        (pa.array([0, DAY], pa.time64("us")), "row 2, column 'x': '<value out of range: 86400", "int64", [0, DAY]),
        (pa.array([DAY // 1000], pa.time32("ms")), "row 1, column 'x'", "int32", [DAY // 1000]),
        (pa.array([[DAY]], pa.list_(pa.time64("us"))), "row 1, column 'x'", None, None),
        (NO_TEXT, "row 2, column 'x': the text is not", "binary", [b"ok", b"\xff"]),
    ],
    ids=["uint64", "decimal256", "scale", "ns", "ns_text", "late", "late_s", "nested", "date", "duration",
         "time", "time_ms", "times", "utf8"],
)  # fmt: skip
def test_unrepresentable_value_is_refused_with_working_advice(
    tmp_path: Path, value: pa.Array, words: str, advised: str | None, stored: list[Any] | None
) -> None:
    path = write(tmp_path / "t.parquet", {"x": value})
    with pytest.raises(BadInput) as refusal:
        snapshot(path, tmp_path / "t")
    assert f"{path}" in str(refusal.value) and words in str(refusal.value)
    if advised is not None:
        assert repr(advised) in str(refusal.value)
        assert ingested(path, tmp_path / "t", schema={"x": advised})["x"].to_pylist() == stored


def test_schema_converts_without_loss(tmp_path: Path) -> None:
    flags, times = pa.array([1, 0, None]), ["2013-01-01 10:00", "2013-01-01", None]
    path = write(tmp_path / "t.parquet", {"flag": flags, "at": pa.array(times)})
    table = ingested(path, tmp_path / "t", schema={"flag": "bool", "at": "timestamp"})
    assert table["flag"].to_pylist() == [True, False, None]
    assert table["at"].cast(pa.int64()).to_pylist() == [1_357_034_400_000_000, 1_356_998_400_000_000, None]
    for numbers in ([1, 2], [0.0, 0.5]):
        write(path, {"flag": pa.array(numbers)})
        with pytest.raises(BadInput, match=r"row 2, column 'flag': .* is not of type bool"):
            snapshot(path, tmp_path / "u", schema={"flag": "bool"})


def test_empty_json_lists_and_objects_are_read(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"tags": [], "more": {"tags": []}}\n{"tags": [], "more": null}\n')
    rows = read_table(spark, snapshot(tmp_path / "t.jsonl", tmp_path / "t")).collect()
    assert [row.tags for row in rows] == [[], []]
    (tmp_path / "t.jsonl").write_text('{"a": 1, "empty": {}}\n')
    (row,) = read_table(spark, snapshot(tmp_path / "t.jsonl", tmp_path / "t")).collect()
    assert (row["a"], row["empty"]) == (1, "{}")


def test_int96_is_read_outside_the_years_of_nanoseconds(spark: Any, tmp_path: Path) -> None:
    times = pa.array([OLD.replace(hour=0), MICROS, None, NEW], pa.timestamp("us"))
    pq.write_table(pa.table({"at": times}), tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    rows = read_table(spark, snapshot(tmp_path / "t.parquet", tmp_path / "t")).collect()
    assert [row["at"] for row in rows] == times.to_pylist()
    exact = pa.table({"at": pa.array([0, 1001], pa.timestamp("ns"))})
    pq.write_table(exact, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(BadInput, match=r"row 2, column 'at': '1970-01-01 00:00:00.000001001' has nanoseconds"):
        snapshot(tmp_path / "t.parquet", tmp_path / "t")


@pytest.mark.parametrize(
    ("kind", "mode"), [("INT96", "CORRECTED"), ("INT96", "LEGACY"), ("TIMESTAMP_MICROS", "LEGACY")]
)
def test_old_spark_times_are_unchanged_or_refused(spark: Any, tmp_path: Path, kind: str, mode: str) -> None:
    options = {"outputTimestampType": kind, "datetimeRebaseModeInWrite": mode, "int96RebaseModeInWrite": mode}
    for name, value in options.items():
        spark.conf.set(f"spark.sql.parquet.{name}", value)
    try:
        frame = spark.sql("SELECT date'1500-03-01' AS day, timestamp_ntz'1500-03-01 12:00:00' AS ntz, 1 AS one")
        frame.selectExpr("day", "cast(ntz as timestamp) AS at").coalesce(1).write.parquet(str(tmp_path / "written"))
    finally:
        for name in options:
            spark.conf.unset(f"spark.sql.parquet.{name}")
    (path,) = (tmp_path / "written").glob("*.parquet")
    if mode == "CORRECTED":
        (row,) = ingested(path, tmp_path / "t").to_pylist()
        assert (row["day"], row["at"].replace(tzinfo=None)) == (date(1500, 3, 1), OLD)
        return
    for column in ("day", "at"):
        with pytest.raises(BadInput, match=rf"row 1, column '{column}': '1500-03-11.* is written in Spark's older"):
            snapshot(path, tmp_path / "t", columns=(column,))


def test_pandas_index_is_omitted_unless_named(tmp_path: Path) -> None:
    frame = pa.table({"x": [1.5, 2.5]}).to_pandas()
    frame.index = [7, 8]
    frame.to_parquet(tmp_path / "t.parquet")
    assert ingested(tmp_path / "t.parquet", tmp_path / "t").column_names == ["x"]
    named = snapshot(tmp_path / "t.parquet", tmp_path / "t", columns=("__index_level_0__", "x"))
    assert pq.read_table(named).column_names == ["__index_level_0__", "x"]
    (feature,) = generate_statistics(tmp_path / "t.parquet").datasets[0].features
    assert feature.path.step == ["x"]


def test_text_that_is_not_utf8_is_refused_by_statistics(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"x": "ok"}\n{"x": "\xff"}\n')
    words = "row 2.*(column 'x': the text is not in UTF-8|'utf-8' codec)"
    for path in (tmp_path / "t.jsonl", write(tmp_path / "t.parquet", {"x": NO_TEXT})):
        with pytest.raises(BadInput, match=f"{path.name}, {words}"):
            generate_statistics(path)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_hive_folders_become_columns(tmp_path: Path, kind: str) -> None:
    folders = ["country=DE/month=1", "country=a%20b/month=12", "country=__HIVE_DEFAULT_PARTITION__/month=3"]
    for number, folder in enumerate(folders):
        (tmp_path / "data" / folder).mkdir(parents=True)
        path = tmp_path / "data" / folder / f"part-0.{kind}"
        if kind == "parquet":
            write(path, {"x": pa.array([number])})
        else:
            path.write_text(f"x\n{number}\n" if kind == "csv" else f'{{"x": {number}}}\n')
    rows = ingested(tmp_path / "data", tmp_path / "t").to_pylist()
    assert sorted(rows, key=lambda row: row["x"]) == [
        {"x": 0, "country": "DE", "month": 1},
        {"x": 1, "country": "a b", "month": 12},
        {"x": 2, "country": None, "month": 3},
    ]
    some = snapshot(tmp_path / "data", tmp_path / "t", columns=("month",), schema={"month": "string"})
    assert sorted(pq.read_table(some)["month"].to_pylist()) == ["1", "12", "3"]
    inside = snapshot(tmp_path / "data" / "country=DE", tmp_path / "t")
    assert pq.read_table(inside).to_pylist() == [{"x": 0, "month": 1}]
    with pytest.raises(BadInput, match=r"the folder names the column 'country'.* exclude=\['country'\]"):
        generate_statistics(tmp_path / "data")
    (feature,) = generate_statistics(tmp_path / "data", exclude=["country", "month"]).datasets[0].features
    assert feature.path.step == ["x"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_columns_that_a_folder_repeats_are_equal_or_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "data" / "day=2024-01-05" / "n=07"
    folder.mkdir(parents=True)
    for second, refused in ((7, False), (8, True), (None, True)):
        columns = {"x": pa.array([0, 1]), "n": pa.array([7, second]), "day": pa.array([date(2024, 1, 5)] * 2)}
        if kind == "parquet":
            write(folder / "t.parquet", columns)
        else:
            frame = pa.table(columns).to_pandas().astype({"n": "Int64", "day": str})
            frame.to_csv(folder / "t.csv", index=False) if kind == "csv" else frame.to_json(
                folder / "t.jsonl", orient="records", lines=True
            )
        if refused:
            with pytest.raises(BadInput, match=r"row 2, column 'n': (8|None), but the name of the folder says '07'"):
                snapshot(tmp_path / "data", tmp_path / "t")
        else:
            table = ingested(tmp_path / "data", tmp_path / "t")
            assert table.to_pydict() == {name: column.to_pylist() for name, column in columns.items()}
        assert ingested(tmp_path / "data", tmp_path / "t", columns=("x",))["x"].to_pylist() == [0, 1]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "*", "[x]", "{x}", "manifest.json", "a\nb", "x" * 300])
def test_table_named_like_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "snapshot").mkdir()
    path = write(tmp_path / "t.parquet", {"x": pa.array([1])})
    with pytest.raises(BadInput, match="expected a name that can be a folder's"):
        ingest_table(name, Source(str(path)), Window(None, None), OutputFolder(str(tmp_path / "snapshot")))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "snapshot", path]
    assert not any((tmp_path / "snapshot").iterdir())
