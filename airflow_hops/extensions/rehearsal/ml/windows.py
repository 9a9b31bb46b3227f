"""Windows of rows as the monitor compares them: of captured requests, or of the training's held-out rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.capture_layout import rows_file_pattern, time_of
from airflow_hops.core.errors import BadInput, ConnectionFieldError
from airflow_hops.core.monitor_reports import listed_reports, read_report
from airflow_hops.core.retraining.situation import moment_of
from airflow_hops.core.skew import SkewOptions, SkewProperties
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.rehearsal.core.rehearsal import RehearsalOptions
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.distances.times import seconds_of
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew.feature_rows import INPUT, FeatureRows
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.statistics import comparable_options
from airflow_hops.ml.statistics.generate import collect_statistics
from airflow_hops.ml.statistics.sample import SAMPLE_ROWS
from airflow_hops.ml.step.context import StepContext

_DAY_S = 86_400.0
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class RowsWindow:
    """A window of unchanged rows.

    Attributes:
        rows: Number of its rows.
        sample: A sample of them: compared features, and further inputs of the model.
        start: Its start, ISO 8601 UTC; empty if its rows have no time.
        end: Its end.
    """

    rows: int
    sample: pa.Table
    start: str = ""
    end: str = ""


@dataclass(frozen=True)
class WindowPool:
    """Windows of unchanged rows, oldest first.

    Attributes:
        kind: Kind of the rows, ``captured`` or ``training``.
        every_s: Seconds between two comparisons.
        statistics: Statistics of some of the rows, which tell the types of the features.
    """

    kind: str
    every_s: float
    windows: tuple[RowsWindow, ...]
    statistics: Any

    def side(self, sample: pa.Table) -> Side:
        """Returns rows as a side of a comparison."""
        return Side(self.statistics, sample)


@dataclass(frozen=True)
class _Compared:
    """Rows that the monitor has compared: names of the first and the last file, and their time."""

    files: tuple[str, str]
    start: str
    end: str


def read_windows(context: StepContext, trained: Trained, skew: SkewOptions, options: RehearsalOptions) -> WindowPool:
    """Reads the newest windows of captured rows, or else of the training's held-out rows.

    Raises:
        BadInput: there are fewer than two windows with enough rows.
    """
    compared, rows = _recorded(context, trained, options.WINDOWS)
    ends = [as_utc(each.end).timestamp() for each in compared]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends) if later > earlier]
    every_s = options.every_s or (median(gaps) if gaps else _DAY_S)
    windows = list[RowsWindow]()
    if options.rows != "training":
        names = [*trained.types, *_further(trained, skew)]
        groups = list(_groups(context, trained, compared, every_s, options))
        windows = [*_captured(groups, names, skew.rows_needed)][-options.WINDOWS :]
        if len(windows) < 2 and (options.rows == "captured" or context.has_input("captured")):
            raise BadInput(
                f"{len(windows)} windows of captured requests of {options.model_name!r} have the "
                f"{skew.rows_needed:,} rows that a comparison needs, expected at least 2; wait for more, make every "
                "longer, or set rows='training'"
            )
    kind = "captured"
    if len(windows) < 2:
        kind, windows = "training", _of_training(trained, skew, options, round(median(rows)) if rows else 0)
    statistics = collect_statistics(windows[0].sample, options=comparable_options()).statistics
    return WindowPool(kind, every_s, tuple(windows), statistics)


def _further(trained: Trained, skew: SkewOptions) -> list[str]:
    """Returns inputs of the model that are not compared, and the rows' time."""
    features = ModelProperties.of(trained.model).features or ()
    further = [*features, *([skew.time_feature] if skew.time_feature else [])]
    return [name for name in dict.fromkeys(further) if name not in trained.types]


def _recorded(context: StepContext, trained: Trained, most: int) -> tuple[list[_Compared], list[int]]:
    """Returns what the monitor has compared of this version, oldest first, and the numbers of rows."""
    store, name, version = context.store, str(trained.origin.model), int(trained.origin.version or 0)
    compared, rows = list[_Compared](), list[int]()
    for _, entry in listed_reports(store, name, version, "skew"):
        with suppress(BadInput, FileNotFoundError):  # of a run that was removed
            manifest = store.manifest(read_report(store, name, version, "skew", entry).uri)
            skew = SkewProperties.of(manifest)
            moment = moment_of(skew)
            if skew.verdict == "insufficient" or moment is None:
                continue
            rows.append(int(manifest.metrics.get("rows_current") or 0))
            start = skew.window_start or skew.captured_from or ""
            compared.append(_Compared(skew.captured_files or ("", ""), start, moment[0].isoformat()))
            if len(compared) == most:
                break
    return compared[::-1], rows


