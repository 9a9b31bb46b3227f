"""Reads late labels from the server's feedback, an artifact or files, and selects one for each prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput, MissingColumn
from airflow_hops.core.performance import REQUEST_KEYS, LabelCounts, PerformanceOptions
from airflow_hops.core.sources.sources import row_source
from airflow_hops.ml.captured.feedback import LABEL, UNNAMED
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.scored import as_key, split_ids
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.ingest.window import OUTSIDE_WINDOW
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.step.context import StepContext

NO_KEY = NO_LABEL = -1
_NEVER = np.iinfo(np.int64).max
_LABEL, KNOWN_AT = "label", "known_at"
_ROW = "row"
_US = pa.timestamp("us", "UTC")
_FIRST_S, _LAST_S = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1, 9999))


@dataclass(frozen=True)
class Labels:
    """Labels by key: one for each, or with a horizon one for each time at which any became known, ascending.

    Attributes:
        keys: Distinct keys of predictions from :func:`key_of`; an Arrow array, ``[keys]``.
        of_key: Number of each label's key, ascending; shape ``[labels]``.
        codes: Number of each label's value, or :data:`NO_LABEL`; shape ``[labels]``, int32.
        values: The distinct values.
        known_us: Time each became known, microseconds since the epoch, shape ``[labels]``; None if unknown.
        counts: Counts of labels by outcome so far.
        horizon_us: Time after a prediction in which its label becomes known; None if each key has one label.
    """

    keys: Any
    of_key: Array
    codes: Array
    values: tuple[Any, ...]
    known_us: Array | None
    counts: LabelCounts
    horizon_us: int | None = None

    def match(self, keys: pa.ChunkedArray, time_us: Array, usage: Usage | None = None) -> Array:
        """Returns the number of each prediction's label, or a negative number if it has none.

        With a horizon, it is the last label that became known between the prediction and its horizon. If labels of that
        time contradict each other, there is none.

        Args:
            keys: Keys of predictions from :func:`key_of`.
            time_us: Their times, microseconds since the epoch, shape ``[rows]``.
            usage: What to count the labels' use in.
        """
        index: Array = pc.index_in(keys, value_set=self.keys).fill_null(NO_KEY).cast(pa.int64()).to_numpy()
        if usage is not None:
            has_key = index != NO_KEY
            np.minimum.at(usage.earliest_us, index[has_key], time_us[has_key])
            np.maximum.at(usage.latest_us, index[has_key], time_us[has_key])
        if self.horizon_us is not None:
            first = self._first(index, time_us, "left")
            end = self._first(index, time_us + self.horizon_us, "right")
            within = (index != NO_KEY) & (end > first)
            if usage is not None:
                np.add.at(usage.changes, first[within], 1)
                np.add.at(usage.changes, end[within], -1)
            index = np.where(within, end - 1, NO_KEY)
        if not len(self.codes):
            return np.full(len(index), NO_KEY)
        matched: Array = np.where(self.codes[index] == NO_LABEL, NO_LABEL, index)
        return matched

    def _first(self, index: Array, us: Array, side: Literal["left", "right"]) -> Array:
        """Returns the number of the first label of each key, of the next key's if there is none, from a time on."""
        times, order = self._order
        return np.searchsorted(order, index * (len(times) + 1) + np.searchsorted(times, us, side))

    @cached_property
    def _order(self) -> tuple[Array, Array]:
        """The distinct times, and a number for each label that orders by key and time."""
        times, ranks = np.unique(np.asarray(self.known_us), return_inverse=True)
        return times, self.of_key * (len(times) + 1) + ranks


