"""The same rows have the same types, values and warnings in one file and in several, in each format.

Columns are drawn by themes, each of which a few lines of Python count again.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import RowSource, Source
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers import csv as readers_csv
from airflow_hops.ml.readers import jsonl as readers_jsonl
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.statistics import generate_statistics

Cells = list[str | None]


@dataclass(frozen=True)
class Theme:
    """Cells of a column, and the warning that is due, counted anew.

    Attributes:
        cell: Draws a cell.
        odd: Draws a cell of another kind, or None.
        share: Share of odd cells; 1 in the whole column below 0.
        words: Part of the warning; empty for none.
        is_counted: Whether the warning names the first odd cell, and counts these.
        are_numbers: Whether JSON has the cells as numbers where it can.
    """

    cell: Callable[[Random], str]
    odd: Callable[[Random], str] | None = None
    share: float = 0.0
    words: str = ""
    is_counted: bool = True
    are_numbers: bool = False


def _grouped(random: Random, thousands: str, decimal: str) -> str:
    text = f"{random.randint(1000, 10**7):,}".replace(",", thousands)
    return text + (f"{decimal}{random.randint(0, 99):02}" if decimal else "")


def _day(random: Random) -> str:
    return f"20{random.randint(10, 99)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _time(random: Random) -> str:
    return f"{_day(random)}{random.choice('T ')}{random.randint(0, 23):02}:{random.randint(0, 59):02}"


def _word(random: Random) -> str:
    return "".join(random.choices("abcdeé", k=random.randint(1, 6)))


THEMES = {
    "integers": Theme(lambda r: str(r.randint(-(10**6), 10**6)), are_numbers=True),
    "floats": Theme(lambda r: repr(r.random()), lambda r: str(r.randint(0, 9)), 0.3, are_numbers=True),
    "large": Theme(lambda r: str(2**60 + r.randint(0, 99)), are_numbers=True),
    "words": Theme(_word),
    "codes": Theme(lambda r: f"{r.randint(0, 99999):05}"),
    "seats": Theme(lambda r: f"{r.randint(1, 40)}{r.choice('ABCDEF')}"),
    "addresses": Theme(lambda r: f"{r.randint(100, 255)}.{r.randint(0, 99)}.{r.randint(0, 9)}.1"),
    "booleans": Theme(lambda r: r.choice(["true", "False"])),
    "days": Theme(_day),
    "times": Theme(_time),
    "one word": Theme(lambda r: str(r.randint(0, 9**5)), _word, -1, "is not one of the numbers", are_numbers=True),
    "few words": Theme(lambda r: str(r.randint(0, 9)), _word, 0.05, "is not one of the numbers", are_numbers=True),
    "one word of days": Theme(_day, _word, -1, "is not one of the times"),
    "padded": Theme(_word, lambda r: f"{_word(r)}{r.choice([' ', chr(9), '  '])}", 0.3, "has blanks around it, as"),
    "padded before": Theme(_word, lambda r: f" {_word(r)}", -1, "has blanks around it, as"),
    "zones": Theme(lambda r: f"{_time(r)}{r.choice(['Z', '+01:00', '-0530'])}", _time, 0.4, "has no zone"),
    "one without zone": Theme(lambda r: f"{_time(r)}Z", _time, -1, "has no zone"),
    "days and times": Theme(_time, _day, 0.3, "is read as midnight"),
    "thousands": Theme(lambda r: _grouped(r, ",", ""), words="thousands=',' has them", is_counted=False),
    "german": Theme(
        lambda r: _grouped(r, ".", ","), words="decimal=',' and thousands='.' has them", is_counted=False
    ),
    "french": Theme(lambda r: _grouped(r, "\u202f", ","), words=r"thousands='\u202f' has them", is_counted=False),
    "yen": Theme(lambda r: f"{r.randint(1, 9**5)}円", words="units=('円',) has them", is_counted=False),
    "percent": Theme(lambda r: f"{r.randint(0, 99)} %", words="units=('%',) has them", is_counted=False),
    "dollars": Theme(lambda r: f"${_grouped(r, ',', '.')}", words="units=('$',) has them", is_counted=False),
    "euros": Theme(lambda r: f"EUR {r.randint(1, 9**5)}", words="units=('EUR',) has them", is_counted=False),
    "debts": Theme(lambda r: f"({r.randint(1, 99)})", words="rewrite them in prepare()", is_counted=False),
    "lakhs": Theme(lambda r: f"{r.randint(1, 99)},{r.randint(10, 99)},345", words="in prepare()", is_counted=False),
    "minus": Theme(lambda r: f"\u2212{r.randint(1, 99)}", words="a number in another notation", is_counted=False),
    "plus": Theme(lambda r: f"+{r.randint(1, 99)}", words="is one of the numbers", is_counted=False),
    "nanoseconds": Theme(
        lambda r: f"{_day(r)} 10:00:00.{r.randint(0, 999999):06}001", words="is one of the times", is_counted=False
    ),
    "two units": Theme(lambda r: f"{r.randint(1, 9)}%", lambda r: f"${r.randint(1, 9)}", 0.5, "several units ("),
}  # fmt: skip


def column(random: Random, theme: Theme, rows: int) -> tuple[Cells, list[int]]:
    """Returns cells, some of them missing, and the rows of odd ones."""
    odd = {random.randrange(rows)} if theme.share < 0 else {row for row in range(rows) if random.random() < theme.share}
    missing = random.choice([0, 0, 0.2])
    cells: Cells = [theme.odd(random) if row in odd and theme.odd else theme.cell(random) for row in range(rows)]
    cells = [None if random.random() < missing and (row not in odd) else cell for row, cell in enumerate(cells)]
    return cells, sorted(odd)


def as_csv(names: list[str], rows: list[tuple[str | None, ...]], numbers: set[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([names, *([cell or "" for cell in row] for row in rows)])
    return text.getvalue().encode()


def as_jsonl(names: list[str], rows: list[tuple[str | None, ...]], numbers: set[str]) -> bytes:
    def value(name: str, cell: str | None) -> str:
        is_number = cell is not None and name in numbers and re.fullmatch(r"-?\d+(\.\d+)?(e-\d+)?", cell)
        return cell if is_number and cell is not None else json.dumps(cell)

    lines = ("{" + ", ".join(f'"{n}": {value(n, c)}' for n, c in zip(names, row, strict=True)) + "}\n" for row in rows)
    return "".join(lines).encode()


def as_parquet(names: list[str], rows: list[tuple[str | None, ...]], numbers: set[str]) -> bytes:
    sink = io.BytesIO()
    columns = zip(*rows, strict=True)
    pq.write_table(pa.table({n: pa.array(cells, pa.string()) for n, cells in zip(names, columns, strict=True)}), sink)
    return sink.getvalue()


WRITERS = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet}


def ingested(folder: Path, source: RowSource, starts: dict[str, int]) -> tuple[pa.Table, list[str]]:
    """Returns a snapshot's rows and its warnings, with rows counted over all files."""
    warnings: list[str] = []
    ingest_table("t", source, Window(None, None), OutputFolder(str(folder)), warn=warnings.append)

    def place(match: re.Match[str]) -> str:
        return f"row {starts[Path(match[1]).name] + int(match[2])}"

    return pq.read_table(folder / "t"), [re.sub(r"(/\S+), row (\d+)", place, warning) for warning in warnings]


