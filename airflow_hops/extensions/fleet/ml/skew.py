"""Compares the captured rows of a fleet's segments with their training rows."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.distances import DRIFT, INSUFFICIENT, STABLE
from airflow_hops.core.errors import MissingColumn, ModelNotFound
from airflow_hops.core.models.model_records import read_record
from airflow_hops.extensions.fleet.core.options import FINDINGS_FILE, FleetSkewOptions, FleetSkewProperties
from airflow_hops.extensions.fleet.ml.drift import DriftFinding, find, tests_of
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.extensions.fleet.ml.reference import counted_alike
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.server import check_writes_files
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.readers import scan
from airflow_hops.ml.skew.feature_rows import INPUT
from airflow_hops.ml.skew.plan import commit_window, one_run, window_of_run
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 500_000


def run(context: StepContext, **options: Any) -> Artifact:
    """Writes the artifact ``fleet_skew``, which names the segments whose rows have changed.

    It compares the rows that were captured since the task's last run, or those of the input ``captured``. Segments with
    too few of them are not tested; if there are none with enough, the next run compares these rows, too.

    Raises:
        BadInput: no version serves, the champion is not a fleet, or captured rows lack a feature.
        HopsError: the store of captured requests does not answer.
    """
    values = FleetSkewOptions(**options)
    check_writes_files(context)
    champion = read_record(context.store, values.model_name).champion
    if champion is None:
        raise ModelNotFound(values.model_name, "champion")
    served = OpenFleet.read(context.store, champion.model)
    requests = captured_requests(context, values.model_name)
    names = requests.names()
    with one_run(context):
        window: Sequence[str] = names
        cursor = until = None
        if not context.has_input("captured"):
            window, cursor, until = window_of_run(context, values.model_name, names)
        counts, rows, unknown = _count(context, served, requests, window)
        compared = {segment: own for segment, own in counts.items() if rows[segment] >= values.min_rows}
        tests = [
            test
            for segment, own in compared.items()
            for test in tests_of(
                segment,
                json.loads(served.reference[segment]["statistics"]),
                own,
                {name: value for name, value in json.loads(served.reference[segment]["groups"]).items() if value},
            )
        ]
        findings = find(tests, values.false_discoveries, any_dependence=values.dependence == "any")
        verdict = DRIFT if findings else STABLE if tests else INSUFFICIENT
        artifact = _write(
            context, values, champion.version, verdict, findings, rows, len(compared), len(tests), unknown
        )
        if cursor is not None and tests:  # otherwise the next run compares these rows, too
            commit_window(context.store, cursor, until)
    return artifact


def _count(
    context: StepContext, served: OpenFleet, requests: CapturedRequests, window: Sequence[str]
) -> tuple[dict[str, dict[str, np.ndarray]], Counter[str], int]:
    """Returns counts by segment and feature, rows by segment, and how many rows are of segments without a reference."""
    segment = served.fleet.description.segment
    segments = sorted(served.reference, key=str.encode)
    statistics = [json.loads(served.reference[key]["statistics"]) for key in segments]
    features = list(served.properties.features or ())
    keys = pa.array(segments, pa.string())
    counts: dict[str, dict[str, np.ndarray]] = {}
    rows: Counter[str] = Counter()
    unknown = 0
    for number, table in enumerate(_tables(context, requests, window, [segment, *features])):
        context.progress(0.5, f"comparing rows, {(number + 1) * _ROWS_AT_ONCE:,} at most so far")
        column = table[segment]
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.string())
        numbers = pc.fill_null(pc.index_in(column.cast(pa.string()), keys), len(keys)).to_numpy()
        order = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[order], np.arange(len(keys) + 1))
        unknown += len(order) - int(starts[-1])
        values = {name: _values(table[name])[order] for name in features}
        for position in np.flatnonzero(np.diff(starts)):
            own = slice(starts[position], starts[position + 1])
            rows[segments[position]] += int(own.stop - own.start)
            known = counts.setdefault(segments[position], {})
            for name, reference in statistics[position].items():
                more = counted_alike(reference, values[name][own])
                known[name] = known[name] + more if name in known else more
    return counts, rows, unknown


def _tables(
    context: StepContext, requests: CapturedRequests, window: Sequence[str], names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yields captured rows, some hundred thousand at a time."""
    batches: list[pa.RecordBatch] = []
    for file in requests.fetch(window, context.scratch / "captured"):
        lacking = [name for name in names if f"{INPUT}{name}" not in scan.schema(file).names]
        if lacking:
            raise MissingColumn(file, lacking[0]).with_text(
                f"{file}: there is no column '{INPUT}{lacking[0]}', an input of the fleet; the server must capture "
                "inputs (--capture_mode=all), of versions with the same inputs"
            )
        for batch in file.batches([f"{INPUT}{name}" for name in names]):
            batches.append(pa.RecordBatch.from_arrays(batch.columns, list(names)))
            if sum(each.num_rows for each in batches) >= _ROWS_AT_ONCE:
                yield pa.Table.from_batches(batches)
                batches = []
    if batches:
        yield pa.Table.from_batches(batches)


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns texts as objects, or floats with NaN for a missing one."""
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        numbers: np.ndarray = column.to_numpy().astype(np.float64)
        return numbers
    texts: np.ndarray = column.cast(pa.string()).to_numpy()
    return texts


def _write(
    context: StepContext,
    options: FleetSkewOptions,
    version: int,
    verdict: str,
    findings: Sequence[DriftFinding],
    rows: Mapping[str, int],
    compared: int,
    tests: int,
    unknown: int,
) -> Artifact:
    for finding in findings[:50]:
        log.warning("%s (q-value %.2g)", finding.words, finding.q_value)
    few = len(rows) - compared
    log.info(
        "%s: %d findings in %s tests of %s segments; %s with fewer than %d rows are not tested; %s rows of others",
        *(verdict, len(findings), f"{tests:,}", f"{compared:,}", f"{few:,}", options.min_rows, f"{unknown:,}"),
    )
    segments = tuple(sorted({segment for finding in findings for segment in finding.segments}))
    report = {
        "segments": compared,
        "tests": tests,
        "rate": options.false_discoveries,
        "findings": [finding.to_dict() for finding in findings],
    }
    with context.output() as writer:
        (writer.path / FINDINGS_FILE).write_text(json.dumps(report, indent=1, allow_nan=False))
        total = sum(rows.values()) + unknown
        rejected = {"of a segment that the fleet does not have": unknown} if unknown else {}
        return writer.commit(
            rows={"captured": RowCounts(total, total - unknown, rejected)},
            metrics={"findings": len(findings), "drifted": len(segments), "tests": tests, "compared": compared},
            properties=FleetSkewProperties(
                options.model_name,
                version,
                verdict,
                segments,
                tuple(f"{finding.group}: {finding.columns[0]}" for finding in findings if finding.group),
                tests,
            ).to_dict(),
        )
