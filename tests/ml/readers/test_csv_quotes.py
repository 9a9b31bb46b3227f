"""Quotes of CSV: no way to write them loses rows; where the reading is uncertain, file, line and remedy are named."""

from __future__ import annotations

import ast
import contextlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers import csv
from airflow_hops.ml.statistics import generate_statistics
from tests.ml.readers.reading import ingested

SPARK = r"""
id,size,note
0,"5\"",z
1,a\,z
2,"a\\,b",z
3,"\\\"",z
4,\\,z
5,"a,\\",z
6,"\"\"","C:\\new, x"
7,"a
b","\\\\\","
""".lstrip()
"""Text that Spark 4.1 writes by default for SPARK_VALUES."""
SPARK_VALUES = ['5"', "a\\", "a\\,b", '\\"', "\\\\", "a,\\", '""', "a\nb"]
JSON = r"id,json,note" + "\n" + r'1,"{""a"": ""x\""y""}",b' + "\n" + r'2,"C:\","D:\"' + "\n"


def ingest(folder: Path, text: str, **fields: Any) -> list[dict[str, Any]]:
    path = folder / "t.csv"
    path.write_bytes(text.encode())
    rows: list[dict[str, Any]] = ingested(path, folder / "out", **fields).to_pylist()
    return rows


def test_spark_files_are_read_with_sparks_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block_bytes in (7, 1 << 20):
        monkeypatch.setattr(csv, "BLOCK_BYTES", block_bytes)
        rows = ingest(tmp_path, SPARK, escape="\\")
        assert [row["size"] for row in rows] == SPARK_VALUES
        assert [row["note"] for row in rows[-2:]] == ["C:\\new, x", '\\\\",']


ESCAPED, NOT_ESCAPED = ("escape", "\\"), ("escape", "")
QUOTED, NOT_QUOTED = ("quote", '"'), ("quote", "")


@pytest.mark.parametrize(
    ("text", "line", "rows"),
    [
        (SPARK, 2, {ESCAPED: 8}),
        ('a,b\n1,"5\\""\n2,x\n3,"7\\""\n4,y\n5,z\n', 2, {ESCAPED: 5, NOT_QUOTED: 5}),
        ('a,b\n1,x\n2,"5\\""\n3,y\n', 3, {ESCAPED: 3, NOT_QUOTED: 3}),
        ('a,b\n1,"x\\\\"\n', 2, {ESCAPED: 1, NOT_ESCAPED: 1}),
        ('a\n"x\\"\ny"\n', 2, {ESCAPED: 1, NOT_ESCAPED: 2}),
        ('a,b,c\n1,"x\\",y",z\n', 2, {ESCAPED: 1, NOT_ESCAPED: 0}),
        ('a,b\n1,5\\"\n', 2, {ESCAPED: 0, NOT_ESCAPED: 1}),
        ('a,b\n1,"abc" def\n2,x\n3,"ghi" jkl\n4,y\n', 2, {NOT_QUOTED: 4}),
        ('a,b,c\n1,"abc" def,2\n2,"x, y",3\n', 2, {}),
        ('a\tb\n1\t"one\n2\ttwo\n3\tthree"\n', 2, {QUOTED: 1, NOT_QUOTED: 3}),
        ('a\tb\n1\tx\n2\t"one\n3\ttwo\n', 3, {NOT_QUOTED: 3}),
        ('a\n"one\ntwo\n\nthree"\n', 2, {QUOTED: 1, NOT_QUOTED: 3}),
    ],
)
def test_uncertain_quotes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, rows: dict[tuple[str, str], int]
) -> None:
    """``rows`` are the settings that the message names, with the numbers of rows that they give; 0 for an error."""
    delimiter = "\t" if "\t" in text else ","
    for block_bytes in (7, 1 << 20):
        monkeypatch.setattr(csv, "BLOCK_BYTES", block_bytes)
        with pytest.raises(BadInput, match=re.escape(f"{tmp_path}/t.csv, line {line}: ")) as refusal:
            ingest(tmp_path, text, delimiter=delimiter)
    with pytest.raises(BadInput, match=re.escape(str(refusal.value))):
        generate_statistics(Source(f"{tmp_path}/t.csv", delimiter=delimiter))
    named = re.findall(r"(?:give the source|or) (\w+)=('.*?') if", str(refusal.value))
    assert [(name, ast.literal_eval(value)) for name, value in named] == [*rows]
    for (name, value), count in rows.items():
        with contextlib.nullcontext() if count else pytest.raises(BadInput):
            assert len(ingest(tmp_path, text, delimiter=delimiter, **{name: value})) == count