def _groups(
    context: StepContext, trained: Trained, compared: Sequence[_Compared], every_s: float, options: RehearsalOptions
) -> Iterator[tuple[list[RowsFile], str, str]]:
    """Yields files of the version with their start and end: as they were compared, or else by their own time."""
    try:
        requests: CapturedRequests = captured_requests(context, options.model_name)
    except ConnectionFieldError:
        if options.rows == "captured":
            raise
        return
    pattern = rows_file_pattern(trained.origin.version)
    names = [name for name in requests.names() if fnmatchcase(name, pattern)]
    own = [each for each in compared if each.files[0]]
    if len(own) > 1 and options.every_s is None and not context.has_input("captured"):
        spans = [([name for name in names if each.files[0] <= name <= each.files[1]], each) for each in own]
        chosen = [(those, each.start, each.end) for those, each in spans if those]
    else:
        timed = [(time, name) for name in names if (time := time_of(name)) is not None]
        newest = max((time for time, _ in timed), default=_EPOCH)
        chosen = []
        for place, group in itertools.groupby(timed, lambda each: int((newest - each[0]).total_seconds() // every_s)):
            if place < 2 * options.WINDOWS:
                until = newest - timedelta(seconds=every_s * place)
                since = until - timedelta(seconds=every_s)
                chosen.append(([name for _, name in group], since.isoformat(), until.isoformat()))
    for number, (those, start, end) in enumerate(chosen):
        yield requests.fetch(those, context.scratch / "captured" / str(number)), start, end


def _captured(
    groups: Sequence[tuple[list[RowsFile], str, str]], names: Sequence[str], needed: int
) -> Iterator[RowsWindow]:
    """Yields windows; those with too few rows are compared with the next, as the monitor does."""
    files, begin = list[RowsFile](), ""
    for those, start, end in groups:
        files, begin = [*files, *those], begin or start
        rows = sum(scan.footer(file).num_rows for file in files)
        if rows >= needed:
            there = {name for name in names if f"{INPUT}{name}" in scan.schema(files[0]).names}
            yield RowsWindow(rows, FeatureRows(files).sample([n for n in names if n in there]), begin, end)
            files, begin = [], ""


def _of_training(trained: Trained, skew: SkewOptions, options: RehearsalOptions, usual: int) -> list[RowsWindow]:
    """Returns windows of the examples' other splits, which the reference does not have, the newest rows last."""
    size = max(usual, skew.rows_needed)
    examples = trained.store.manifest(trained.origin.statistics).inputs.get("examples", ())
    if not examples:
        raise BadInput(f"{trained.origin.statistics}: names no examples, and there are no captured rows to rehearse on")
    properties = ExamplesProperties.of(trained.store.manifest(examples[0].uri))
    time, parts = properties.time, list[pa.Table]()
    for split in properties.splits:
        if split == trained.split:
            continue
        rows = replace(trained, split=split).rows_of(examples[0])
        known = scan.schema(rows.files[0]).names if rows.files else []
        wanted = dict.fromkeys([*trained.types, *_further(trained, skew), *([time] if time else [])])
        batches = [*rows([str(name) for name in wanted if name in known])]
        parts += [pa.Table.from_batches(batches)] if batches else []
    table = joined(parts) if parts else None
    count = min(options.WINDOWS, len(table) // size if table is not None else 0)
    if table is None or count < 2:
        raise BadInput(
            f"{len(table) if table is not None else 0:,} rows beside split {trained.split!r} of {examples[0].uri}, "
            f"expected two windows of {size:,} rows; set min_rows of the comparison lower, or wait for captured rows"
        )
    seconds = None
    if time is not None and time in table.column_names:
        seconds = seconds_of(table, time)
        order = np.argsort(seconds, kind="stable")
        table, seconds = table.take(pa.array(order)), seconds[order]
    windows = list[RowsWindow]()
    for start in range(len(table) - count * size, len(table), size):
        ends = ("", "") if seconds is None else tuple(map(_iso, seconds[[start, start + size - 1]]))
        windows.append(RowsWindow(size, table.slice(start, min(size, SAMPLE_ROWS)), *ends))
    return windows


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the rows of tables, in the columns and types of the first."""
    first = tables[0]
    return pa.concat_tables([first, *(each.select(first.column_names).cast(first.schema) for each in tables[1:])])
