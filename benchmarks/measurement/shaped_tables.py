"""Tables by the shape of their columns, generated with a fixed seed: what the statistics were not written for.

Runs in the runtime environment: ``python -m benchmarks.measurement.shaped_tables <folder> <rows> <shape>…`` writes
those that are not there yet, as Parquet by PyArrow's defaults (one row group), each with a table of a thousand rows to
warm up on; of as many rows as the shape says where the number is empty.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement.flights_tables import WARM_UP_ROWS

Random = np.random.Generator
Columns = dict[str, Any]


def _columns(count: int, make: Callable[[Random, int], Any]) -> Callable[[Random, int], Columns]:
    return lambda random, rows: {f"c{number}": make(random, rows) for number in range(count)}


def _strings(numbers: Any) -> Any:
    return np.char.add("value-", numbers.astype("U8"))


def _different_strings(random: Random, rows: int) -> Any:
    return np.char.add("id-", random.permutation(rows).astype("U12"))


def _mixed(random: Random, rows: int) -> Columns:
    """Returns a table like those of customers and orders: keys, amounts, times, codes, flags, some of it missing."""
    import pyarrow as pa

    missing = random.random(rows) < 0.1
    times = 1_700_000_000 + np.sort(random.integers(0, 86_400 * 365, rows))
    return {
        "order": _different_strings(random, rows),
        "customer": _strings(random.zipf(1.4, rows) % 60_000),
        "product": _strings(random.integers(0, 4_000, rows)),
        "country": _strings(random.integers(0, 40, rows)),
        "city": pa.array(_strings(random.zipf(1.5, rows) % 9_000), mask=missing),
        "code": _strings(random.integers(0, 300, rows)),
        "status": _strings(random.integers(0, 5, rows)),
        "ordered_at": times,
        "delivered_at": pa.array((times + random.gamma(2, 90_000, rows)).round(), mask=missing),
        "amount": random.lognormal(3, 1, rows).round(2),
        "discount": np.where(random.random(rows) < 0.8, 0.0, random.random(rows).round(2)),
        "weight": pa.array(random.gamma(2, 1.5, rows), mask=missing),
        "score": random.normal(size=rows).astype(np.float32),
        "quantity": random.geometric(0.4, rows),
        "hour": random.integers(0, 24, rows),
        "is_gift": random.random(rows) < 0.1,
    }


def _wide(random: Random, rows: int) -> Columns:
    makers = (Random.normal, lambda r, size: r.integers(0, 50, size), lambda r, size: r.random(size).round(2))
    return {f"c{number}": makers[number % 3](random, size=rows) for number in range(2_000)}


def _lists(random: Random, rows: int) -> Columns:
    import pyarrow as pa

    def of(values: Callable[[int], Any]) -> Any:
        ends = np.append(0, np.cumsum(random.integers(0, 8, rows))).astype(np.int32)
        return pa.ListArray.from_arrays(ends, pa.array(values(int(ends[-1]))))

    return {
        "items": of(lambda size: random.integers(0, 20_000, size)),
        "prices": of(lambda size: random.lognormal(3, 1, size)),
        "tags": of(lambda size: _strings(random.integers(0, 500, size))),
    }


def _vectors(random: Random, rows: int) -> Columns:
    import pyarrow as pa

    ends = np.arange(rows + 1, dtype=np.int32) * 64
    return {"embedding": pa.ListArray.from_arrays(ends, random.normal(size=rows * 64).astype(np.float32))}


@dataclass(frozen=True)
class Shape:
    """A table.

    Attributes:
        title: What it is.
        rows: How many it has.
        columns: Makes its columns, of so many rows.
        formats: Of the files.
        has_lists: Whether there are lists, which TFDV does not take from a frame.
    """

    title: str
    rows: int
    columns: Callable[[Random, int], Columns]
    formats: tuple[str, ...] = ("parquet",)
    has_lists: bool = False

    def write(self, path: Path, rows: int) -> None:
        """Writes the table with a number of rows."""
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet as pq

        table = pa.table(self.columns(np.random.default_rng(zlib.crc32(self.title.encode())), rows))
        unfinished = path.with_name(f"{path.name}.unfinished")
        (pa.csv.write_csv if path.suffix == ".csv" else pq.write_table)(table, unfinished)
        unfinished.rename(path)


SHAPES = {
    "int_10": Shape("8 columns of integers, 10 values", 1_000_000, _columns(8, lambda r, n: r.integers(0, 10, n))),
    "int_million": Shape(
        "8 columns of integers, a million values", 1_000_000, _columns(8, lambda r, n: r.integers(0, 10**6, n))
    ),
    "float": Shape("8 columns of floats, all different", 1_000_000, _columns(8, lambda r, n: r.normal(size=n))),
    "string_100": Shape(
        "8 columns of strings, 100 values", 1_000_000, _columns(8, lambda r, n: _strings(r.integers(0, 100, n)))
    ),
    "string_150000": Shape(
        "2 columns of strings, 150,000 values", 1_000_000, _columns(2, lambda r, n: _strings(r.integers(0, 150_000, n)))
    ),
    "string_different": Shape("2 columns of strings, all different", 1_000_000, _columns(2, _different_strings)),
    "mixed": Shape("16 columns of all kinds", 200_000, _mixed, ("parquet", "csv")),
    "wide": Shape("2,000 columns of numbers", 5_000, _wide),
    "lists": Shape("3 columns of lists of up to 7 values", 300_000, _lists, has_lists=True),
    "vectors": Shape("a column of vectors of 64 floats", 100_000, _vectors, has_lists=True),
}
"""By name."""


def shaped_table(folder: Path, name: str, suffix: str, rows: int | None = None) -> Path:
    """Returns the file of the table of a shape."""
    return folder / f"{name}-{SHAPES[name].rows if rows is None else rows}.{suffix}"


def main() -> None:
    """The command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[3:]:
        shape = SHAPES[name]
        for suffix in shape.formats:
            for rows in (WARM_UP_ROWS, int(sys.argv[2] or shape.rows)):
                path = shaped_table(folder, name, suffix, rows)
                if not path.exists():
                    print(f"writing {path}", file=sys.stderr, flush=True)
                    shape.write(path, rows)


if __name__ == "__main__":
    main()
