"""Files that cannot be read are refused with their place and what to do, by ingest and by statistics."""

from __future__ import annotations

import codecs
import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ml.readers.reading import by_ingest, check_refused, ingested

CSV = "id,at,amount,note\n1,2013-01-01T00:00:00Z,2.5,NA\n2,2013-01-02T00:00:00Z,,café\n3,2013-01-03T00:00:00Z,4,x\n"


HTML = "<!DOCTYPE html>\n<html><body>Please log in</body></html>\n"


def packed(content: str | bytes) -> bytes:
    return gzip.compress(content.encode() if isinstance(content, str) else content, mtime=0)


def parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"a": ["1"]}), stream)
    return stream.getvalue()


def encrypted_zip() -> bytes:
    """An archive whose member is marked as encrypted."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a.csv"), CSV)  # without the time, which would be in the test's name
    content = bytearray(stream.getvalue())
    content[6] |= 1  # in the member's own header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # in the archive's directory
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "fields", "words"),
    [
        ("t.csv", "a,b", {}, "no rows"),
        ("t.csv", CSV + "4,2013-01-04T00:00:00Z\n", {}, "t.csv, row 4: CSV parse error: Expected 4 columns, got 2"),
        ("t.csv", "id,id\n1,2\n", {}, "t.csv: the header names column 'id' more than once"),
        ("t.csv", "5.1,1,setosa\n4.9,0,setosa\n", {}, "the first row, '5.1', '1', 'setosa'…, looks like"),
        ("t.csv", "2013-01-01\n2013-01-02\n", {}, "give them in the source's 'header'"),
        ("t.csv", "1,1\n2,2\n", {}, "give them in the source's 'header'"),
        ("t.csv", "5.1,setosa\n", {"header": ("a",)}, "t.csv, row 1: CSV parse error: Expected 1 columns, got 2"),
        ("t.csv", CSV.encode("latin-1"), {}, "t.csv: column 'note' is not text in utf8"),
        ("t.csv", CSV.encode("utf-16"), {}, "give the source encoding='utf-16', or airflow hops init --encod"),
        ("t.csv", b"a\0,\0b\0\n\0", {}, "is not text in utf8"),
        ("t.csv", CSV, {"encoding": "ascii"}, "t.csv: cannot be read: 'ascii' codec can't decode byte 0xc3"),
        ("t.csv", CSV, {"schema": {"note": "float64"}}, "t.csv, row 2, column 'note': 'café' is not of type double"),
        ("t.csv", CSV, {"columns": ("id", "z")}, "column 'z', which"),
        ("t.csv.gz", packed(CSV * 99)[:-12], {}, "t.csv.gz: cannot be read"),
        ("t.jsonl", '{"a": 1}\n'.encode("utf-16"), {}, "t.jsonl: the file is in utf-16, not in UTF-8; rewrite it"),
        ("t.jsonl", '{"é": 1}\n'.encode("latin-1"), {}, "t.jsonl: cannot be read: 'utf-8' codec can't"),
        ("t.jsonl", '{"a": ' + "[" * 5000 + "]" * 5000 + "}\n", {}, "t.jsonl, row 1: JSON parse error: values nested"),
        ("t.jsonl", b'{"a": 1}\n{"a": \0"x"}\n', {}, "row 2"),
        ("t.jsonl", '{"a": 1, "a": 2}\n', {}, "row 1"),
        ("t.jsonl", b'{"a": 1}\n{"a": "\xff\xfe", "b": 12345678901234567890}\n', {}, "t.jsonl"),
        ("t.jsonl", '{"a": 1}\n7\n', {}, "row 2"),
        ("t.jsonl", '{"a": 1},\n{"a": 2},\n', {}, "row 1"),
        ("t.jsonl", '{"a": 1}\n]\n{"a": 2}\n', {}, "row 2"),
        ("t.jsonl", '{"a": 1}{"a": 2}\n', {}, "row 1"),
        ("t.jsonl", '{\n  "a": 1\n}\n', {}, "row 1"),
        ("t.jsonl", "[1, 2]\n", {}, "t.jsonl, row 1: "),
        ("t.jsonl", '{"a": "b"}\n{"a": "\\ud83d"}\n', {}, "row 2"),
        ("t.jsonl", '{"a": 1}\n{"\\ud83d": 1}\n', {}, "row 2"),
        ("t.parquet", b"PAR1" + bytes(99) + b"PAR1", {}, "t.parquet: cannot be read"),
        ("t.bin", bytes(range(256)) * 4, {}, "t.bin: neither CSV, JSON lines nor Parquet"),
        ("t.csv", "a;b\n1;2\n", {}, "the header b'a;b' is one column, and has ';' in it"),
        ("t.csv", "a\tb\n1\t2\n", {}, "is one column"),
        ("t.csv", "a,b\n1,2\n", {"delimiter": ";"}, "the header b'a,b' is one column, and has ',' in it"),
        ("t.csv", "sep=;\na;b\n1;2\n", {}, "the first row is b'sep=;', which only Excel reads"),
        ("t.csv", "sep=;\na;b\n1;2\n", {"delimiter": ";"}, "the first row is b'sep=;', which only Excel reads"),
    ],
)
def test_broken_file_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, fields: dict[str, Any], words: str
) -> None:
    check_refused(tmp_path / name, words, content, **fields)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", HTML, "looks like an HTML page"),
        ("t.csv.gz", packed(HTML), "looks like an HTML page"),
        ("t.jsonl", HTML, "looks like an HTML page"),
        ("t.csv", '<?xml version="1.0"?>\n<rows/>\n', "looks like XML"),
        ("t.csv", '[{"a": 1, "b": 2},\n{"a": 3, "b": 4}]\n', "looks like a JSON array, not like csv; write one object"),
        ("t.csv", '[\n  {"a": 1},\n  {"a": 3}\n]\n', "looks like a JSON array"),
        ("t.csv", codecs.BOM_UTF8 + b'[{"a": 1}]', "looks like a JSON array"),
        ("t.csv", '{"a": 1}\n{"a": 2}\n', "looks like JSON objects, not like csv; if each line is an object, name f"),
        ("t.jsonl", '[{"a": 1},\n{"a": 3}]\n', "looks like a JSON array, not like jsonl"),
        ("t.csv", parquet(), "looks like Parquet"),
        ("t.csv", b"%PDF-1.7\n%...\n", "looks like PDF"),
        ("t.csv", b"SQLite format 3\0", "looks like a database of SQLite"),
        ("t.csv.gz", packed(packed("a\n1\n")), "looks like a file that was compressed twice"),
    ],
)
def test_text_file_of_another_format_is_refused(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    check_refused(tmp_path / name, words, content)


@pytest.mark.parametrize(
    ("name", "content", "fields", "words"),
    [
        ("t.csv", CSV, {"time_column": "when"}, "t.csv: there is no column 'when', which the source's 'time_column'"),
        ("t.csv", CSV, {"time_column": "note"}, "t.csv, row 2, column 'note': 'café' is not a time"),
        ("t.csv", CSV, {"time_column": "amount"}, "t.csv: time_column 'amount' is of type double"),
        ("t.csv", CSV, {"schema": {"note": "decimal"}}, "schema gives column 'note' the type 'decimal'"),
        ("t.csv", "", {}, "t.csv: the file is empty"),
        ("t.csv", ",id\n0,1\n", {}, "t.csv: column 1 ('') has no name; rename it, or leave it out"),
        ("t.zip", encrypted_zip(), {}, "t.zip: 'a.csv' is encrypted"),
        ("t.zip", b"PK\x03\x04" + bytes(99), {}, "t.zip: cannot be read"),
    ],
)
def test_file_that_ingest_refuses_is_named(
    tmp_path: Path, name: str, content: str | bytes, fields: dict[str, Any], words: str
) -> None:
    check_refused(tmp_path / name, words, content, [by_ingest], **fields)


def test_header_like_another_format_is_read(tmp_path: Path) -> None:
    for header in ("ORCID", "PAR1", "{x}", "[x]", "<a>", "%PDF", "PK", "{", '"{""a"":1}"', '"a;b"'):
        (tmp_path / "t.csv").write_text(f"{header},b\n1,2\n")
        assert ingested(tmp_path / "t.csv", tmp_path).num_rows == 1
    (tmp_path / "t.csv").write_text('"a;b"\n1\n')
    assert ingested(tmp_path / "t.csv", tmp_path).column_names == ["a;b"]
