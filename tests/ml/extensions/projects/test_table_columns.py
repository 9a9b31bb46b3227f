"""Columns of a file, as ``airflow hops init`` reads them."""

from __future__ import annotations

import gzip
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.projects.cli.project import project_files
from airflow_hops.extensions.projects.core.table_columns import TableDescription
from airflow_hops.extensions.projects.ml.columns import describe_table
from airflow_hops.extensions.projects.ml.options import Told
from tests.extensions.projects.hostile_rows import hostile_csv

ROWS = 200
Describe = Callable[..., TableDescription]


def text(delimiter: str = ",", **columns: Any) -> str:
    """A CSV file: by column a function of the row's number."""
    lines = [delimiter.join(f'"{name}"' for name in columns)]
    lines += [delimiter.join(str(value(row)) for value in columns.values()) for row in range(ROWS)]
    return "\n".join(lines) + "\n"


@pytest.fixture
def described(tmp_path: Path) -> Describe:
    def describe(
        content: str | bytes, name: str = "rows.csv", encoding: str = "utf8", units: tuple[str, ...] = (), **told: Any
    ) -> TableDescription:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return describe_table(
            Source(str(tmp_path / name), encoding=encoding, units=units), Told(**{"label": "bought", **told})
        )

    return describe


def is_even(row: int) -> str:
    return "yes" if row % 2 else "no"


COLUMNS: dict[str, Callable[[int], Any]] = {
    "customer_id": lambda row: f"C{row}",
    "name": lambda row: f"Jane {row} Doe",
    "at": lambda row: f"2026-01-01T{row % 24:02}:00:00",
    "until": lambda row: f"2026-02-{row % 28 + 1:02}",
    "line": lambda row: row,
    "age": lambda row: "" if row % 10 == 0 else row % 60,
    "income": lambda row: "?" if row % 7 == 0 else row * 1.5,
    "member": lambda row: ["TRUE", "FALSE"][row % 3 == 0],
    "city": lambda row: ["Oslo", "Bergen", "NA"][row % 3],
    "comment": lambda row: f"text {row % 150}",
    "currency": lambda row: "NOK",
    "nothing": lambda row: "",
    "paid": lambda row: row % 2,
    "street": lambda row: f"{row % 2} {row % 8}",
    "bought": is_even,
}
ROLES = {
    "customer_id": ("key", "its name, and no value twice"),
    "name": ("unused", "every value differs: nothing can be learnt from it"),
    "at": ("time", "the first column of times"),
    "until": ("unused", "a time is not a feature; prepare() can derive features from it"),
    "line": ("unused", "it numbers the rows"),
    "age": ("number", ""),
    "income": ("number", ""),
    "member": ("category", "2 values"),
    "city": ("category", "2 values"),
    "comment": ("unused", "text: 150 different values"),
    "currency": ("unused", "it is the same in every row"),
    "nothing": ("unused", "it has no value"),
    "paid": ("unused", "it is 'bought' in other words: each value goes with one of its"),
    "street": (
        "unused",
        "alone it tells 'bought' (AUC 1.0000), as what is known only afterwards does; --keep keeps it",
    ),
    "bought": ("label", "as told"),
}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_columns_get_roles_and_every_guess_its_reason(described: Describe, delimiter: str) -> None:
    result = described("\ufeff" + text(delimiter, **COLUMNS))
    assert {column.name: (column.role, column.why) for column in result.columns} == ROLES
    assert (result.rows, result.whole, result.delimiter) == (ROWS, True, delimiter)
    assert (result.problem, result.classes) == ("binary", ("no", "yes"))
    assert result.null_values == ("", "NA", "?")
    assert result.notes == ("'?' counts as missing, as among the numbers of 'income'",)
    missing = {column.name: column.missing for column in result.columns if column.missing}
    assert missing == {"age": 20, "income": 29, "city": 66, "nothing": 200}
    assert result.request == {"age": 1.0, "income": 1.5, "member": "TRUE", "city": "Bergen"}
    assert TableDescription.from_dict(result.to_dict()).columns == result.columns


def test_explicit_options_take_precedence(described: Describe) -> None:
    result = described(text(**COLUMNS), key="line", time="until", weight="income", drop=["city", "street"])
    roles = {column.name: column.role for column in result.columns}
    report = {"line": "key", "until": "time", "income": "weight", "city": "unused", "customer_id": "unused"}
    assert report.items() <= roles.items() and roles["at"] == "unused"


