"""Reads late labels from the server's feedback, an artifact or files, and selects one for each prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput, MissingColumn
from airflow_hops.core.performance import REQUEST_KEYS, LabelCounts, PerformanceOptions
from airflow_hops.core.sources.sources import row_source
from airflow_hops.ml.captured.feedback import LABEL, UNNAMED
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.step.context import StepContext

NO_KEY = NO_LABEL = -1
_LABEL, KNOWN_AT = "label", "known_at"
_ROW = "row"
_US = pa.timestamp("us", "UTC")
_FIRST_S, _LAST_S = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1, 9999))


@dataclass(frozen=True)
class Labels:
    """One label for each prediction that has any.

    Attributes:
        keys: Distinct keys of predictions from :func:`key_of`; an Arrow array, ``[keys]``.
        codes: Number of each key's label value, or :data:`NO_LABEL`; shape ``[keys]``, int32.
        values: The distinct values.
        known_us: Time each became known, microseconds since the epoch, shape ``[keys]``; None if unknown.
        counts: Counts of labels by outcome so far.
    """

    keys: Any
    codes: Array
    values: tuple[Any, ...]
    known_us: Array | None
    counts: LabelCounts


def read_labels(
    context: StepContext, options: PerformanceOptions, requests: CapturedRequests, label: str
) -> tuple[Any, int]:
    """Reads the labels from their source.

    Args:
        context: The step's context; the input ``labels``, if any, is an artifact with the labels.
        options: Source of the labels, and names of their columns.
        requests: Captured requests, with the feedback sent to the server.
        label: Name of the label column.

    Returns:
        Arrow table of the keys, ``label``, and, if known, ``known_at``; and the number of labels left out because they
        have no ``label_time``.

    Raises:
        BadInput: the table or column does not exist.
        HopsError: a store does not answer.
    """
    if options.source is not None:
        (source,) = context.sources({"labels": row_source("labels", options.source)}).values()
        if options.label_time is not None:
            source = replace(source, time_column=options.label_time)
        folder = context.scratch / "labels"
        rows, _ = ingest_table(folder.name, source, Window(None, None), OutputFolder(str(context.scratch)))
        untimed = rows.rows_in - rows.rows_out  # a window without bounds leaves out only rows without a time
        return _read_files(sorted(folder.glob("*.parquet")), options, label, source.uri), untimed
    if context.has_input("labels"):
        artifact, folder = context.input("labels"), context.local("labels")
        tables = sorted({path.parent.name for path in folder.glob("*/*.parquet")})
        chosen = [options.table] if options.table is not None else tables
        if len(chosen) != 1 or chosen[0] not in tables:
            raise BadInput(f"table is {options.table!r}; {artifact.uri} has {', '.join(tables) or 'none'}: name one")
        return _read_files(sorted((folder / chosen[0]).glob("*.parquet")), options, label, artifact.uri), 0
    feedback = requests.feedback()
    names = [name.removeprefix(LABEL) for name in feedback.column_names if name.startswith(LABEL)]
    chosen_name = UNNAMED if names == [UNNAMED] and options.label_column is None else label
    if names and chosen_name not in names:
        raise BadInput(
            f"no label of the feedback is called {label!r}; there are {', '.join(map(repr, names))}: set label_column "
            "to one"
        )
    column = feedback[LABEL + chosen_name] if names else pa.array([], pa.float64())
    columns = {key: _column(feedback, key, "the feedback") for key in options.keys}
    return pa.table({**columns, _LABEL: column, KNOWN_AT: feedback["at"]}), 0


def _read_files(paths: Sequence[Path], options: PerformanceOptions, label: str, where: str) -> pa.Table:
    present = scan.schema(paths[0]).names
    if not present:  # of a window without labels
        empty = {name: pa.array([], pa.string()) for name in (*options.keys, _LABEL)}
        return pa.table(empty if options.label_time is None else {**empty, KNOWN_AT: pa.array([], _US)})
    # As in feedback, a label without a row number belongs to the request's first row.
    absent = [_ROW] if tuple(options.keys) == REQUEST_KEYS and _ROW not in present else []
    wanted = [*(key for key in options.keys if key not in absent), label]
    wanted += [] if options.label_time is None else [options.label_time]
    table = scan.table(paths, wanted)
    columns = {key: _column(table, key, where) for key in options.keys if key not in absent}
    columns |= {name: pa.array(np.zeros(table.num_rows, np.int32)) for name in absent}
    if options.label_time is None:
        return pa.table({**columns, _LABEL: table[label]})
    return pa.table({**columns, _LABEL: table[label], KNOWN_AT: as_time(table[options.label_time], where)})


def _column(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise MissingColumn(where, name, f"; the columns are {', '.join(table.column_names)}")
    return table[name]


def as_time(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Converts times, or seconds since the epoch, to microseconds in UTC; null outside the years 1 to 9998.

    Raises:
        BadInput: the column has another type.
    """
    if pa.types.is_integer(column.type):
        seconds = column.cast(pa.int64())
        is_time = pc.and_(pc.greater_equal(seconds, _FIRST_S), pc.less(seconds, _LAST_S))
        return pc.multiply(pc.if_else(is_time, seconds, pa.scalar(None, pa.int64())), 1_000_000).cast(_US)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us"), safe=False).cast(_US) if column.type != _US else column
    raise BadInput(f"{where}: the time is {column.type}; expected a timestamp, or integers of seconds since the epoch")


