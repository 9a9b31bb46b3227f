"""What statistics are computed from: every format gives the same rows, CSV the types that TFDV infers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_store import s3_endpoint  # noqa: F401

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
FORMATS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "feather", "arrows", "tfrecord", "tfrecord.gz")


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs a function of ``source_checks`` once, and gives what it found."""
    found: dict[str, Any] = {}

    def run(name: str, **params: Any) -> Any:
        if name not in found:
            found[name] = shared_run_step(
                f"source_checks:{name}", params=params, code_paths=CHECKS, launcher=warm_launcher
            )
        return found[name]

    return run


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_gives_the_same_rows(check: Any, format_: str) -> None:
    facts = check("every_format")[format_]
    assert facts["same"]
    assert facts["same_by_content"]
    assert facts["same_unpickled"]
    assert facts["projected"] == ["id", "whole"]


def test_a_local_file_is_read_in_parts_and_a_compressed_one_in_one(check: Any) -> None:
    parts = {name: facts["parts"] for name, facts in check("every_format").items()}
    assert all(parts[name] > 1 for name in ("csv", "jsonl", "parquet", "feather", "tfrecord", "table"))
    assert all(parts[name] == 1 for name in ("csv.gz", "jsonl.gz", "arrows", "tfrecord.gz", "batches"))
    assert [name for name in FORMATS if check("every_format")[name]["rows"] == 500] == ["parquet", "tfrecord"]


@pytest.mark.parametrize("format_", ["csv.gz", "jsonl.gz", "parquet", "tfrecord.gz"])
def test_batches_of_one_span_are_dealt_out_each_row_once(check: Any, format_: str) -> None:
    facts = check("dealt_spans")[format_]
    assert facts["ids"] == list(range(500))
    assert len(facts["shares"]) == 3
    assert min(facts["shares"]) > 0


def test_tables_and_batches_are_sources_too(check: Any) -> None:
    facts = check("every_format")
    for name in ("table", "batches"):
        assert facts[name]["same"]
        assert facts[name]["types"] == {"id": "int64", "ratio": "float", "text": "string"}


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet", "feather", "tfrecord"])
def test_folder_is_read_with_its_subfolders_and_a_feature_may_be_absent_from_some_files(
    check: Any, format_: str
) -> None:
    facts = check("folders")["folders"][format_]
    assert sorted(facts["ids"]) == list(range(40))
    assert facts["columns"] == ["id", "ratio", "text", "whole"]
    assert facts["whole"] == 18  # of 20 rows, two are missing


def test_types_of_several_files_join(check: Any) -> None:
    facts = check("folders")
    assert facts["glob"] == 20
    assert facts["joined"]["types"] == {"x": "int64", "y": "string"}
    assert facts["joined"]["rows"] == [{"x": 1, "y": "1"}, {"y": "2.5"}, {"y": "late", "x": 2}]
    assert facts["lines"]["types"] == {
        "x": "double", "l": "list<item: int64>", "n": "string", "b": "bool", "s": "struct<k: int64>",
    }  # fmt: skip
    assert facts["lines"]["rows"][2] == {"x": 2.5, "l": [], "n": "2013-01-01", "s": {"k": 1}}


def test_csv_has_the_types_and_values_of_tfdvs_own_decoder(check: Any) -> None:
    facts = check("csv_as_tfdv")
    assert len(facts) > 250
    assert {name: (f["types"], f["rows"]) for name, f in facts.items()} == {
        name: (f["tfdv_types"], f["tfdv_rows"]) for name, f in facts.items()
    }
    # The cases are what they are meant to be.
    assert facts["beyond int64 is text"]["types"] == ["string"] * 3
    assert facts["signs, underscores and blanks"]["types"] == ["int64", "int64", "int64", "float"]
    assert facts["hexadecimal is text"]["types"] == ["string"] * 3
    assert {kind for f in facts.values() for kind in f["types"]} == {"null", "int64", "float", "string"}


@pytest.mark.parametrize("format_", ["csv", "tfrecord", "jsonl"])
def test_statistics_of_files_equal_tfdvs(check: Any, format_: str) -> None:
    assert check("statistics_as_tfdv")[format_] == []


def test_csv_is_cut_between_rows_whatever_stands_within_quotes(check: Any) -> None:
    facts = check("quoted_rows")
    assert facts["wrong"] == []
    assert sum(spans > 3 for spans in facts["spans"]) > 150
    assert facts["uncut"] == 3  # a quote within a value: rows cannot be told without parsing


def test_csv_with_a_byte_order_mark_in_another_encoding_and_with_given_types(check: Any) -> None:
    facts = check("quoted_rows")
    assert facts["bom"] == [{"x": 1, "y": 2}]
    assert facts["latin"] == [{"x": "München", "y": 1}]
    assert facts["given"] == [{"x": "1"}]


def test_late_types_start_a_source_over_at_most_twice(check: Any) -> None:
    facts = check("late_types")
    assert facts["late.csv"] == [30, ["string"], 4000]
    assert facts["late.jsonl"] == [21, ["double", "int64"], 4000]


