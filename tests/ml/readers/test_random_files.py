"""Random typed tables in files of PyArrow, pandas, Polars, DuckDB and Python, with what an independent reader says."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from campaigns import campaign

from airflow_hops.core.errors import BadInput
from tests.ml.readers.reading import ingested

NAN, INF = math.nan, math.inf
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 7]),
    "int8": (pa.int8(), [0, 1, -128, 127]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**63 - 1, 2**64 - 1]),
    "float64": (pa.float64(), [0.0, -0.0, 1.5, 0.1, 5e-324, 1e300, NAN, INF, -INF, 1e16, 123456789.123456789, 1e22]),
    "float32": (pa.float32(), [0.0, -0.0, 1.5, NAN, INF, -INF]),
    "bool": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["a", " a", "a ", "é", "007", "1", "1.5", "x,y", "x;y", '"q"', "it's", "a\nb", "a\r\nb", "\t",
        "null", "NA", "nan", "true", "2020-01-01", "\\", "\\N", "=1+1", 'a"b', "\u2028", "ß", "1e5", "#c", "", "''"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), date(2020, 2, 29), date(1582, 10, 10)]),
    "time_us": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "time_ms": (pa.timestamp("ms"), [datetime(1970, 1, 1), datetime(2020, 2, 29, 1, 2, 3, 4000)]),
    "time_ns": (pa.timestamp("ns"), [datetime(1970, 1, 1), datetime(2020, 2, 29, 1, 2, 3, 4001)]),
    "time_utc": (pa.timestamp("us", "UTC"), [datetime(2020, 2, 29, 1, 2, 3, 456789, UTC)]),
    "time_paris": (pa.timestamp("us", "Europe/Paris"), [datetime(2020, 10, 25, h, 30, tzinfo=UTC) for h in (0, 1)]),
    "decimal": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("-1.50"), Decimal("12345678.99")]),
    "decimal38": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0000000001")]),
    "binary": (pa.binary(), [b"", b"\xff\x00", b"abc"]),
    "duration": (pa.duration("us"), [timedelta(0), timedelta(days=-1, microseconds=3)]),
    "clock": (pa.time64("us"), [time(0), time(23, 59, 59, 999999)]),
    "integers": (pa.list_(pa.int64()), [[], [1, None], [2**63 - 1]]),
    "floats": (pa.list_(pa.float64()), [[], [1.5, NAN], [None], [-0.0, INF]]),
    "lists": (pa.list_(pa.list_(pa.int32())), [[], [[]], [[1], None]]),
    "struct": (pa.struct([("x", pa.float64()), ("y", pa.string())]), [{"x": NAN, "y": "a"}, {"x": None, "y": None}]),
    "category": (pa.dictionary(pa.int32(), pa.string()), ["red", "green", "Red"]),
    "null": (pa.null(), []),
}  # fmt: skip
NAMES = ["a", "A b", "a.b", "é", "select", 'x"y', "x'y", "1", "a,b", "a;b", "%", "日本", "__x", "-z", "a\tb", "Order",
    "nan", "2020", "x[0]", "*", "a/b", "`t`", "{x}", "$1", "\\", "index", "b ", "#"]  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A file, the fields of its source, and its rows: values, or texts of CSV cells, or values of JSON."""

    fields: dict[str, Any]
    kind: str
    rows: list[Mapping[str, Any]]


Writer = Callable[[Random, pa.Table, Path], Written]


def random_table(random: Random) -> pa.Table:
    """Returns a table of one to six columns, and up to 30 rows."""
    rows, columns = random.choice([1, 2, 3, 7, 30]), {}
    for name in random.sample(NAMES, random.randint(1, 6)):
        kind, values = VALUES[random.choice(list(VALUES))]
        some = random.sample(values, random.randint(1, len(values))) if values else [None]
        missing = random.choice([0, 0, 0.3, 0.9])
        columns[name] = pa.array(
            [None if random.random() < missing else random.choice(some) for _ in range(rows)], kind
        )
    return pa.table(columns)


