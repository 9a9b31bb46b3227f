"""Joins captured predictions with their labels, a million rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import MULTICLASS, OUTPUTS, Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.core.performance import REQUEST_KEYS, LabelCounts, PerformanceOptions
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.scored import is_scored, split_ids
from airflow_hops.ml.captured.values import dense_values
from airflow_hops.ml.metrics.metrics import Array
from airflow_hops.ml.performance.labels import NO_LABEL, Labels, Usage, as_time, key_of

_ROWS_AT_ONCE = 1 << 20
_DAY_US = 86_400_000_000
_NO_TIMES = (0, -1)


@dataclass(frozen=True)
class Predictions:
    """Predictions of one version.

    Attributes:
        time_us: Time of each prediction, or the row's own time; microseconds since the epoch, shape ``[rows]``.
        outputs: float32 of shape ``[rows]``, or ``[rows, classes]`` if multiclass.
        labels: Number of the label's value, or :data:`NO_LABEL`; or the class's number or the value itself, NaN without
            a usable one. Shape ``[rows]``.
        delay_us: From ``time_us`` until the label became known; negative if unknown. Shape ``[rows]``.
        keys: Number of the label, equal for predictions that share one; None if none is shared.
    """

    time_us: Array
    outputs: Array
    labels: Array
    delay_us: Array | None = None
    keys: Array | None = None

    def where(self, chosen: Array | slice) -> Predictions:
        """Returns the predictions selected by a mask, indices or a slice."""
        return replace(self, **{name: column[chosen] for name, column in vars(self).items() if column is not None})


@dataclass(frozen=True)
class Joined:
    """Captured requests joined with labels.

    Attributes:
        versions: Predictions by version.
        counts: Counts of labels by outcome.
        files: For each captured file, the times of the oldest and the newest of its rows, as in ``time_us``.
        lacking: Number of captured rows, which are left out, by missing column.
        shared: Labelled predictions of a version that share their label with a newer one.
        not_finite: Predictions that are NaN or infinite; left out.
        untimed: Captured rows that are left out because their time is invalid.
        present_us: The newest time that is at most a day after its request; without one, the time of the newest
            request. Clients send the time feature, so that a single one could move it arbitrarily.
        ahead: Predictions whose own time is after ``present_us``.
    """

    versions: Mapping[int, Predictions] = field(default_factory=dict)
    counts: LabelCounts = field(default_factory=LabelCounts)
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lacking: Mapping[str, int] = field(default_factory=dict)
    shared: int = 0
    not_finite: int = 0
    untimed: int = 0
    present_us: int = 0
    ahead: int = 0


def join_labels(
    requests: CapturedRequests, labels: Labels, options: PerformanceOptions, problem: Problem, prefix: str = ""
) -> Joined:
    """Joins all captured predictions with their labels.

    Memory holds the labels' keys, a million captured rows, and about 24 bytes per prediction (plus four per class if
    multiclass).

    Args:
        requests: Captured requests.
        labels: The labels.
        options: Options with the key columns, and the input that is a row's own time.
        problem: Problem of the model, which determines its output.
        prefix: Prefix of the output's name, for a further label.

    Raises:
        BadInput: all captured rows lack a key, the time, or the model's output.
        HopsError: the store does not answer.
    """
    parts: dict[int, list[Predictions]] = {}
    times: dict[int, Array] = {}  # by version, how often each label was matched
    names = requests.names()
    lacking: dict[str, int] = {}
    files = dict.fromkeys(names, _NO_TIMES)
    not_finite = untimed = 0
    newest, asked, usage = [], [], Usage(labels)
    output = prefix + OUTPUTS[problem]
    for version, rows in _tables(requests, files, options, output):
        if isinstance(version, str):
            lacking[version] = lacking.get(version, 0) + rows
            continue
        timed = rows.filter(pc.is_valid(rows["time"]))
        untimed, rows = untimed + rows.num_rows - timed.num_rows, timed
        if not rows.num_rows:
            continue
        asked.append(pc.max(rows["asked"]).as_py())
        # A time is usual if it is at most a day after its request.
        usual = pc.less_equal(rows["time"], pc.add(rows["asked"], _DAY_US))
        newest.append(pc.max(rows["time"].filter(usual)).as_py())
        index = labels.match(rows["key"], rows["time"].to_numpy(), usage)
        matched = np.bincount(index[index >= 0], minlength=len(labels.codes)).astype(np.int32)
        times[version] = times.get(version, 0) + matched
        predictions = _predictions(rows, index, labels, wide=problem == MULTICLASS)
        finite = np.asarray(np.isfinite(predictions.outputs).all(axis=tuple(range(1, predictions.outputs.ndim))))
        not_finite += int((~finite).sum())
        parts.setdefault(version, []).append(predictions if finite.all() else predictions.where(finite))
    if lacking and not parts:
        present = requests.footer(names[-1]).schema.to_arrow_schema().names
        inputs = [each.removeprefix("input.") for each in present if each.startswith("input.")]
        raise BadInput(f"no captured row can be measured: {_told(lacking, output, inputs)}")
    if untimed and not parts:
        raise BadInput(
            f"none of the {untimed} captured rows has a time in {options.time_feature!r}, which time_feature names; "
            "expected seconds since the epoch"
        )
    present_us = max((time for time in newest if time is not None), default=max(asked, default=0))
    used = np.any([np.zeros(len(labels.codes), bool), *(each > 0 for each in times.values())], axis=0)
    shared = {version: int(np.maximum(each - 1, 0).sum()) for version, each in times.items()}
    versions = {number: _concatenated(parts[number], number, shared=shared[number] > 0) for number in sorted(parts)}
    ahead = sum(int((each.time_us > present_us).sum()) for each in versions.values())
    return Joined(
        versions, usage.counts(used), files, lacking, sum(shared.values()), not_finite, untimed, present_us, ahead
    )


def _told(lacking: Mapping[str, int], output: str, inputs: Sequence[str]) -> str:
    """Describes the columns that captured rows lack, with advice."""
    parts = []
    for column, rows in lacking.items():
        advice = f"keys and time_feature are inputs of the model: {', '.join(inputs)}"
        if column == f"output.{output}":
            advice = (
                "the server must capture what it answers (--capture_mode=all), and the model must be served by its own "
                "signature"
            )
        parts.append(f"{rows} have no column {column!r}; {advice}")
    return "; ".join(parts)


def _tables(
    requests: CapturedRequests, files: dict[str, tuple[int, int]], options: PerformanceOptions, output: str
) -> Iterator[tuple[int | str, Any]]:
    """Yields a version with up to a million rows or a file; or a missing column and the number of rows without it.

    Sets the times of the files, by name.
    """
    # Inputs and outputs of a version may have been captured with several types.
    pending: dict[tuple[int, tuple[Any, ...]], list[Any]] = {}
    for name in files:
        version, rows = _read(requests, name, options, f"output.{output}")
        if isinstance(version, str):
            yield version, rows
            continue
        first, last = pc.min_max(rows["time"]).as_py().values()
        files[name] = _NO_TIMES if first is None else (first, last)
        alike = (version, tuple(rows.schema.types))
        pending.setdefault(alike, []).append(rows)
        if sum(table.num_rows for table in pending[alike]) >= _ROWS_AT_ONCE:
            yield version, pa.concat_tables(pending.pop(alike))
    for (version, _), tables in pending.items():
        yield version, pa.concat_tables(tables)


def _read(requests: CapturedRequests, name: str, options: PerformanceOptions, output: str) -> tuple[int | str, Any]:
    footer = requests.footer(name)
    if output not in footer.schema.to_arrow_schema().names:
        return output, footer.num_rows
    rows = keyed_rows(requests, name, options, {"output": output, "version": "version"})
    if isinstance(rows, str):
        return rows, footer.num_rows
    if len(versions := pc.unique(rows["version"])) > 1:
        raise BadInput(f"captured file {name}: it has rows of the versions {versions.to_pylist()}; expected one")
    return versions[0].as_py(), rows.drop(["version"])


def keyed_rows(
    requests: CapturedRequests, name: str, options: PerformanceOptions, columns: Mapping[str, str]
) -> pa.Table | str:
    """Reads what identifies the rows of a captured file, and when they were predicted.

    The key of scored rows, which need not be an input, is taken for a column of ``keys`` that is none; their time is
    the end of their window.

    Args:
        requests: Captured requests.
        name: Name of the file.
        options: Options with the key columns, and the input that is a row's own time.
        columns: Further columns to read, by the name to give them.

    Returns:
        An Arrow table of ``key``, ``time`` and ``asked``, both microseconds since the epoch, and ``columns``; or the
        first column that the file lacks.

    Raises:
        BadInput: a key or time has another type, or scored rows are to be found by several keys, or without a horizon.
    """
    where, schema = f"captured file {name}", requests.footer(name).schema.to_arrow_schema()
    captured = {key: key if key in REQUEST_KEYS else f"input.{key}" for key in options.keys}
    lacking = [key for key, column in captured.items() if column not in schema.names]
    time = "captured_at" if options.time_feature is None else f"input.{options.time_feature}"
    if time not in schema.names:
        return time
    own = {"request_id", *({"api"} & {*schema.names})}
    wanted = {*captured.values(), time, "captured_at", *columns.values(), *own} - {captured[key] for key in lacking}
    table = requests.table(name, [*wanted])
    is_scoring = table.num_rows > 0 and pc.all(is_scored(table)).as_py()
    if lacking and not is_scoring:
        return captured[lacking[0]]
    keys, ends = split_ids(table["request_id"]) if is_scoring else (None, None)
    if len(lacking) > (options.horizon_s is not None):
        raise BadInput(
            f"{where}: keys name {' and '.join(map(repr, lacking))}, which the model does not take; scored rows have "
            "one such key, which may be scored in each window: give a horizon, the time after a prediction in which "
            "its label becomes known, and label_time"
        )
    key = key_of([keys if key in lacking else table[column] for key, column in captured.items()], where)
    when, asked = (as_time(table[column], where) for column in (time, "captured_at"))
    if ends is not None and options.time_feature is None:
        when = pc.coalesce(ends, when)
    times = {"time": when.cast(pa.int64()), "asked": asked.cast(pa.int64())}
    return pa.table({"key": key, **times, **{each: table[column] for each, column in columns.items()}})


def _predictions(rows: Any, index: Array, labels: Labels, *, wide: bool) -> Predictions:
    time_us = rows["time"].to_numpy()
    has_label = index >= 0
    values = np.full(len(index), NO_LABEL, np.int32)
    values[has_label] = labels.codes[index[has_label]]
    delay_us = np.full(len(index), -1, np.int64)
    if labels.known_us is not None:
        delay_us[has_label] = labels.known_us[index[has_label]] - time_us[has_label]
    outputs = dense_values(rows["output"], wide=wide).astype(np.float32)
    if len(outputs) != len(index) or outputs.ndim != (2 if wide else 1):
        raise BadInput(
            f"captured predictions have {outputs.size} values in {len(index)} rows; expected the same number in each"
        )
    return Predictions(time_us, outputs, values, delay_us, index)


def _concatenated(parts: Sequence[Predictions], version: int, *, shared: bool) -> Predictions:
    shapes = {part.outputs.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise BadInput(f"version {version} was captured with outputs of the shapes {sorted(shapes)}; expected one")
    names = ("time_us", "outputs", "labels", "delay_us", *(["keys"] if shared else []))
    return Predictions(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