def check(random: Random, folder: Path) -> None:
    rows = random.choice([6, 12, 40])
    themes = random.sample(list(THEMES), random.randint(1, 4))
    drawn = {f"c{number}": column(random, THEMES[name], rows) for number, name in enumerate(themes)}
    names, table = list(drawn), list(zip(*(cells for cells, _ in drawn.values()), strict=True))
    numbers = {name for name, theme in zip(names, themes, strict=True) if THEMES[theme].are_numbers}
    cuts = sorted({0, *(random.randrange(1, rows) for _ in range(random.randint(0, 4)))})
    warned: dict[str, list[str]] = {}
    for kind, written in WRITERS.items():
        whole, parts = folder / f"{kind}-whole", folder / f"{kind}-parts"
        for each in (whole, parts):
            each.mkdir(parents=True)
        (whole / f"t.{kind}").write_bytes(written(names, table, numbers))
        starts = {}
        for number, (start, stop) in enumerate(zip(cuts, [*cuts[1:], rows], strict=True)):
            content = written(names, table[start:stop], numbers)
            is_packed = kind != "parquet" and random.random() < 0.3
            path = parts / f"{number}.{kind}{'.gz' * is_packed}"
            path.write_bytes(gzip.compress(content) if is_packed else content)
            starts[path.name] = start
        one, warned[kind] = ingested(folder, Source(str(whole / f"t.{kind}")), {f"t.{kind}": 0})
        several, others = ingested(folder, Source(f"{parts}/*"), starts)
        assert (one.schema, one.to_pydict(), sorted(warned[kind])) == (
            several.schema, several.to_pydict(), sorted(others),
        )  # fmt: skip
        for name, theme_name in zip(names, themes, strict=True):
            mine = [each for each in warned[kind] if f"column {name!r}:" in each]
            is_text = one.schema.field(name).type == pa.string()
            check_warnings(mine, THEMES[theme_name], *drawn[name], is_text=is_text, kind=kind)