def write(random: Random, table: pa.Table, folder: Path) -> Written | None:
    """Writes the columns of a table that a random writer can write; None if it can write none."""
    writer, seed = random.choice(WRITERS), random.random()
    if (written := _written(writer, seed, table, folder)) is not None:
        return written
    columns = [name for name in table.column_names if _written(writer, seed, table.select([name]), folder) is not None]
    return _written(writer, seed, table.select(columns), folder) if columns else None


def _written(writer: Writer, seed: float, table: pa.Table, folder: Path) -> Written | None:
    for path in folder.iterdir():
        path.unlink()
    try:
        return writer(Random(seed), table, folder)
    except Exception:  # of many libraries, which have no such type
        return None


def _typed(table: pa.Table, **fields: Any) -> Written:
    return Written(fields, "typed", table.to_pylist())


def _csv(text: str, **dialect: Any) -> Written:
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), **dialect) if row]
    return Written(
        {"delimiter": dialect.get("delimiter", ",")}, "csv", [dict(zip(rows[0], r, strict=True)) for r in rows[1:]]
    )


def _json(path: Path) -> Written:
    return Written({}, "json", [json.loads(line) for line in path.read_bytes().decode().split("\n") if line])


def arrow_parquet(random: Random, table: pa.Table, folder: Path) -> Written:
    pq.write_table(
        table,
        folder / "t.parquet",
        version=random.choice(["1.0", "2.4", "2.6"]),
        data_page_version=random.choice(["1.0", "2.0"]),
        compression=random.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=random.random() < 0.5,
        row_group_size=random.choice([1, 3, 1000]),
    )
    return _typed(table)


def pandas_parquet(random: Random, table: pa.Table, folder: Path) -> Written:
    frame = table.to_pandas()
    frame.to_parquet(folder / "t.parquet", index=random.choice([None, False]))
    return _typed(pa.Table.from_pandas(frame, preserve_index=False))


def polars_parquet(random: Random, table: pa.Table, folder: Path) -> Written:
    compression = random.choice(["lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd"])
    rows = random.choice([1, 3, None])
    pl.from_arrow(table).write_parquet(folder / "t.parquet", compression=compression, row_group_size=rows)
    return _typed(table)


def arrow_csv(random: Random, table: pa.Table, folder: Path) -> Written:
    pa.csv.write_csv(table, str(folder / "t.csv"))
    return _csv((folder / "t.csv").read_bytes().decode())


def pandas_csv(random: Random, table: pa.Table, folder: Path) -> Written:
    mark, path = random.choice([",", ";", "\t"]), folder / "t.csv"
    missing, layout = random.choice(["", "NA"]), random.choice([None, "%Y-%m-%dT%H:%M:%S.%f"])
    quoting, end = (
        random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        random.choice(["\n", "\r\n"]),
    )
    frame = table.to_pandas()
    frame.to_csv(path, index=False, sep=mark, quoting=quoting, lineterminator=end, na_rep=missing, date_format=layout)
    return _csv(path.read_bytes().decode(), delimiter=mark)


def polars_csv(random: Random, table: pa.Table, folder: Path) -> Written:
    mark, path = random.choice([",", ";", "\t"]), folder / "t.csv"
    style, end = random.choice(["necessary", "always", "non_numeric"]), random.choice(["\n", "\r\n"])
    frame = pl.from_arrow(table)
    frame.write_csv(path, separator=mark, include_bom=random.random() < 0.3, quote_style=style, line_terminator=end)
    return _csv(path.read_bytes().decode("utf-8-sig"), delimiter=mark)


