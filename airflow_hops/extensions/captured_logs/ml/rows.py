"""Rows of a log, in files of this machine until the types of their columns are known."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.captured_logs.core.source import CapturedSource
from airflow_hops.extensions.captured_logs.ml.bodies import MOST_NAMES, Columns
from airflow_hops.extensions.captured_logs.ml.columns import ColumnKinds, column_of
from airflow_hops.extensions.captured_logs.ml.entries import LogEntry, is_unicode
from airflow_hops.extensions.captured_logs.ml.json_texts import Unusable, shown
from airflow_hops.extensions.captured_logs.ml.left_out import LeftOut
from airflow_hops.ml.readers.types import type_named

_ROWS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 16 << 20
_MANY_NAMES = 1000
_FEW = 100
"""Columns count, if there are many, that one in this number of rows has."""
FACTS = {
    "request_id": pa.string(), "row": pa.int32(), "model": pa.string(), "version": pa.int64(),
    "captured_at": pa.timestamp("us", "UTC"),
}  # fmt: skip
"""Columns of every table of captured rows."""


@dataclass
class _Runs:
    """Values of a column in some of a block's rows: lists of values, each from a row on."""

    runs: list[tuple[int, list[Any]]] = field(default_factory=list)

    def add(self, row: int, values: list[Any]) -> None:
        if self.runs and self.runs[-1][0] + len(self.runs[-1][1]) == row:
            self.runs[-1][1].extend(values)
        else:
            self.runs.append((row, list(values)))

    def values(self, rows: int) -> list[Any]:
        """Returns a value for each of a number of rows; None where there is none."""
        if len(self.runs) == 1 and len(self.runs[0][1]) == rows:
            return self.runs[0][1]
        values: list[Any] = [None] * rows
        for start, run in self.runs:
            values[start : start + len(run)] = run
        return values


@dataclass
class _Block:
    """Rows that are written to a file together.

    Attributes:
        places: Place, endpoint and number of rows of each entry.
        columns: Values by column.
        rows: Number of rows.
        size: Bytes of the entries.
    """

    places: list[tuple[str, str | None, int]] = field(default_factory=list)
    columns: dict[str, _Runs] = field(default_factory=dict)
    rows: int = 0
    size: int = 0

    def places_of_rows(self) -> list[tuple[str, str | None]]:
        """Returns the place and endpoint of each row."""
        return [(where, endpoint) for where, endpoint, rows in self.places for _ in range(rows)]