def test_batches_are_bounded_in_bytes_and_rows(check: Any) -> None:
    facts = dict(check("bounded_batches"))
    rows = facts.pop("rows")
    assert sum(rows) == 300_000
    assert max(rows) <= 65_536
    for name, batch in facts.items():
        assert batch["largest"] <= 1 << 20, name
        assert batch["rows"] == (60 if name.startswith("long") else 600), name


def test_lists_and_bytes_of_fixed_size_become_those_that_tfdv_knows(check: Any) -> None:
    facts = check("typed_columns")
    assert facts["types"]["vector"] == "list<item: float>"
    assert facts["types"]["code"] == "binary"
    assert facts["types"]["structs"] == "list<item: struct<a: int64, b: list<item: string>>>"
    assert facts["dotted"] == [[{"a.b": 1}], [{"a": {"b": 3, "c": ["x"]}}]]
    assert facts["rows"] == repr(
        [
            {"vector": [1.0, 2.0], "code": b"ab", "nested": [[1], [2, 3]]},
            {"vector": None, "code": b"\xff\xfe", "nested": []},
            {"vector": [3.0, 4.0], "code": None, "nested": None},
        ]
    )


@pytest.mark.parametrize("name", ["timestamp", "date", "decimal", "map", "struct of dates"])
def test_types_without_statistics_are_refused_unless_left_out(check: Any, name: str) -> None:
    facts = check("typed_columns")
    assert f"{name}.parquet: column 'col' is " in facts["refused"][name]
    assert "has no statistics; expected integers, floats" in facts["refused"][name]
    assert facts["refused"][f"{name} in a table"].startswith("table: column 'col' is ")
    assert facts["left_out"]["timestamp"] == "no error"


@pytest.mark.parametrize("damage", ["head", "midst"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_corrupt_file_among_good_ones_is_named_or_left_out(check: Any, format_: str, damage: str) -> None:
    facts = check("corrupt_files")[f"{format_} {damage}"]
    name, message = facts["failed"]
    assert name == f"b.{format_}"
    assert f"b.{format_}" in message
    assert facts["kept"] == [300, 0, 300]
    assert list(facts["skipped"]) == [f"b.{format_}"]


def test_a_source_of_corrupt_files_alone_is_refused(check: Any) -> None:
    assert "none of its files can be read: " in check("corrupt_files")["alone"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none", "none': no file matches"),
        ("absent.csv", "absent.csv': no file matches"),
        ("empty.csv", "none of its files can be read: they are empty"),
        ("twice.csv", "twice.csv: the header names column 'a' more than once"),
        ("ragged.csv", "ragged.csv, row 2: CSV parse error: Expected 2 columns, got 1"),
        ("latin.csv", "latin.csv: column 'a' is not text in utf8; name its encoding"),
        ("typed.csv", "typed.csv, row 2, column 'a': 'x' is not of type int64, which the source's 'schema' gives"),
        ("dated.csv", "column 'b' is date32[day], which has no statistics"),
        ("lacking", "no file has column 'z', which its 'columns' names"),
        ("nothing left", "no column is left to read"),
        ("mixed.jsonl", "mixed.jsonl, row 2: field 'x' is a string, but a number in other lines"),
        ("array.jsonl", "array.jsonl, row 1: "),
        ("text.tfrecord", "text.tfrecord: a record cannot be read as a tf.Example"),
        ("unknown.bin", "unknown.bin: neither CSV, JSON lines nor Parquet"),
        ("types", "types/b.parquet: column 'x' is string, but int64 in "),
        ("fields", "fields/b.jsonl: column 'x' is string, but int64 in "),
        ("kinds", "kinds/b.tfrecord: column 'x' is large_list<item: float>, but large_list<item: int64> in "),
        ("formats", "files of different formats: csv ("),
        ("number", "source is of type int, expected a path, a URI, a Source"),
        ("items", "source holds a value of type int, expected record batches"),
    ],
)
def test_bad_input_names_file_field_and_value(check: Any, source: str, message: str) -> None:
    assert message in check("bad_input")[source]


@pytest.fixture(scope="module")
def bucket(check: Any, s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: F811
    """A bucket with a small table in every format, as parameters of a check."""
    import s3fs

    folder = tmp_path_factory.mktemp("bucket")
    check("write_files", folder=str(folder))
    options = {"endpoint_url": s3_endpoint, "key": "testing", "secret": "testing"}
    fs = s3fs.S3FileSystem(**options)
    fs.mkdir("statistics-sources")
    for path in folder.iterdir():
        fs.put_file(str(path), f"statistics-sources/{path.name}")
    for name in ("a", "below/b"):
        fs.put_file(str(folder / "t.parquet"), f"statistics-sources/folder/{name}.parquet")
    return {"uri": "s3://statistics-sources", "storage_options": options}


def test_sources_on_s3_are_read_also_in_a_forked_process(check: Any, bucket: dict[str, Any]) -> None:
    facts = dict(check("from_s3", **bucket))
    assert facts.pop("folder") == 120
    assert facts == {format_: [True, True] for format_ in FORMATS}