class Usage:
    """Use of labels by the predictions of all versions, to count the others.

    Attributes:
        earliest_us: Time of the first prediction of each key, ``[keys]``; the greatest integer without one.
        latest_us: Time of the last, likewise the least integer.
        changes: Running sums are the number of predictions in whose horizon a label is; ``[labels + 1]``.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.earliest_us = np.full(len(labels.keys), _NEVER)
        self.latest_us = -self.earliest_us
        self.changes = np.zeros(len(labels.codes) + 1, np.int64)

    def counts(self, used: Array) -> LabelCounts:
        """Returns the labels' counts; ``used`` tells which labels were joined, ``[labels]``."""
        labels, earliest = self._labels, self.earliest_us[self._labels.of_key]
        known_us = np.full(len(used), _NEVER) if labels.known_us is None else labels.known_us
        rest, is_replaced = (labels.codes != NO_LABEL) & ~used, np.cumsum(self.changes[:-1]) > 0
        unknown, early = rest & (earliest == _NEVER), used & (known_us < self.latest_us[labels.of_key])
        if labels.horizon_us is not None:
            early = rest & ~unknown & (known_us < earliest)
        return replace(
            labels.counts,
            joined=int(used.sum()),
            unknown=int(unknown.sum()),
            corrected=labels.counts.corrected + int((rest & is_replaced).sum()),
            early=labels.counts.early + int(early.sum()),
            late=int((rest & ~unknown & ~early & ~is_replaced).sum()),
        )


def read_labels(
    context: StepContext,
    options: PerformanceOptions,
    requests: CapturedRequests,
    label: str,
    since: datetime | None = None,
) -> tuple[pa.Table, LabelCounts]:
    """Reads the labels from their source.

    Args:
        context: The step's context; the input ``labels``, if any, is an artifact with the labels.
        options: Source of the labels, and names of their columns.
        requests: Captured requests, with the feedback sent to the server.
        label: Name of the label column.
        since: Time before which a source's labels are left out as ``early``; None to read all.

    Returns:
        Arrow table of the keys, ``label``, and, if known, ``known_at``; and the counts of labels that were left out.

    Raises:
        BadInput: the table or column does not exist.
        HopsError: a store does not answer.
    """
    if options.source is not None:
        (source,) = context.sources({"labels": row_source("labels", options.source)}).values()
        if options.label_time is not None:
            source = replace(
                source, time_column=options.label_time, may_be_empty=source.may_be_empty or since is not None
            )
        folder = context.scratch / "labels"
        window = Window(since if options.label_time else None, None)
        rows, _ = ingest_table(folder.name, source, window, OutputFolder(str(context.scratch)))
        early = rows.rejected.get(OUTSIDE_WINDOW, 0)
        left_out = LabelCounts(untimed=rows.rows_in - rows.rows_out - early, early=early)
        return _read_files(sorted(folder.glob("*.parquet")), options, label, source.uri), left_out
    if context.has_input("labels"):
        artifact, folder = context.input("labels"), context.local("labels")
        tables = sorted({path.parent.name for path in folder.glob("*/*.parquet")})
        chosen = [options.table] if options.table is not None else tables
        if len(chosen) != 1 or chosen[0] not in tables:
            raise BadInput(f"table is {options.table!r}; {artifact.uri} has {', '.join(tables) or 'none'}: name one")
        files = sorted((folder / chosen[0]).glob("*.parquet"))
        return _read_files(files, options, label, artifact.uri), LabelCounts()
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
    table = pa.table({**columns, _LABEL: column, KNOWN_AT: feedback["at"]})
    return table.filter(pc.is_valid(table[_LABEL])), LabelCounts()  # the others are rows of other labels


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
    for column in (as_key(plain(each)) for each in columns):
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


def check_key_types(table: pa.Table, requests: CapturedRequests, keys: Sequence[str]) -> None:
    """Raises BadInput if a key's type among labels cannot equal that among the newest captured rows."""
    names = requests.names() if table.num_rows else []
    schema = requests.footer(names[-1]).schema.to_arrow_schema() if names else pa.schema([])
    for name in keys:
        column = name if name in REQUEST_KEYS else f"input.{name}"
        types = table.schema.field(name).type, *(schema.field(column).type for _ in [1] if column in schema.names)
        if len(types) == 1 and names and _kind(types[0]) == "time":  # a scored key, which is an integer as a time
            keys_of = split_ids(requests.table(names[-1], ["request_id"])["request_id"])[0]
            is_time = pc.all(pc.match_substring_regex(keys_of, r"^(-?\d+|part-.*)$")).as_py()  # a null has its place
            types = types[0], pa.int64() if is_time else pa.string()
        kinds = {_kind(each) for each in types}
        if len(types) == 2 and (None in kinds or kinds == {"text", "time"}):
            raise BadInput(
                f"key {name!r} is {types[0]} among the labels, and {types[1]} in {names[-1]} of the captured rows; "
                "expected integers, strings or times in both: cast it in the labels"
            )