AUC, THREE = {"auc": 0.6, "log_loss": 0.693}, ("a", "b", "c")


@pytest.mark.parametrize(
    ("label", "told", "problem", "classes", "minimum"),
    [
        (lambda row: row % 2, None, "binary", None, AUC),
        (lambda row: ["False", "True"][row % 2], None, "binary", None, AUC),
        (lambda row: int(row % 3 == 0), None, "binary", None, {"auc": 0.6, "log_loss": 0.738}),
        (
            lambda row: int(row % 25 == 0), None, "binary", None,
            {"auc": 0.6, "average_precision": 0.08, "log_loss": 0.361},
        ),
        (lambda row: "abcc"[row % 4], None, "multiclass", THREE, {"auc": 0.6, "worst_auc": 0.6, "log_loss": 1.147}),
        (lambda row: row % 3, "multiclass", "multiclass", ("0", "1", "2"), None),
        (lambda row: row / 4, None, "regression", None, {"r2": 0.1}),
        (lambda row: row, "regression", "regression", None, {"r2": 0.1}),
    ],
)  # fmt: skip
def test_label_determines_problem_and_a_minimum_above_a_constant_guess(
    described: Describe, label: Any, told: str | None, problem: str, classes: Any, minimum: Any
) -> None:
    result = described(text(a=lambda row: row * row % 17, bought=label), problem=told)
    assert (result.problem, result.classes) == (problem, classes)
    assert minimum in (None, result.minimum)


def test_rescaled_label_is_left_out(described: Describe) -> None:
    result = described(text(a=lambda row: row % 17, cents=lambda row: row * 150, bought=lambda row: row * 1.5))
    assert [(column.role, column.why) for column in result.columns][1] == (
        "unused", "it is 'bought' on another scale",
    )  # fmt: skip


LEAKS: dict[str, Callable[[int, int, float], Any]] = {
    "refund": lambda row, label, noise: label * 10 + noise,
    "reason": lambda row, label, noise: ["price", "service"][row % 2] if label else "",
    "closed_after": lambda row, label, noise: round(noise, 3) if label else "",
    "middle": lambda row, label, noise: 0.5 + noise / 9 if label else noise + 1 if row % 2 else -noise,
    "code": lambda row, label, noise: f"{'x' if label else 'y'}{int(noise * 8)}",
    "joined_at_s": lambda row, label, noise: 1.7e9 + 60 * label + noise,
}


@pytest.mark.parametrize("share", [0.5, 0.04])
@pytest.mark.parametrize("leak", LEAKS)
def test_column_revealing_the_label_is_left_out_unless_kept(described: Describe, leak: str, share: float) -> None:
    numbers = random.Random(1)
    lines = [f"{leak},age,bought"]
    for row in range(2000):
        label = int(numbers.random() < share)
        lines.append(f"{LEAKS[leak](row, label, numbers.random())},{numbers.gauss(40 + 9 * label, 9):.1f},{label}")
    column, age, _ = described("\n".join(lines)).columns
    assert (column.role, age.role) == ("unused", "number")
    assert column.why.startswith("alone it tells 'bought' (AUC 1.0000)") and "--keep" in column.why
    (retained, *_) = described("\n".join(lines), keep=[leak]).columns
    assert retained.role in ("number", "category")


def test_column_derived_from_the_amount_is_left_out(described: Describe) -> None:
    numbers = random.Random(1)
    prices = [math.exp(numbers.gauss(3, 1.5)) for _ in range(500)]
    lines = ["with_tax,size,price", *(f"{1.19 * p**1.02:.4f},{p + numbers.gauss(0, 20):.2f},{p:.4f}" for p in prices)]
    table = described("\n".join(lines), label="price")
    assert [column.role for column in table.columns] == ["unused", "number", "label"]
    assert table.columns[0].why.startswith("alone it tells 'price' (R² of ranks 1.0000)")
    assert table.minimum == {"r2": 0.1}


def test_unusable_keep_column_is_named(described: Describe) -> None:
    with pytest.raises(BadInput, match="--keep is 'nothing', which cannot be a feature: it has no value"):
        described(text(**COLUMNS), keep=["nothing"])
    assert "street" in described(text(**COLUMNS), keep=["street"]).named("category")


