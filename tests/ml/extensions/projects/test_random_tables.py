"""Random tables with marks of missing values, repeated rows and ids: what ``describe_table`` makes of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.projects.core.table_columns import TableDescription
from airflow_hops.extensions.projects.ml.columns import describe_table
from airflow_hops.extensions.projects.ml.options import Told

ROWS = 400
MARKERS = (
    "k.A.", "k. A.", "keine Angabe", "n.d.", "ND", "missing", "unbekannt", "s/o", "--", "*", "(leer)", "#DIV/0!", "NIL",
    "não informado", "нет", "不明", "N/A", "?", "-", "None",
)  # fmt: skip
CATEGORIES = (["1", "2", "3", "other"], ["S", "M", "L"], [*map(str, range(36, 46)), "one size"], ["A12", "B7", "17"])


def _describe(folder: Path, columns: dict[str, list[str]], **told: Any) -> TableDescription:
    rows = [";".join(columns), *(";".join(row) for row in zip(*columns.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    return describe_table(Source(str(folder / "rows.csv")), Told(**{"label": "bought", **told}))


def _number(draw: random.Random, decimal: str, thousands: str) -> str:
    text = f"{draw.gauss(5000, 1500) if thousands else draw.gauss(20, 9):,.2f}"
    return text.replace(",", "§").replace(".", decimal).replace("§", thousands)


def _look_at_random_tables(folder: Path, tables: int) -> None:
    draw = random.Random(5)
    for _ in range(tables):
        decimal, thousands = draw.choice([(".", ""), (",", ""), (",", "."), (".", ",")])
        markers, share = draw.sample(MARKERS, draw.randint(1, 2)), draw.uniform(0.01, 0.4)
        holds = {name: [draw.random() < share for _ in range(ROWS)] for name in ("a", "b")}
        columns = {
            name: [draw.choice(markers) if is_missing else _number(draw, decimal, thousands) for is_missing in mask]
            for name, mask in holds.items()
        }
        classes = draw.choice([["ja", "nein"], ["no", "yes"], ["0", "1"]])
        columns["kind"] = draw.choices(category := draw.choice(CATEGORIES), k=ROWS)
        columns["bought"] = draw.choices(classes, k=ROWS)
        table = _describe(folder, columns)
        missing = {column.name: (column.role, column.missing) for column in table.columns}
        expected = {name: ("number", sum(mask)) for name, mask in holds.items()}
        assert missing == {**expected, "kind": ("category", 0), "bought": ("label", 0)}, (markers, category)
        assert set(table.null_values) - {"", "NA"} == {v for n in "ab" for v in columns[n]} & set(markers)
        assert all(any(note.startswith(f"{marker!r} counts as missing") for note in table.notes) for marker in markers)
        assert table.positive == classes[1]


def test_texts_among_numbers_are_missing_values(tmp_path: Path) -> None:
    _look_at_random_tables(tmp_path, 12)


@pytest.mark.scheduled(part="campaigns")
def test_texts_among_numbers_are_missing_values_in_many_tables(tmp_path: Path) -> None:
    _look_at_random_tables(tmp_path, 1000)


def _columns(draw: random.Random, **columns: Any) -> dict[str, list[str]]:
    rest = {"x": lambda: f"{draw.gauss(0, 1):.4f}", "bought": lambda: draw.choice("01")}
    return {name: [str(value()) for _ in range(ROWS)] for name, value in {**columns, **rest}.items()}


def test_lone_text_among_numbers_is_named(tmp_path: Path) -> None:
    values = _columns(draw := random.Random(2), y=lambda: draw.random())
    values["x"][7] = "abc"
    (note,) = (note for note in _describe(tmp_path, values).notes if "abc" in note)
    advice = "if it stands for a missing value, say --missing='abc'; otherwise correct it"
    assert note.startswith("'x' is text: 'abc' is not a number") and note.endswith(advice)
    assert _describe(tmp_path, values, missing=["abc"]).columns[1].missing == 1


def test_repeated_ids_are_noted(tmp_path: Path) -> None:
    values = _columns(random.Random(3), order=iter(f"O-{number:05}" for number in range(ROWS)).__next__)
    (note,) = _describe(tmp_path, values).notes
    assert note == "no value of 'order' occurs twice: if it identifies rows, say --key order"
    for column in values.values():
        column[370:] = column[:30]
    (note,) = _describe(tmp_path, values).notes
    assert note == "30 rows repeat a value of 'order': if it identifies rows, --key order keeps one of each"


@pytest.mark.parametrize("name", [" bought", "bought ", "BOUGHT", "Bought", "bougth"])
def test_similar_name_is_proposed(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=f"--label is '{name}', which is not a column; .*; did you mean 'bought'?"):
        _describe(tmp_path, _columns(random.Random(5)), label=name)
    columns = _columns(random.Random(5))
    with pytest.raises(BadInput, match=f"--label is 'bought', which is not a column; .*; did you mean '{name}'?"):
        _describe(tmp_path, {"x": columns["x"], name: columns["bought"]})
