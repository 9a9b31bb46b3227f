"""Prepares labelled examples from raw tables with the user's code.

An engine runs the user's function and brings the rows of a key together (:mod:`.engine`); what follows is the same on
every engine: rows are classified (a split, or a reason to reject), checked, and written by split.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, SnapshotProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput, InvalidArgument, RowsNotConserved
from airflow_hops.core.prepare.engines import prepare_engine
from airflow_hops.core.prepare.options import EVAL, NEWEST, ROWS, TRAIN, PrepareOptions
from airflow_hops.ml.prepare.classes import NO_CLASS, Classifier, vector_names
from airflow_hops.ml.prepare.engine import EngineRows, PreparedRows
from airflow_hops.ml.prepare.files import ClassifiedRows, PartitionSummary, write_examples, write_part
from airflow_hops.ml.prepare.label import find_target, most_frequent
from airflow_hops.ml.prepare.survey import latest_time, vector_widths
from airflow_hops.ml.spark.pools import checked
from airflow_hops.ml.step.context import StepContext, resolve

# Order: call the user's function, classify its rows and write them by split, count them, check that rows in = rows out
# + rejected, find classes from the label column, rewrite the files with class numbers.
# A kill leaves files in an uncommitted folder of the artifact; a retry starts again.

log = logging.getLogger(__name__)

_FILE_ROWS = 250_000
_PARTS = 4  # minimum: keeps four cores busy, and sorts half of the rows that a task would with two


def run(context: StepContext, **options: Any) -> Artifact:
    """Writes ``<split>/*.parquet``; no file, and without calling ``prepare``, if there are no rows to score.

    Args:
        context: Step with the input ``tables``, a snapshot.
        options: Fields of :class:`airflow_hops.core.prepare.options.PrepareOptions`.

    Raises:
        BadInput: an option, ``prepare`` or its result is unusable, the label is ambiguous or has only one value, or too
            many rows are rejected.
        RowsNotConserved: ``prepare`` dropped or duplicated rows.
    """
    values = PrepareOptions(**options)
    user_function = resolve(values.prepare)
    ingested = context.input("tables")
    manifest = context.store.manifest(ingested.uri)
    snapshot = SnapshotProperties.of(manifest)
    names = list(snapshot.tables)
    main = values.table or names[0]
    if main not in names:
        raise InvalidArgument("table", main, f", which the snapshot does not have; it has {', '.join(names)}")
    rows_in = manifest.rows[main].rows_out

    if not rows_in and not values.label:  # a window without rows to score, whose columns a reader may not know
        with context.output() as writer:
            none = RowCounts(0, 0)
            properties = ExamplesProperties(None, values.key, values.time, snapshot.window, (ROWS,))
            counts = {"rows": 0, "rejected": 0}
            return writer.commit(rows={main: none, ROWS: none}, metrics=counts, properties=properties.to_dict())

    parts = max(_PARTS, -(-rows_in // _FILE_ROWS))
    prepared_rows: EngineRows = resolve(prepare_engine(values.engine).rows)
    with prepared_rows(context, values, user_function, names, parts) as rows:
        classifier = Classifier(
            values,
            rows.schema,
            _newest_from(rows, values, snapshot),
            vector_widths(rows, vector_names(rows.schema, values)),
        )
        context.progress(0.2, "prepare() is planned")
        with context.output() as writer:
            folder = rows.pool.folder(context, writer)
            lines = rows.write(classifier, parts, partial(write_part, classifier, folder))
            classified = ClassifiedRows.of(checked([PartitionSummary(**json.loads(line)) for line in lines]), folder)
            context.progress(0.9, "rows are counted")
            total = RowCounts(rows_in, sum(classified.rows.values()), classified.rejected)
            _check_rows(classified, values, main, total)
            splits = (
                *([TRAIN] if values.label else [ROWS]),
                *([EVAL] if values.label and values.eval_percent else []),
                *([NEWEST] if values.newest_s is not None else []),
            )
            for name in splits:
                if not classified.rows.get(name):
                    raise BadInput(
                        f"no rows are left in split {name!r}: {total.rows_in} rows in, {total.rows_rejected} rejected "
                        f"({dict(total.rejected)}), the rest by split: {classified.rows}"
                    )
            targets = [find_target(classified.splits, each) for each in values.of_labels]
            target = replace(targets[0], more=tuple(targets[1:])) if targets else Target("")
            uploaded = write_examples(classified, targets, folder, rows.pool, context.progress)
            writer.add(uploaded)
            context.progress(0.95, "examples are written")
            return writer.commit(
                rows={main: total, **{name: RowCounts(n := classified.rows[name], n) for name in splits}},
                metrics={"rows": total.rows_out, "rejected": total.rows_rejected},
                properties=ExamplesProperties(
                    values.label or None,
                    values.key,
                    values.time,
                    snapshot.window,
                    splits,
                    target.problem if targets else None,
                    target.classes,
                    values.weight,
                    target.more_labels,
                    folder.columns(splits[0], uploaded),
                    snapshot.warnings,
                ).to_dict(),
            )


def _newest_from(rows: PreparedRows, values: PrepareOptions, snapshot: SnapshotProperties) -> int | None:
    """Returns the time from which rows are in the split ``newest``, in seconds since the epoch; None for no such split.

    It is counted from the end of the window, which no row has, or without one, from the second after the last row.
    """
    if values.newest_s is None or values.time is None:
        return None
    if snapshot.window and snapshot.window[1] is not None:
        end: float = datetime.fromisoformat(snapshot.window[1]).timestamp()
    elif (latest := latest_time(rows, values.time)) is not None:
        end = latest + 1
    else:
        raise BadInput(f"newest needs a time, but no row has one in column {values.time!r}")
    return math.ceil(end - values.newest_s)


def _check_rows(classified: ClassifiedRows, values: PrepareOptions, main: str, total: RowCounts) -> None:
    """Logs and checks numbers of rows.

    Raises:
        RowsNotConserved: rows of the main table were dropped or duplicated.
        BadInput: too many are rejected.
    """
    log.info("%s: %d rows in, %d out, rejected: %s", main, total.rows_in, total.rows_out, total.rejected or "none")
    for label, unknown in classified.unknown.items():
        classes = next(each.classes for each in values.of_labels if each.label == label)
        log.warning("%s is %s (%s): %s", label, NO_CLASS, ", ".join(map(repr, classes or ())), most_frequent(unknown))
    if unaccounted := total.rows_in - total.rows_out - total.rows_rejected:
        hint = (
            "a join duplicates rows: its columns are not a unique key of the other table"
            if unaccounted < 0
            else "a filter or an inner join drops rows: use a left join, and the column 'reject_reason' for those "
            "that cannot be used"
        )
        raise RowsNotConserved(
            total.rows_in,
            total.rows_out + total.rows_rejected,
            f"{values.prepare}: table {main!r} has {total.rows_in} rows, {total.rows_out + total.rows_rejected} "
            f"came out; {hint}",
        )
    total.check_rejected(values.max_rejected, f"table {main!r}")
