"""Rows of an artifact's Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.queries.columns import encode, role_of
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.readers.raw_file import explained

__all__ = ["sample", "splits"]
_MAX_ROWS = 50_000
_MAX_SCANNED_ROWS = 2_000_000
_MAX_WIDTH = 512
_MAX_CELLS = 25_000_000
"""Rows by columns of one answer, which is held in memory."""


@dataclass(frozen=True)
class _Field:
    """A column of the answer: a column of the file, or one dimension (``item``) of its vectors."""

    name: str
    type: Any
    column: str
    item: int | None


@dataclass(frozen=True)
class RowGroup:
    """Row group of a file; ``index`` is -1 if the file has no row groups and no rows."""

    path: Path
    index: int
    rows: int

    def read(self, columns: Sequence[str] | None) -> Any:
        """Reads its rows as a table; all columns if None."""
        file = parquet.ParquetFile(self.path)
        return file.read(columns=columns) if self.index < 0 else file.read_row_group(self.index, columns=columns)


def splits(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the number of rows and the columns of each split of ``artifact``.

    Returns:
        ``splits``: name to ``rows`` and ``columns``: ``name``, Arrow ``type`` and ``role``, as
        :mod:`~airflow_hops.ml.queries.columns` names it; null if the column cannot be sent. A vector of fixed width is
        a column for each dimension, ``numeric[3]``.
    """
    results: dict[str, Any] = {}
    folder = place.folder(params["artifact"])
    for split in _split_names(folder):
        paths = _files(folder, split)
        with explained(str(paths[0])):
            schema = parquet.read_schema(paths[0])
        columns = [
            {"name": field.name, "type": str(field.type), "role": role_of(field.type)} for field in _fields(schema)
        ]
        results[split] = {"rows": sum(group.rows for group in row_groups(paths)), "columns": columns}
    return {"splits": results}


def sample(place: Place, params: Mapping[str, Any]) -> bytes:
    """Returns rows of a split, drawn without replacement, the same at each call, in the order of the files.

    Of more than two million rows, row groups of that many are drawn first.

    Args:
        place: Store of the artifact.
        params: ``artifact``; ``split``; ``rows``, at most 50,000; ``columns``, their names, or null for all; 25 million
            values at most; ``row``, the index of a row of the sample, to return it alone with all the digits of its
            numbers (else :func:`~airflow_hops.ml.queries.columns.encode` rounds), or null.

    Returns:
        The bytes that :mod:`~airflow_hops.ml.queries.columns` describes; the header also holds ``total_rows`` (of
        ``statistics``, those that its own sample was drawn from) and ``left_out``, the columns that are not plain
        numbers or strings, name to type.

    Raises:
        BadInput: the split, column or row does not exist, or too many values are requested.
    """
    artifact, rows = params["artifact"], int(params.get("rows") or _MAX_ROWS)
    if not 0 < rows <= _MAX_ROWS:
        raise BadInput(f"rows is {rows}, expected 1 to {_MAX_ROWS}")
    folder = place.folder(artifact)
    paths = _files(folder, params["split"])
    with explained(str(paths[0])):
        schema = parquet.read_schema(paths[0])
    wanted = _wanted(_fields(schema), params.get("columns"), params["split"])
    left_out = {field.name: str(field.type) for field in wanted if role_of(field.type) is None}
    groups = row_groups(paths)
    total, row = sum(group.rows for group in groups), params.get("row")
    sampled = min(rows, total)
    if row is not None and not 0 <= row < sampled:
        raise BadInput(f"row is {row}, expected 0 to {sampled - 1}, as {sampled:,} are sampled")
    cells = (sampled if row is None else 1) * (len(wanted) - len(left_out))
    if cells > _MAX_CELLS:
        raise BadInput(
            f"the request asks for {cells:,} values; at most {_MAX_CELLS:,} are allowed: name fewer columns or rows"
        )
    seed = int(str(artifact["fingerprint"])[:16], 16)
    table = _draw(groups, rows, [field for field in wanted if field.name not in left_out], seed, row)
    if artifact["kind"] == "statistics" and params["split"] in artifact["rows"]:
        total = artifact["rows"][params["split"]]["rows_out"]
    return encode(table, {"total_rows": total, "left_out": left_out}, exact=row is not None)


def _fields(schema: Any) -> list[_Field]:
    fields = []
    for field in schema:
        if pa.types.is_fixed_size_list(field.type) and field.type.list_size <= _MAX_WIDTH:
            places = range(field.type.list_size)
            fields += [_Field(f"{field.name}[{item}]", field.type.value_type, field.name, item) for item in places]
        else:
            fields.append(_Field(field.name, field.type, field.name, None))
    return fields


def _wanted(fields: Iterable[_Field], names: Iterable[str] | None, split: str) -> list[_Field]:
    known = {field.name: field for field in fields}
    for name in names or ():
        if name not in known:
            raise BadInput(f"column {name!r} is not in split {split!r}; it has {', '.join(known)}")
    return [known[name] for name in (known if names is None else dict.fromkeys(names))]


def _draw(groups: Sequence[RowGroup], rows: int, fields: Sequence[_Field], seed: int, row: int | None) -> Any:
    random = np.random.default_rng(seed)
    if sum(group.rows for group in groups) > _MAX_SCANNED_ROWS:
        order = random.permutation(len(groups))
        scanned = np.cumsum([groups[index].rows for index in order])
        enough = int(np.searchsorted(scanned, _MAX_SCANNED_ROWS)) + 1
        groups = [groups[index] for index in sorted(order[:enough])]
    total = sum(group.rows for group in groups)
    drawn = np.arange(total) if total <= rows else np.sort(random.choice(total, rows, replace=False))
    drawn = drawn if row is None else drawn[row : row + 1]
    table = rows_at(groups, drawn, list(dict.fromkeys(field.column for field in fields)))
    arrays = [
        table.column(field.column) if field.item is None else pc.list_element(table.column(field.column), field.item)
        for field in fields
    ]
    return pa.table(arrays, names=[field.name for field in fields])


def _split_names(folder: Path) -> list[str]:
    return sorted({path.parent.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")})


def _files(folder: Path, split: str) -> list[Path]:
    names = _split_names(folder)
    if split not in names:
        raise BadInput(f"split is {split!r}, expected one of {', '.join(names) or 'none: there are no rows'}")
    return sorted((folder / split).glob("*.parquet"))


def row_groups(paths: Sequence[Path]) -> list[RowGroup]:
    """Returns the row groups of some files in order; an empty one if the files have no rows."""
    results = []
    for path in paths:
        footer = parquet.read_metadata(path)
        results += [RowGroup(path, index, footer.row_group(index).num_rows) for index in range(footer.num_row_groups)]
    return results or [RowGroup(paths[0], -1, 0)]


def rows_at(groups: Sequence[RowGroup], places: Any, columns: Sequence[str] | None = None) -> Any:
    """Returns a table of some rows.

    Args:
        groups: Row groups, at least one.
        places: Ascending integers, ``[rows]``: 0 is the first row of the first group.
        columns: Names of the columns; None for all.
    """
    tables: list[Any] = []
    first = 0
    for group in groups:
        mine = places[(places >= first) & (places < first + group.rows)] - first
        first += group.rows
        if len(mine) or not tables:
            tables.append(group.read(columns).take(pa.array(mine, pa.int64())))
    return pa.concat_tables(tables, promote=True)