def key_of(columns: Sequence[object], where: str) -> Any:
    """Combines the columns that identify a row into one key, independent of storage types; null if a column is null.

    A number equals its text; a time counts by its seconds.

    Raises:
        BadInput: a column is not of integers, strings or times.
    """
    parts = []
    for column in map(plain, columns):
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        if pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
            raise BadInput(f"{where}: a key is of the type {column.type}; expected integers, strings or times")
        text = column.cast(pa.binary())
        # Each is preceded by its length, so that joined keys are unique.
        parts += [pc.binary_length(text).cast(pa.string()).cast(pa.binary()), text]
    return pc.binary_join_element_wise(*parts, b":")


def plain(column: Any) -> Any:
    """Returns a column without dictionary encoding and large types."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def one_for_each(table: pa.Table, keys: Sequence[str], until: datetime | None, untimed: int = 0) -> Labels:
    """Selects one label for each prediction: the one that became known last.

    Args:
        table: Table from :func:`read_labels`.
        keys: Columns that identify a prediction.
        until: Labels that became known later are left out, as are those from the future.
        untimed: Number of labels without a time, which were left out already.
    """
    encoded = key_of([table[name] for name in keys], "the labels").dictionary_encode().combine_chunks()
    distinct, numbers = encoded.dictionary, encoded.indices.fill_null(NO_KEY).to_numpy()
    value = plain(table[_LABEL]).combine_chunks()
    # A label that is null or NaN is not known yet.
    there = pc.invert(pc.is_null(value, nan_is_null=True)).to_numpy(zero_copy_only=False)
    retained = there & (numbers != NO_KEY)
    keyless = int((there & ~retained).sum())
    known, future = None, 0
    if KNOWN_AT in table.column_names:
        timed = pc.is_valid(table[KNOWN_AT]).to_numpy()
        untimed += int((retained & ~timed).sum())
        retained &= timed
        known = table[KNOWN_AT].cast(pa.int64()).fill_null(0).to_numpy()
        now = datetime.now(UTC)
        late = known > (min(until, now) if until is not None else now).timestamp() * 1e6
        future = int((late & retained).sum())
        retained &= ~late
    values = value.filter(pa.array(retained)).dictionary_encode()
    counts = LabelCounts(given=int(retained.sum()), future=future, untimed=untimed, keyless=keyless)
    known = known[retained] if known is not None else None
    latest, counts = _latest(numbers[retained], values.indices.to_numpy(), known, len(distinct), counts)
    has_label = latest != NO_LABEL
    codes = np.full(len(distinct), NO_LABEL, np.int32)
    codes[has_label] = values.indices.to_numpy()[latest[has_label]]
    if known is not None:
        known_us = np.zeros(len(distinct), np.int64)
        known_us[has_label] = known[latest[has_label]]
        known = known_us
    return Labels(distinct, codes, tuple(values.dictionary.to_pylist()), known, counts)


def _latest(
    keys: Array, values: Array, known: Array | None, count: int, counts: LabelCounts
) -> tuple[Array, LabelCounts]:
    """Returns the row of each key's latest label, or :data:`NO_LABEL` if it has none or contradictory ones."""
    import pandas as pd

    latest = np.full(count, NO_LABEL)
    latest[keys] = np.arange(len(keys))
    rows = pd.DataFrame({"key": keys, "value": values, "at": 0 if known is None else known})
    rows = rows[rows.duplicated("key", keep=False)]
    by_key = rows.groupby("key")
    last = rows[rows["at"] == by_key["at"].transform("max")]
    agree = last.groupby("key")["value"].nunique() == 1
    latest[last["key"]] = np.where(agree.loc[last["key"]], last.index, NO_LABEL)
    return latest, replace(
        counts,
        repeated=int(rows.duplicated(["key", "value"]).sum()),
        corrected=int((agree & (by_key["value"].nunique() > 1)).sum()),
        contradictory=int((~agree).sum()),
    )