def check_warnings(
    warnings: list[str], theme: Theme, cells: Cells, odd: list[int], *, is_text: bool, kind: str
) -> None:
    values = [cell for cell in cells if cell is not None]
    other = [cells[row] for row in odd]
    is_due = bool(theme.words and values and (odd or not theme.odd))
    if "not one of" in theme.words:  # if there are few of these, and some of the others
        is_due = is_due and len(odd) <= max(1, len(values) // 10) and 2 * len(odd) < len(values)
    if theme.odd and not theme.words.startswith(("is not", "has blanks")) and len(other) == len(values):
        return  # only odd ones: a column of another theme
    if "several" in theme.words and not odd:
        return
    if not is_text and "zone" not in theme.words and "midnight" not in theme.words:
        is_due = False
    if kind == "parquet" and ("zone" in theme.words or "midnight" in theme.words):
        return  # of text, which Parquet declares
    if not is_due:  # JSON and Parquet have numbers and times that are declared as text
        assert [each for each in warnings if kind == "csv" or "which all" not in each] == []
        return
    (warning,) = warnings
    assert theme.words in warning
    first = cells[odd[0]] if odd and "several" not in theme.words else values[0]
    assert f": {first!r} " in warning and f"row {cells.index(first) + 1}," in warning
    if theme.is_counted and "several" not in theme.words:
        count = len(values) - len(odd) if "not one of" in theme.words else len(odd)
        assert f" {count} of {len(values)} " in warning
    else:
        assert f" {len(values)} values are" in warning


@campaign("draws", 100, 2000)
def test_rows_mean_the_same_in_any_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: int) -> None:
    for seed in range(draws):
        random = Random(seed)
        block_bytes = random.choice([300, 4 << 20])
        monkeypatch.setattr(readers_csv, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(readers_jsonl, "BLOCK_BYTES", block_bytes)
        try:
            check(random, tmp_path / "files")
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        shutil.rmtree(tmp_path / "files")


def test_lines_may_end_in_carriage_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(str(number), f"name {number}" if number % 9 else 'two\nlines, "x"') for number in range(9000)]
    for write in (as_csv, as_jsonl):
        text = write(["a", "b"], rows, {"a"}).replace(b"\r\n", b"\n")
        expected = [row[1].replace("\n", "\r") if write is as_csv else row[1] for row in rows]
        for block_bytes, encoding in ((1 << 16, "utf8"), (4 << 20, "utf8"), (4 << 20, "utf-16")):
            monkeypatch.setattr(readers_csv, "BLOCK_BYTES", block_bytes)
            monkeypatch.setattr(readers_jsonl, "BLOCK_BYTES", block_bytes)
            path = tmp_path / f"t.{'csv' if write is as_csv else 'jsonl'}"
            if encoding != "utf8" and write is as_jsonl:
                continue
            path.write_bytes(text.replace(b"\n", b"\r").decode().encode(encoding))
            table = ingested(tmp_path, Source(str(path), encoding=encoding, quote='"'), {})[0]
            assert table.to_pydict() == {"a": list(range(9000)), "b": expected}