def test_repeated_ids_are_reported(described: Describe) -> None:
    columns = {"account_id": lambda row: 1000 + row % 190, "a": lambda row: row % 7, "bought": is_even}
    result = described(text(**columns))
    assert (result.columns[0].role, result.columns[0].why) == (
        "unused",
        "it identifies a row, but 10 rows repeat a value or have none",
    )
    note = "10 rows repeat a value of 'account_id': "
    assert result.notes == (f"{note}if it identifies rows, --key account_id keeps one of each",)
    assert described(text(**columns), key="account_id").notes == (f"{note}one row of each value is kept",)
    assert described(text(**columns), keep=["account_id"]).columns[0].role == "number"


@pytest.mark.parametrize(
    ("name", "value", "role", "note"),
    [
        ("Kundennr", lambda row: 7000 + 3 * row, "key", ""),
        ("customerid", lambda row: 7000 + 3 * row, "key", ""),
        ("orderNo", lambda row: f"K{row:05}", "key", ""),
        ("paid", lambda row: 7000 + 3 * row, "number", ""),
        ("PLZ", lambda row: f"0{1000 + row % 190}", "unused", ""),
        ("reference", lambda row: f"K-{row:05}", "unused", "if it identifies rows, say --key reference"),
        ("order", lambda row: f"K-{row % 190:05}", "unused", "if it identifies rows, --key order keeps one of each"),
    ],
)
def test_columns_that_identify_rows(described: Describe, name: str, value: Any, role: str, note: str) -> None:
    columns = {name: value, "a": lambda row: row % 7, "bought": is_even}
    result = described(text(**columns), type=[f"{name}=string"] if name == "PLZ" else [])
    assert result.columns[0].role == role
    assert note in " ".join(result.notes) if note else not result.notes


def test_rare_class_is_the_one_whose_probability_is_given(described: Describe) -> None:
    columns = {"a": lambda row: row % 7, "bought": lambda row: "churned" if row % 25 == 0 else "kept"}
    result = described(text(**columns))
    assert (result.classes, result.positive) == (("kept", "churned"), "churned")
    assert result.minimum["average_precision"] == 0.08
    result = described(text(**{**columns, "bought": lambda row: int(row % 25 != 0)}))
    assert "average_precision" not in result.minimum
    assert "the model gives the probability that 'bought' is 1, and 0 is rare (8 of 200 rows)" in result.notes[1]


