"""Labels of a table for the rows that a canary and the stable version scored, in the form of feedback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.performance import LabelCounts, PerformanceOptions
from airflow_hops.ml.captured.feedback import LABEL, UNNAMED
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.scored import assigned_units
from airflow_hops.ml.performance.join import keyed_rows
from airflow_hops.ml.performance.labels import Usage, check_key_types, one_for_each, read_labels
from airflow_hops.ml.rollout.answers import CAPTURED_ROWS, files_since
from airflow_hops.ml.step.context import StepContext

# The hash of a key decides which version scores it, in all windows and steps, so keys are assigned, not rows. Each key
# counts in one step alone, the last with labels of it and of both versions: then keys of a step are independent of
# those of others, and any assignment of them within the step was equally probable if the versions are alike.


def as_feedback(
    context: StepContext,
    requests: CapturedRequests,
    options: PerformanceOptions,
    label: str,
    versions: Sequence[int],
    since: datetime,
    changes: Sequence[datetime],
) -> tuple[pa.Table, LabelCounts]:
    """Joins a table's labels with what versions answered since a time.

    Memory holds the labels since the first prediction, a file of captured rows, and 200,000 labelled rows per version.

    Args:
        context: The step's context.
        requests: Captured requests.
        options: Source of the labels, their columns and their horizon.
        label: Name of the label's column.
        versions: The versions.
        since: Time from which on they are compared.
        changes: When the shares of the traffic changed, ascending.

    Returns:
        Table as from :func:`~airflow_hops.ml.captured.feedback.read_feedback`, and counts of labels by outcome.

    Raises:
        BadInput: a column is missing in all files, or has another type.
    """
    columns = {name: name for name in ("request_id", "row", "version")}
    names = {version: files_since(requests, version, since) for version in versions}
    lacking: dict[str, str] = {}

    def rows_of(version: int) -> Iterator[pa.Table]:
        for name in names[version]:
            api = {"api": "api"} if "api" in requests.footer(name).schema.names else {}
            rows = keyed_rows(requests, name, options, columns | api)
            if isinstance(rows, str):  # of another signature, as clients may ask for
                lacking[name] = rows
                continue
            is_asked = pc.greater_equal(rows["asked"], int(since.timestamp() * 1e6))
            yield rows.filter(pc.and_(is_asked, pc.is_valid(rows["time"])))

    times = [pc.min(rows["time"]).as_py() for version in versions for rows in rows_of(version)]
    if lacking and not times:
        name, column = next(iter(lacking.items()))
        raise BadInput(f"captured file {name} has no column {column!r}; labels name keys or time_feature")
    oldest = min((time for time in times if time is not None), default=since.timestamp() * 1e6)
    table, left_out = read_labels(context, options, requests, label, datetime.fromtimestamp(oldest / 1e6, UTC))
    check_key_types(table, requests, options.keys)
    labels = one_for_each(table, options.keys, None, left_out, options.horizon_s)
    usage, used = Usage(labels), np.zeros(len(labels.codes), bool)
    ripe_us = (datetime.now(UTC).timestamp() - options.label_delay_s) * 1e6
    parts, values = [], pa.array(labels.values)
    for version in versions:
        size = 0
        for rows in rows_of(version):
            time_us = rows["time"].to_numpy()
            numbers = labels.match(rows["key"], time_us, usage)
            used[numbers[numbers >= 0]] = True
            has_label = (numbers >= 0) & (time_us <= ripe_us)
            part = rows.filter(pa.array(has_label))
            parts.append(part.append_column(LABEL + UNNAMED, values.take(pa.array(labels.codes[numbers[has_label]]))))
            size += part.num_rows
            if size >= CAPTURED_ROWS:
                break
    result = pa.concat_tables(parts, promote=True) if parts else pa.table({LABEL + UNNAMED: values[:0]})
    return _one_step_each(result, versions, changes) if result.num_rows else result, usage.counts(used)


def _one_step_each(rows: pa.Table, versions: Sequence[int], changes: Sequence[datetime]) -> pa.Table:
    """Returns feedback of the last step of each key or request that has labels of all versions."""
    moments = np.array([change.timestamp() * 1e6 for change in changes])
    steps, version = np.searchsorted(moments, rows["asked"].to_numpy(), "right"), rows["version"].to_numpy()
    canary, stable = (steps[version == each] for each in versions)
    common = np.isin(steps, np.intersect1d(canary, stable))
    rows, steps = rows.filter(pa.array(common)), steps[common]
    units = assigned_units(rows).combine_chunks().dictionary_encode().indices.to_numpy()
    last = np.full(len(units), -1)
    np.maximum.at(last, units, steps)
    rows = rows.filter(pa.array(steps == last[units]))
    # Each row has one label, so its times do not matter.
    times = {"at": rows["asked"], "received_at": rows["asked"]}
    return pa.table({name: rows[name] for name in ("request_id", "row", LABEL + UNNAMED)} | times)