def python_csv(random: Random, table: pa.Table, folder: Path) -> Written:
    mark, quote, buffer = random.choice(",;\t|"), random.choice('""\''), io.StringIO()
    style = {"delimiter": mark, "quotechar": quote, "lineterminator": random.choice(["\n", "\r\n"])}
    writer = csv.writer(buffer, quoting=random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), **style)
    writer.writerow(table.column_names)
    writer.writerows([[_cell(random, value) for value in row.values()] for row in table.to_pylist()])
    encoding = random.choice(["utf-8", "utf-8-sig", "utf-16"])
    content, suffix = buffer.getvalue().encode(encoding), random.choice(["", ".gz", ".bz2", ".zip"])
    if suffix == ".zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as members:
            members.writestr("t.csv", content)
        content = archive.getvalue()
    packed = {".gz": gzip.compress, ".bz2": bz2.compress}.get(suffix, bytes)(content)
    (folder / f"t.csv{suffix}").write_bytes(packed)
    result = _csv(buffer.getvalue(), delimiter=mark, quotechar=quote)
    fields = {**result.fields, "encoding": encoding, "quote": None if quote == '"' else quote}
    return Written(fields, result.kind, result.rows)


def _cell(random: Random, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(random.choice("T "))
    return "" if value is None else value.hex() if isinstance(value, bytes) else value


def python_json(random: Random, table: pa.Table, folder: Path) -> Written:
    rows = [
        {n: _json_value(v) for n, v in row.items() if v is not None or random.random() < 0.5}
        for row in table.to_pylist()
    ]
    ascii_only, mark = random.random() < 0.5, random.choice(["", "\ufeff"])
    lines = (json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    (folder / "t.jsonl").write_text(mark + "".join(lines))
    return Written({}, "json", rows)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _json_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, Decimal | timedelta) else value


def pandas_json(random: Random, table: pa.Table, folder: Path) -> Written:
    table.to_pandas().to_json(folder / "t.jsonl", orient="records", lines=True, date_format="iso", double_precision=15)
    return _json(folder / "t.jsonl")


def polars_json(random: Random, table: pa.Table, folder: Path) -> Written:
    if pa.binary() in table.schema.types:
        raise NotImplementedError("panics, with a trace on stderr")
    pl.from_arrow(table).write_ndjson(folder / "t.jsonl")
    return _json(folder / "t.jsonl")


def _copied_by_duckdb(table: pa.Table, path: Path, options: str) -> None:
    if any("duration" in str(kind) for kind in table.schema.types):
        raise NotImplementedError("DuckDB reads them as integers")
    pq.write_table(table, path.with_suffix(".input"), version="2.6", write_statistics=False)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY (FROM read_parquet('{path.with_suffix('.input')}')) TO '{path}' ({options})")
    path.with_suffix(".input").unlink()


def duckdb_parquet(random: Random, table: pa.Table, folder: Path) -> Written:
    compression = random.choice(["snappy", "zstd", "gzip", "uncompressed", "lz4_raw", "brotli"])
    version = random.choice(["v1", "v2"])
    _copied_by_duckdb(
        table, folder / "t.parquet", f"FORMAT parquet, COMPRESSION {compression}, PARQUET_VERSION {version}"
    )
    return _typed(table)


def duckdb_csv(random: Random, table: pa.Table, folder: Path) -> Written:
    mark, quotes = random.choice(",;\t|"), random.choice(["", ", FORCE_QUOTE *"])
    _copied_by_duckdb(table, folder / "t.csv", f"FORMAT csv, HEADER, DELIMITER '{mark}'{quotes}")
    return _csv((folder / "t.csv").read_bytes().decode(), delimiter=mark)


def duckdb_json(random: Random, table: pa.Table, folder: Path) -> Written:
    _copied_by_duckdb(table, folder / "t.jsonl", "FORMAT json")
    return _json(folder / "t.jsonl")


WRITERS: list[Writer] = [
    arrow_parquet, pandas_parquet, polars_parquet, duckdb_parquet, arrow_csv, pandas_csv, polars_csv, duckdb_csv,
    python_csv, pandas_json, polars_json, duckdb_json, python_json,
]  # fmt: skip


def differences(written: Written, table: pa.Table) -> Iterator[str]:
    """Yields what a snapshot does not have as the file has it."""
    names = list(dict.fromkeys(name for row in written.rows for name in row))
    if sorted(names) != sorted(table.column_names):
        yield f"columns {table.column_names}, not {names}"
    elif len(written.rows) != table.num_rows:
        yield f"{table.num_rows} rows, not {len(written.rows)}"
    else:
        is_same = {"typed": _is_same, "csv": _is_cell, "json": _is_json}[written.kind]
        for name in names:
            for row, value in zip(written.rows, table[name].to_pylist(), strict=True):
                if not is_same(row.get(name), value):
                    yield f"column {name!r}, {table.schema.field(name).type}: {value!r}, not {row.get(name)!r}"


def _is_same(value: Any, read: Any) -> bool:
    if isinstance(value, time):  # in text, with the digits of its unit
        return isinstance(read, str) and time.fromisoformat(read[:15]) == value
    return _plain(value) == _plain(read)


def _plain(value: Any) -> Any:
    """Returns values that are equal if they are the same, also NaN and zeros."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value.replace(tzinfo=None)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def _is_cell(cell: str, read: Any) -> bool:
    if cell in ("", "NA") or isinstance(read, str) or read is None:
        return read == (None if cell in ("", "NA") else cell)
    cell = cell.strip()
    if isinstance(read, bool):
        return cell.lower() == str(read).lower()
    if isinstance(read, datetime):
        return _plain(datetime.fromisoformat(cell)) == _plain(read)
    if isinstance(read, date):
        return date.fromisoformat(cell) == read
    return _plain(type(read)(cell)) == _plain(read)


def _is_json(value: Any, read: Any) -> bool:
    if value is None or read is None:
        return read is value
    if isinstance(read, str):
        return read == value if isinstance(value, str) else isinstance(value, int | float | list | dict)
    if isinstance(read, list):
        return len(read) == len(value) and all(map(_is_json, value, read))
    if isinstance(read, dict):
        return value.keys() <= read.keys() and all(_is_json(value.get(name), item) for name, item in read.items())
    if isinstance(read, datetime):
        return _plain(datetime.fromisoformat(value)) == _plain(read)
    if isinstance(read, date):
        return date.fromisoformat(value) == read
    return isinstance(read, bool) == isinstance(value, bool) and _plain(type(read)(value)) == _plain(read)


REFUSED = (
    r"row \d+, column .*: 18446744073709551615 does not fit int64.* give the column the type 'string'",
    r"row \d+, column .* does not fit timestamp\[us\].* give the column the type 'timestamp'",
    r"table 't': .* has no rows",  # CSV has empty lines for rows whose only value is missing
    r"the file has no rows",
    r"(PyArrow .* does not know this feature|Arrow reads wrongly|the file is damaged)",  # DuckDB's PARQUET_VERSION v2
    r"the backslashes of .* may be escapes, or not; give the source escape=",
    r"may be one value of several lines, or several rows; give the source quote=",
    r"the header .* is one column, and has .* in it; name what separates the columns",
    r"the first row, .*, looks like the rows below it.* header=True",
)


@campaign("tables", 120, 4000)
def test_files_of_other_libraries_are_read_back(tmp_path: Path, tables: int) -> None:
    read = 0
    for seed in range(tables):
        folder = tmp_path / str(seed)
        folder.mkdir()
        random = Random(seed)
        written = write(random, random_table(random), folder)
        if written is None:
            continue
        try:
            rows = ingested(folder, tmp_path, **written.fields)
        except BadInput as error:
            if not any(re.search(words, str(error)) for words in REFUSED):
                raise AssertionError(f"seed {seed}") from error
        else:
            assert [*differences(written, rows)] == [], f"seed {seed}"
            read += 1
        shutil.rmtree(folder)
    assert read > 0.8 * tables