@pytest.mark.parametrize(
    ("text", "fields", "values"),
    [
        (JSON, {}, ['{"a": "x\\"y"}', "C:\\"]),
        ('a,b,c\n1,6" nail,2\n2,"7"" nail",3\n', {}, ['6" nail', '7" nail']),
        ('a,b,c\n1,"two\nlines",2\n2,"x, y",3\n', {}, ["two\nlines", "x, y"]),
        ('a,b,c\n1,"two, ""or""\nlines, three",2\n', {"quote": '"'}, ['two, "or"\nlines, three']),
        ("a,b,c\n1,'x, \"y',2\n2,it's,3\n", {"quote": "'"}, ['x, "y', "it's"]),
        ("a,b,c\n1,'x^', ^^ ^y',2\n2,^^,3\n", {"quote": "'", "escape": "^"}, ["x', ^ ^y", "^^"]),
        ('a,b,c\n1,"x\\",2\n', {"escape": ""}, ["x\\"]),
        ('a,b,c\n1,"x""y",2\n', {"escape": '"'}, ['x"y']),
        ('a,b,c\n1,"x,2\n2,y",3\n', {"quote": ""}, ['"x', 'y"']),
        ('a,b,c\r1,"x\ry",2\r', {"quote": '"'}, ["x\ry"]),
    ],
)
def test_certain_quotes_are_read(tmp_path: Path, text: str, fields: dict[str, str], values: list[str]) -> None:
    header = text[1:6].split(",")[1] if text.startswith("a") else "json"
    assert [row[header] for row in ingest(tmp_path, text, **fields)] == values
    assert ingest(tmp_path, "'a;b'\nx\n", quote="'") == [{"a;b": "x"}]


def test_escaped_tables_round_trip_or_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(14)
    refused = 0
    for _ in range(25):
        monkeypatch.setattr(csv, "BLOCK_BYTES", draw.randint(1, 80))
        rows = [
            {
                name: "".join(draw.choices('ab,"\n\\', weights=[6, 6, 1, 1, 1, 1], k=draw.randint(1, 5)))
                for name in "xyz"
            }
            for _ in range(draw.randint(1, 8))
        ]
        escaped = [[re.sub(r'(["\\])', r"\\\1", value) for value in row.values()] for row in rows]
        text = "x,y,z\n" + "".join(",".join(f'"{value}"' for value in row) + "\n" for row in escaped)
        fields = {"null_values": (), "schema": dict.fromkeys("xyz", "string")}
        assert ingest(tmp_path, text, escape="\\", **fields) == rows, text
        try:
            assert ingest(tmp_path, text, **fields) == rows, text
        except BadInput:
            refused += 1
    assert refused > 12


def test_unusable_quote_is_refused() -> None:
    refused: list[dict[str, Any]] = [
        {"quote": "''"}, {"quote": ","}, {"escape": "\n"}, {"delimiter": ""}, {"quote": "«"},
        {"quote": "", "escape": "/"},
    ]  # fmt: skip
    for fields in refused:
        with pytest.raises(BadInput, match=f"source '/x.csv': {[*fields][-1]} is "):
            Source("/x.csv", **fields)