def test_newest_rows_are_those_with_a_label(described: Describe) -> None:
    """Labels of the last 30 of 200 days are not there yet."""
    lines = ["at,a,bought"]
    for row in range(2000):
        day = datetime(2026, 1, 1) + timedelta(days=row // 10)
        lines.append(f"{day:%Y-%m-%d},{row % 7},{row % 2 if row < 1700 else ''}")
    assert described("\n".join(lines)).newest_s == 17 * 86_400


def test_named_units_are_cut_from_numbers(described: Describe) -> None:
    columns = {"weight": lambda row: f"{row}.5 kg", "a": lambda row: row % 7, "bought": is_even}
    assert described(text(**columns)).columns[0].role == "unused"
    result = described(text(**columns), units=("kg",))
    assert (result.columns[0].role, result.units) == ("number", ("kg",))


def test_category_of_thousands_of_values_is_reported(described: Describe) -> None:
    rows = "".join(f"c{row % 1500},{row % 7},{is_even(row // 3)}\n" for row in range(4000))
    result = described(f"shop,a,bought\n{rows}")
    assert result.columns[0].role == "category"
    (note,) = result.notes
    assert note.startswith("'shop' has 1500 values, most of few rows: group rare ones in prepare()")


@pytest.mark.parametrize(
    ("time", "label", "newest_s"),
    [
        (lambda row: f"2026-{row // 28 % 12 + 1:02}-{row % 28 + 1:02}", lambda row: row % 2, 38 * 86400),
        (lambda row: f"2026-01-01T{row // 60 % 24:02}:{row % 60:02}:00", lambda row: row % 2, 100 * 60),
        (lambda row: f"2026-01-{row % 2 + 1:02}", lambda row: row % 2, None),
        (lambda row: f"2026-01-01T{row // 60:02}:{row % 60:02}:00", lambda row: row // 950, None),
    ],
    ids=["days", "minutes", "two days", "others lack a class"],
)
def test_newest_tenth_of_the_rows_is_a_split(described: Describe, time: Any, label: Any, newest_s: int | None) -> None:
    rows = [f"{time(row)},{row * row % 17},{label(row)}" for row in range(1000)]
    assert described("\n".join(["at,a,bought", *rows]), time="at").newest_s == newest_s


def test_parquet_and_compressed_files_are_read(described: Describe, tmp_path: Path) -> None:
    assert described(gzip.compress(text(**COLUMNS).encode()), "rows.csv.gz").named("number") == ["age", "income"]
    table = pa.table(
        {
            "a": pa.array([row * row % 17 for row in range(ROWS)], pa.int32()),
            "b": pa.array([row % 3 == 0 for row in range(ROWS)]),
            "c": [[1.0, 2.0]] * ROWS,
            "bought": [is_even(row) for row in range(ROWS)],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    result = described((tmp_path / "rows.parquet").read_bytes(), "rows.parquet")
    assert [column.role for column in result.columns] == ["number", "category", "unused", "label"]
    assert result.columns[2].why.startswith("list<") and result.request["b"] == "true"


def test_name_that_differs_in_case_is_left_out(described: Describe) -> None:
    result = described(text(Bought=lambda row: row % 7, a=lambda row: row % 5, A=lambda row: row % 3, bought=is_even))
    unused = {column.name: column.why for column in result.columns if column.role == "unused"}
    words = "its name differs from '{}' only in case; --drop leaves that one out"
    assert unused == {"Bought": words.format("bought"), "A": words.format("a")}
    result = described(text(A=lambda row: row % 5, a=lambda row: row % 3, bought=is_even), drop=["A"])
    assert [column.role for column in result.columns] == ["unused", "number", "label"]


@pytest.mark.parametrize(
    ("missing", "column", "values", "null_values"),
    [
        ("none", "bought", ["none", "some"], ("", "NA")),
        ("?", "bought", ["?", "some"], ("", "NA")),
        ("-", "city", ["-", "Oslo"], ("", "NA")),
        ("?", "city", ["?", "Oslo"], ("", "NA", "?")),
        ("-", "city", ["-", "1"], ("", "NA", "-")),
        ("-", "city", ["-", "-"], ("", "NA", "-")),
    ],
)
def test_missing_number_text_stays_a_class_or_category(
    described: Describe, missing: str, column: str, values: list[str], null_values: Any
) -> None:
    columns = {"age": lambda row: missing if row % 7 == 0 else row % 9, "city": lambda row: "x", "bought": is_even}
    result = described(text(**{**columns, column: lambda row: values[row % 2]}))
    assert result.null_values == null_values
    assert result.columns[0].role == ("number" if missing in null_values else "category")
    (note,) = result.notes
    assert note.startswith(f"{missing!r} counts" if missing in null_values else f"{missing!r} does not count")
    if column == "bought":
        assert result.classes == tuple(values)


@pytest.mark.parametrize("name", ["paid", "bid", "amount_paid", "grid", "Void"])
def test_name_ending_like_a_key_is_not_a_key(described: Describe, name: str) -> None:
    result = described(text(**{name: lambda row: row * row, "bought": is_even}))
    assert result.columns[0].role == "number"


@pytest.mark.parametrize("what", ["", "/*.csv"])
def test_several_files_are_refused(described: Describe, tmp_path: Path, what: str) -> None:
    described(text(**COLUMNS))
    with pytest.raises(BadInput, match=r"a folder, or a pattern of names; expected one file, such as .*rows\.csv"):
        describe_table(Source(f"{tmp_path}{what}"), Told("bought"))


def test_few_rows_and_rare_classes_are_reported(described: Describe) -> None:
    result = described("a,bought\n" + "1,x\n2,y\n1,y\n2,x\n" * 10 + "3,z\n")
    few, rare = result.notes
    assert few.startswith("41 rows are few") and "('z' in 1)" in rare


@pytest.mark.parametrize(
    ("content", "told", "words"),
    [
        (text(a=int), {}, "--label is 'bought', which is not a column; there are 'a'"),
        (text(a=int, bought=is_even), {"key": "b"}, "--key is 'b', which is not a column"),
        (text(a=int, bought=is_even), {"key": "bought"}, "column 'bought' is named by two options"),
        (text(a=int, b=lambda row: row % 2 - 1, bought=is_even), {"weight": "b"}, "'b', which goes down to -1"),
        (text(a=int, b=is_even, bought=is_even), {"weight": "b"}, "--weight is 'b', a column of text"),
        (text(a=int, b=is_even, bought=is_even), {"time": "b"}, "--time is 'b', a column of text; expected times"),
        (text(a=int, b=lambda row: row % 5, bought=is_even), {"key": "b"}, "in 0 of 200 rows and has 5 different"),
        (text(a=int, b=lambda row: row if row % 2 else "", bought=is_even), {"key": "b"}, "missing in 100 of 200"),
        (text(a=int, bought=is_even), {"drop": ["a"]}, "no column is left to predict 'bought' from; left out are 'a'"),
        (text(a=int, bought=lambda row: 1), {}, "--label is 'bought', which is 1 in every row"),
        (text(a=int, bought=lambda row: row % 5), {}, r"may be classes or amounts; set --problem 'multiclass'"),
        (text(a=int, bought=is_even), {"problem": "regression"}, "'bought' holds text; expected numbers"),
        (text(a=int, bought=lambda row: f"2026-01-{row % 9 + 1:02}"), {}, "a column of time; expected text or numbers"),
        (text(a=lambda row: f'"{row + 1},101"', bought=is_even), {}, "'1,101', whose commas may .*; say --thousands=,"),
        (
            text(";", a="{},5".format, b="{}.5".format, bought=is_even),
            {},
            "conflicting decimal or thousands separators",
        ),
        (text(a=int, b=is_even, bought=is_even), {"type": ["b=float64"]}, "row 1, column 'b': 'no' is not of type dou"),
        (text(a=int, bought=is_even), {"type": ["b=float64"]}, "there is no column 'b', which the source's 'schema'"),
        (text(a=int, bought=is_even), {"type": ["a"]}, "--type is 'a'; expected COLUMN=TYPE"),
        (text(a=int, b=lambda row: f"0{row % 9 + 1}/02/2026", bought=is_even), {"time": "b"}, "--type b=%d/%m/%Y"),
        (text(a=lambda row: '"1,101"', bought=is_even), {"drop": ["a"]}, "no column is left"),
        ("a,bought,a\n1,2,3\n", {}, "the header names column 'a' more than once"),
        ("a,bought\n", {}, "has no rows"),
        ("", {}, "the file is empty"),
        ("a,bought\n1\n", {}, "Expected 2 columns, got 1"),
        (text(a=int, bought=lambda row: "gr\xfcn").encode("latin-1"), {}, "name its encoding"),
    ],
)
def test_unusable_input_is_named(described: Describe, content: str | bytes, told: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        described(content, **told)


@pytest.mark.parametrize(
    ("cell", "setting", "value"),
    [('"5\\", or ""', {"escape": "\\"}, '5", or "'), ('"5', {"quote": ""}, '"5'), ('"5""6"', {}, '5"6')],
)
def test_quotes_are_recognised(described: Describe, cell: str, setting: dict[str, str], value: str) -> None:
    cells = [cell.replace('or ""', 'or \\""'), "x"]
    content = text(a=lambda row: cells[row // 2 % 2], bought=is_even).replace('"a","bought"', "a,bought")
    table = described(content)
    assert {name: getattr(table, name) for name in ("quote", "escape") if getattr(table, name) is not None} == setting
    assert (table.rows, table.request["a"], len(table.notes)) == (ROWS, value, len(setting))


def test_ambiguous_quotes_need_an_option(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text(a=lambda row: ['"x\\\\"', "y"][row // 2 % 2], bought=is_even))
    with pytest.raises(BadInput, match=r"line 2: .*; give --escape='\\' if .*, or --escape='' if"):
        describe_table(Source(str(tmp_path / "t.csv")), Told("bought"))
    for escape, value in (("\\", "x\\"), ("", "x\\\\")):
        assert describe_table(Source(str(tmp_path / "t.csv"), escape=escape), Told("bought")).request["a"] == value


NUMBERS_AS_WRITTEN = [
    # the cells, what is recognised, and a value of the request
    (["2,5", "2", "0,25"], {"decimal": ","}, 2.5),
    (["1.234,50", "950"], {"decimal": ",", "thousands": "."}, 1234.5),
    (["1,234.50", "950"], {"thousands": ","}, 1234.5),
    (["1,234,567", "950"], {"thousands": ","}, 1234567.0),
    (["1 200", "950"], {"thousands": " "}, 1200.0),
    (["$5.50", "$12"], {"units": ("$",)}, 5.5),
    (["12,5 %", "7 %"], {"decimal": ",", "units": ("%",)}, 12.5),
    (["1'200.5", "950"], {"thousands": "'"}, 1200.5),
]


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(("cells", "marks", "value"), NUMBERS_AS_WRITTEN)
def test_numbers_of_other_locales_are_recognised(
    described: Describe, cells: list[str], marks: dict[str, Any], value: float, delimiter: str
) -> None:
    columns = {"a": lambda row: f'"{cells[row // 2 % len(cells)]}"', "b": lambda row: row * row % 17, "bought": is_even}
    table = described(text(delimiter, **columns))
    assert table.named("number") == ["a", "b"]
    assert {name: getattr(table, name) for name in ("decimal", "thousands", "units")} == {
        "decimal": ".", "thousands": "", "units": (), **marks,
    }  # fmt: skip
    assert table.request["a"] == value
    assert any("'a'" in note for note in table.notes)


@pytest.mark.parametrize(
    ("options", "value"), [({"decimal": ","}, 1.2), ({"thousands": ","}, 1200.0), ({"type": ["a=string"]}, "1,200")]
)
def test_ambiguous_commas_follow_the_option(tmp_path: Path, options: dict[str, Any], value: Any) -> None:
    (tmp_path / "t.csv").write_text(text(a=lambda row: ['"1,200"', "950"][row // 2 % 2], b=int, bought=is_even))
    types = {"type": options.pop("type", [])}
    table = describe_table(Source(str(tmp_path / "t.csv"), **options), Told("bought", **types))
    assert table.request["a"] == value


@pytest.mark.parametrize(
    ("cells", "layout"),
    [
        (["31/01/2026", "1/2/2026"], "%d/%m/%Y"),
        (["01/31/2026", "1/2/2026"], "%m/%d/%Y"),
        (["31.01.2026 05:06", "01.02.2026 05:07"], "%d.%m.%Y %H:%M"),
        (["31/01/26", "01/02/26"], "%d/%m/%y"),
        (["2026/01/31", "2026/02/01"], "%Y/%m/%d"),
        (["Jan 31, 2026", "Feb 1, 2026"], "%b %d, %Y"),
    ],
)
def test_times_of_other_layouts_are_recognised(described: Describe, cells: list[str], layout: str) -> None:
    table = described(text(at=lambda row: f'"{cells[row % 2]}"', b=lambda row: row % 7, bought=is_even))
    column = table.columns[0]
    assert (column.type, column.role, column.layout) == ("time", "time", layout)
    assert any(layout in note for note in table.notes)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["01/02/2026", "03/04/2026"], r"can be read in two ways; say --type a=%d/%m/%Y or --type a=%m/%d/%Y"),
        (["$5", "€6", "$7"], "'a' is text, as its values, such as '\\$5', are not numbers that are all written alike"),
        (
            ["007", "12", "13"],
            "'a' is text: '007' would not be the same text again as a number; --type a=float64 reads",
        ),
        ([*map(str, range(10, 40)), "late"], "'a' is text: 'late' is not a number, as 30 of 31 values are"),
        (["5%", "6", "7"], "'a' is text, as its values"),
        (["1.2.3", "1.10.0"], "'a' is text, as its values"),
    ],
)
def test_text_resembling_numbers_or_times_is_reported(described: Describe, cells: list[str], words: str) -> None:
    table = described(text(a=lambda row: cells[row // 2 % len(cells)], b=int, bought=is_even))
    assert not table.named("time") and table.named("number") in (["b"], [])
    assert any(re.search(words, note) for note in table.notes), table.notes


def test_long_numbers_are_not_constant(described: Describe) -> None:
    table = described(text(account=lambda row: 12345678901234567890 + row, b=lambda row: row % 7, bought=is_even))
    account = table.columns[0]
    assert (account.type, account.role) == ("text", "unused")
    assert account.why == "every value differs: nothing can be learnt from it"


@pytest.mark.parametrize("told", [{}, {"problem": "regression", "label": "b"}, {"time": "account"}])
def test_integers_that_float64_rounds_are_described(described: Describe, told: dict[str, Any]) -> None:
    columns = {"account": lambda row: 10**17 + row // 2 * 7, "b": lambda row: row * row % 17, "bought": is_even}
    assert described(text(**columns), **told).columns[0].type == "integer"


def test_old_times_are_described(tmp_path: Path) -> None:
    times = [datetime(1500 + row, 1, 1) for row in range(ROWS)]
    table = {"at": times, "b": [row % 7 for row in range(ROWS)], "bought": [row % 2 for row in range(ROWS)]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    assert describe_table(Source(str(tmp_path / "t.parquet")), Told("bought")).named("time") == ["at"]


def test_null_of_database_exports_is_missing(described: Describe) -> None:
    table = described(text(a=lambda row: "\\N" if row % 9 == 0 else row % 7, b=lambda row: row % 5, bought=is_even))
    assert table.null_values == ("", "NA", "\\N")
    assert table.columns[0].type == "integer"


@pytest.mark.slow
def test_projects_of_files_of_both_formats_pass_their_tests(tmp_path: Path) -> None:
    """A CSV file of another locale, one with odd names, and a Parquet file with booleans, categories and NaN."""

    def write_project(name: str, file: Path, **told: Any) -> TableDescription:
        described = describe_table(Source(str(file)), Told(**told))
        (tmp_path / name).mkdir()
        for path, source in project_files(name, str(file), "utf8", described).items():
            (tmp_path / name / path).write_text(source)
        return described

    draw, turned = random.Random(2), str.maketrans(",.", ".,")
    lines = ["Datum;Betrag;Anteil;Ort;Preis"]
    for row in range(ROWS):
        amount, share = draw.randrange(100_000), draw.randrange(1000)
        numbers = f"{amount:,};{share / 10:.1f} %;{'AB'[row % 2]};{amount / 50 + share:,.2f} €".translate(turned)
        lines.append(f"{row % 28 + 1:02}.{row % 12 + 1:02}.2026;{numbers}")
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    table = write_project("preise", tmp_path / "rows.csv", label="Preis", time="Datum")
    assert (table.decimal, table.thousands, table.units) == (",", ".", ("%", "€"))
    assert [column.role for column in table.columns] == ["time", "number", "number", "category", "label"]
    training = (tmp_path / "preise" / "training.py").read_text()
    assert """delimiter=";", decimal=",", thousands=".", units=("%", "€")""" in training
    assert '"Datum": "%d.%m.%Y",' in (tmp_path / "preise" / "features.py").read_text()

    columns = {
        "a": pa.array([math.nan if row % 9 == 0 else row * row % 17 for row in range(ROWS)]),
        "is_new": pa.array([None if row % 5 == 0 else row % 3 == 0 for row in range(ROWS)]),
        "city": pa.array(["Oslo", None, "Bergen"] * ROWS)[:ROWS].dictionary_encode(),
        "price": pa.array([math.nan if row % 20 == 0 else row % 13 + 0.5 for row in range(ROWS)]),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    table = write_project("prices", tmp_path / "rows.parquet", label="price")
    assert [column.missing for column in table.columns] == [23, 40, 67, 10]
    assert [column.role for column in table.columns] == ["number", "category", "category", "label"]

    hostile_csv(tmp_path / "odd.csv")
    write_project("odd", tmp_path / "odd.csv", label='"price"')

    options = ["-q", "-p", "no:cacheprovider", "-W", "error::FutureWarning"]
    tests = [sys.executable, "-m", "pytest", *options, "preise", "prices", "odd"]
    ran = subprocess.run(tests, capture_output=True, text=True, cwd=tmp_path)
    assert "6 passed" in ran.stdout, ran.stdout + ran.stderr


def test_parquet_text_resembling_numbers_or_times_is_reported(tmp_path: Path) -> None:
    columns = {
        "price": [f"{row % 37},5" if row % 2 else str(row % 37) for row in range(ROWS)],
        "age": [str(row % 50) for row in range(ROWS)],
        "born": [f"{row % 28 + 1:02}/01/2000" for row in range(ROWS)],
        "city": [["Oslo", "Bergen"][row % 3 == 0] for row in range(ROWS)],
        "bought": [is_even(row) for row in range(ROWS)],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    notes = describe_table(Source(str(tmp_path / "rows.parquet")), Told("bought")).notes
    for words in (
        "'price' is text, as its values, such as '0'",
        "'age' is text in the file.*--type age=float64",
        "'born'",
    ):
        assert sum(bool(re.search(words, note)) for note in notes) == 1, notes
    assert not any("'city'" in note or "'bought'" in note for note in notes)
    table = describe_table(Source(str(tmp_path / "rows.parquet")), Told("bought", type=["age=float64"]))
    assert "age" in table.named("number")