def _kind(type_: pa.DataType) -> str | None:
    type_ = plain(pa.array([], type_)).type
    is_kind = {"integer": pa.types.is_integer, "time": pa.types.is_temporal, "text": pa.types.is_string}
    return next((kind for kind, is_of in is_kind.items() if is_of(type_)), "text" if type_ == pa.binary() else None)


def one_for_each(
    table: pa.Table,
    keys: Sequence[str],
    until: datetime | None,
    left_out: LabelCounts | None = None,
    horizon_s: float | None = None,
) -> Labels:
    """Selects one label for each prediction: the one that became known last.

    Args:
        table: Table from :func:`read_labels`.
        keys: Columns that identify a prediction.
        until: Labels that became known later are left out, as are those from the future.
        left_out: Counts of labels that were left out already.
        horizon_s: Seconds after a prediction within which its label becomes known; then there is one for each key and
            time. None if the keys identify one prediction.

    Raises:
        BadInput: a key has another type, or there is a horizon, but no time of labels.
    """
    encoded = key_of([table[name] for name in keys], "the labels").dictionary_encode().combine_chunks()
    distinct, numbers = encoded.dictionary, encoded.indices.fill_null(NO_KEY).to_numpy()
    value = plain(table[_LABEL]).combine_chunks()
    # A label that is null or NaN is not known yet.
    there = pc.invert(pc.is_null(value, nan_is_null=True)).to_numpy(zero_copy_only=False)
    retained = there & (numbers != NO_KEY)
    counts = left_out or LabelCounts()
    counts = replace(counts, keyless=int((there & ~retained).sum()), missing=int((~there).sum()))
    known = None
    if KNOWN_AT in table.column_names:
        timed = pc.is_valid(table[KNOWN_AT]).to_numpy()
        untimed = counts.untimed + int((retained & ~timed).sum())
        retained &= timed
        known = table[KNOWN_AT].cast(pa.int64()).fill_null(0).to_numpy()
        now = datetime.now(UTC)
        late = known > (min(until, now) if until is not None else now).timestamp() * 1e6
        counts = replace(counts, untimed=untimed, future=int((late & retained).sum()))
        retained &= ~late
    elif horizon_s is not None:
        raise BadInput(
            f"horizon is {horizon_s:g} seconds, but label_time is None; name the labels' column with the time"
        )
    values = value.filter(pa.array(retained)).dictionary_encode()
    counts = replace(counts, given=int(retained.sum()))
    known, groups = known[retained] if known is not None else None, numbers[retained]
    of_key = np.arange(len(distinct))
    if horizon_s is not None and known is not None:
        order = np.lexsort((known, groups))
        key, when = groups[order], known[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (key[1:] != key[:-1]) | (when[1:] != when[:-1])
        groups, of_key = np.empty(len(order), np.int64), key[begins].astype(np.int64)
        groups[order] = np.cumsum(begins) - 1
    latest, counts = _latest(groups, values.indices.to_numpy(), known, len(of_key), counts)
    has_label = latest != NO_LABEL
    codes = np.full(len(of_key), NO_LABEL, np.int32)
    codes[has_label] = values.indices.to_numpy()[latest[has_label]]
    if known is not None:
        known_us = np.zeros(len(of_key), np.int64)
        known_us[groups] = known
        known_us[has_label] = known[latest[has_label]]
        known = known_us
    horizon_us = None if horizon_s is None else int(horizon_s * 1e6)
    return Labels(distinct, of_key, codes, tuple(values.dictionary.to_pylist()), known, counts, horizon_us)


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