def test_unusable_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({}), path)
    with pytest.raises(BadInput, match=f"{path}: the file has no columns"):
        ingested(tmp_path, Source(str(path)), {})
    pq.write_table(pa.table({"at": [1712102400000]}), path)
    for kind in ("timestamp", "date"):
        with pytest.raises(BadInput, match=rf"{path}, row 1, column 'at': 1712102400000 is not of type"):
            ingested(tmp_path, Source(str(path), schema={"at": kind}), {})
    with pytest.raises(BadInput, match=r"window_start.*1712102400000.*expected a time in ISO 8601"):
        Window.parse("1712102400000", None)


def test_numbers_of_several_units_stay_text_in_any_files(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "t.csv").write_text("x,y\n5%,$1\n6%,$2\n$7,$3\n")
    (tmp_path / "two" / "0.csv").write_text("x,y\n5%,$1\n6%,$2\n")
    (tmp_path / "two" / "1.csv").write_text("x,y\n$7,$3\n")
    for name, starts in (("one", {"t.csv": 0}), ("two", {"0.csv": 0, "1.csv": 2})):
        source = Source(str(tmp_path / name), units=("%", "$"))
        table, (warning,) = ingested(tmp_path, source, starts)
        assert table.to_pydict() == {"x": ["5%", "6%", "$7"], "y": [1, 2, 3]}
        assert "column 'x': '5%' is a number with one of several units ('%', '$'), as 3 of 3 values are" in warning
    with pytest.raises(BadInput, match="column 'x' has numbers of several units"):
        ingested(tmp_path, Source(str(tmp_path / "two"), units=("%", "$"), schema={"x": "float64"}), starts)


def test_uuids_are_text_at_any_depth(tmp_path: Path) -> None:
    one, path = uuid.UUID(int=1), tmp_path / "t.parquet"
    sql = f"SELECT u, [u, NULL] AS l, {{'u': u, 'n': 1}} AS s, MAP {{'k': u}} AS m FROM (SELECT '{one}'::UUID AS u)"
    duckdb.sql(f"COPY ({sql}) TO '{path}' (FORMAT parquet)")
    (row,) = ingested(tmp_path, Source(str(path)), {})[0].to_pylist()
    assert row == {"u": str(one), "l": [str(one), None], "s": {"u": str(one), "n": 1}, "m": [("k", str(one))]}
    features = {".".join(each.path.step): each for each in generate_statistics(path).datasets[0].features}
    texts = [features[name].string_stats.top_values[0].value for name in ("u", "l", "s.u", "m.value")]
    assert texts == [str(one)] * 4


@dataclass(frozen=True)
class FeedSource(RowSource):
    """A source of others, whose reader fails midway."""

    schemes = ("feed",)
    reader = f"{__name__}:read_feed"


def read_feed(*arguments: object) -> None:
    *_, progress = arguments
    progress(0.5, "17 rows read")  # type: ignore[operator]
    int("x")


def test_reader_that_raises_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"source 'feed://a': its reader .*:read_feed' raised ValueError: .* '17 rows read'"
    ):
        ingested(tmp_path, FeedSource("feed://a"), {})