class StagedRows:
    """Collects captured rows in files, by blocks of limited bytes, and then converts their columns.

    Args:
        folder: Folder for the files.
        source: The log.
        left_out: Counts rows that are left out.
    """

    def __init__(self, folder: Path, source: CapturedSource, left_out: LeftOut) -> None:
        self._folder, self._source, self._left_out = folder, source, left_out
        as_file = Source(source.log, schema=source.schema)
        self._types = {name: type_named(text, name, as_file) for name, text in source.schema.items()}
        self._kinds: dict[str, ColumnKinds] = {}
        self._endpoints = Counter[str]()
        self._most_names = 10 * _MANY_NAMES
        self._block = _Block()
        self._files = list[Path]()
        self.count = 0

    def add(self, entry: LogEntry, columns: Columns, version: int | None) -> None:
        """Adds the rows of an entry.

        Args:
            entry: The entry.
            columns: Its columns.
            version: Number of our version.
        """
        rows, block = len(next(iter(columns.values()), ())), self._block
        facts: dict[str, list[Any]] = {
            "request_id": [entry.request_id] * rows,
            "row": list(range(entry.row, entry.row + rows)),
            "model": [self._source.model] * rows,
            "version": [version] * rows,
            "captured_at": [entry.at_us] * rows,
        }
        for name, values in {**columns, **facts}.items():
            if name not in block.columns:
                block.columns[name] = _Runs()
            block.columns[name].add(block.rows, values)
        block.places.append((entry.where, entry.endpoint, rows))
        block.rows += rows
        block.size += entry.size
        self.count += rows
        if entry.endpoint is not None:
            self._endpoints[entry.endpoint] += 1
        is_wide = len(block.columns) > MOST_NAMES
        if block.rows >= _ROWS_AT_ONCE or block.size >= _BYTES_AT_ONCE or is_wide:
            self._write()

    def _write(self) -> None:
        for name, runs in self._block.columns.items():
            if name not in FACTS:
                kinds = self._kinds.setdefault(name, ColumnKinds(self._types.get(name)))
                for _, values in runs.runs:
                    kinds.add(values)
        if len(self._kinds) > self._most_names:
            self._kinds = {name: self._kinds[name] for name in self._frequent()}
            self._most_names = max(self._most_names, 2 * len(self._kinds))
        path = self._folder / f"rows-{len(self._files):06}.pickle"
        with path.open("wb") as stream:
            pickle.dump(self._block, stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._files.append(path)
        self._block = _Block()

    def _frequent(self) -> list[str]:
        """Returns the columns, in their order; of many, those that enough rows have, as clients choose names."""
        names = sorted(self._kinds)
        if len(names) <= _MANY_NAMES:
            return names
        return [name for name in names if self._kinds[name].rows * _FEW >= self.count or name in self._types]

    def source(self) -> Source:
        """Writes the rows as Parquet, without those whose values are not of their columns' types.

        Returns:
            The source of the rows.

        Raises:
            BadInput: the log has several endpoints.
        """
        if self._block.rows:
            self._write()
        endpoint = self._endpoint()
        types = {name: self._kinds[name].type() for name in self._frequent() if is_unicode(name)}
        self.count = 0
        for path in self._files:
            block: _Block = pickle.loads(path.read_bytes())
            table = self._table(block, types, endpoint)
            self.count += table.num_rows
            write_parquet(table, path.with_suffix(".parquet"))
            path.unlink()
        return Source(
            str(self._folder), format="parquet", columns=self._source.columns, time_column=self._source.time_column
        )

    def _endpoint(self) -> str | None:
        """Returns the endpoint of most entries, whose rows count; None if the log has none."""
        if not self._endpoints:
            return None
        (name, count), *others = self._endpoints.most_common()
        if others and 2 * count <= self._endpoints.total():
            raise BadInput(
                f"{self._source.uri!r}: the log has entries of {shown(name)}, and of {shown(others[0][0])}; choose one "
                "by the source's 'endpoint'"
            )
        return name

    def _table(self, block: _Block, types: Mapping[str, pa.DataType], endpoint: str | None) -> pa.Table:
        places = block.places_of_rows()
        is_left = np.ones(block.rows, bool)

        def leave_out(rows: Iterable[int], reason: str, detail: str) -> None:
            for row in rows:
                if is_left[row]:
                    is_left[row] = False
                    self._left_out.add(Unusable(reason, f"{places[row][0]}: {detail}"))

        others = [row for row, (_, name) in enumerate(places) if name is not None and name != endpoint]
        for row in others:
            leave_out([row], f"of endpoint {places[row][1]!r}", "choose an endpoint by the source's 'endpoint'")
        for name in block.columns.keys() - types.keys() - FACTS.keys():
            runs = block.columns[name].runs
            rows = [start + number for start, run in runs for number, value in enumerate(run) if value is not None]
            leave_out(rows, "with names that few rows have", f"{shown(name)} is in fewer than one of {_FEW} rows")
        arrays = []
        for name, kind in {**FACTS, **types}.items():
            values = block.columns.get(name, _Runs()).values(block.rows)
            if name in FACTS:
                arrays.append(pa.array(values, kind))
                continue
            array, wrong = column_of(values, kind, is_given=name in self._types)
            for row in wrong:
                leave_out(
                    [row],
                    f"{name!r} is not of type {kind}",
                    f"{name!r} is {shown(values[row])}, which is not of type {kind}, as most values are; correct the "
                    f"log, or give the column another type in the source's schema, such as {{{name!r}: 'string'}}",
                )
            arrays.append(array)
        schema = pa.schema(list({**FACTS, **types}.items()))
        return pa.Table.from_arrays(arrays, schema=schema).filter(pa.array(is_left))
