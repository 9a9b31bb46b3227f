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
from airflow_hops.core.errors import ModelNotFound
from airflow_hops.core.models.model_record import read_record
from airflow_hops.extensions.fleet.core.options import FINDINGS_FILE, FleetSkewProperties
from airflow_hops.extensions.fleet.ml.columns import floats
from airflow_hops.extensions.fleet.ml.drift import DriftFinding, SegmentTest, find, two_samples
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.extensions.fleet.ml.reference import counted_alike
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew.feature_rows import FeatureRows
from airflow_hops.ml.skew.plan import one_run, window_of_run
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 500_000


def run(
    context: StepContext,
    *,
    model_name: str,
    false_discoveries: float = 0.05,
    min_rows: int = 50,
) -> Artifact:
    """Writes the artifact ``fleet_skew``, which names the segments whose rows have changed.

    It compares the rows that were captured since the task's last run, or those of the input ``captured``. Segments with
    too few of them are not tested; if there are none with enough, the next run compares these rows, too. Parameters are
    those of ``FleetSkewOperator``.

    Raises:
        BadInput: no version serves, the champion is not a fleet, or captured rows lack a feature.
        HopsError: the store of captured requests does not answer.
    """
    champion = read_record(context.store, model_name).champion
    if champion is None:
        raise ModelNotFound(model_name, "champion")
    served = OpenFleet.read(context.store, champion.model)
    requests = captured_requests(context, model_name)
    with one_run(context):
        window = window_of_run(context, model_name, requests.names())
        known = {key: json.loads(text) for key, text in served.statistics.items()}
        counts, rows, unknown = _count(context, served, known, requests, window.names)
        compared = [key for key in counts if rows[key] >= min_rows]
        tests = [
            SegmentTest(key, name, statistic, freedom, {k: v for k, v in known[key]["groups"].items() if v})
            for key in compared
            for name, each in known[key]["statistics"].items()
            for statistic, freedom in [two_samples(np.array([*each["counts"], each["missing"]]), counts[key][name])]
            if freedom
        ]
        silent = _silent(served, known, rows, min_rows)
        findings = [*silent, *find(tests, false_discoveries)]
        verdict = DRIFT if findings else STABLE if tests else INSUFFICIENT
        for finding in findings[:50]:
            log.warning("%s (q-value %.2g)", finding.words, finding.q_value)
        log.info(
            "%s: %d findings in %d tests of %d segments; %d with fewer than %d rows are not tested; %d rows of others",
            *(verdict, len(findings), len(tests), len(compared), len(rows) - len(compared), min_rows, unknown),
        )
        segments = tuple(sorted({segment for each in findings[len(silent) :] for segment in each.segments}))
        groups = tuple(f"{finding.group}: {finding.columns[0]}" for finding in findings if finding.group)
        listed = [finding.to_dict() for finding in findings]
        report = {"segments": len(compared), "tests": len(tests), "rate": false_discoveries, "findings": listed}
        with context.output() as writer:
            (writer.path / FINDINGS_FILE).write_text(json.dumps(report, indent=1, allow_nan=False))
            total = sum(rows.values()) + unknown
            rejected = {"of a segment that the fleet does not have": unknown} if unknown else {}
            counted = {"findings": len(findings), "drifted": len(segments), "compared": len(compared)}
            counted["silent"] = len(silent)
            artifact = writer.commit(
                rows={"captured": RowCounts(total, total - unknown, rejected)},
                metrics={**counted, "tests": len(tests)},
                properties=FleetSkewProperties(
                    model_name,
                    champion.version,
                    verdict,
                    segments,
                    groups,
                    len(tests),
                    silent=tuple(key for each in silent for key in each.segments),
                ).to_dict(),
            )
        if tests:  # otherwise the next run compares these rows, too
            window.commit()
    return artifact


def _silent(
    served: OpenFleet, known: Mapping[str, object], rows: Mapping[str, int], min_rows: int
) -> list[DriftFinding]:
    """Returns a finding for each segment without captured rows, of which its share of the training rows is enough."""
    trained = {key: served.entries[key]["rows"] for key in sorted(known)}
    share = sum(rows.values()) / max(sum(trained.values()), 1)
    return [
        DriftFinding(
            "", [key], [], f"segment {key} has sent nothing; about {count * share:,.0f} rows were expected", 0.0
        )
        for key, count in trained.items()
        if not rows.get(key) and count * share >= min_rows
    ]


def _count(
    context: StepContext,
    served: OpenFleet,
    known: Mapping[str, Mapping[str, Any]],
    requests: CapturedRequests,
    window: Sequence[str],
) -> tuple[dict[str, dict[str, np.ndarray]], Counter[str], int]:
    """Returns counts by segment and feature, rows by segment, and how many rows are of segments without statistics."""
    segment, features = served.fleet.description.segment, list(served.properties.features or ())
    counts: dict[str, dict[str, np.ndarray]] = {}
    rows: Counter[str] = Counter()
    unknown = 0
    files = requests.fetch(window, context.scratch / "captured")
    for number, table in enumerate(_tables(files, [segment, *features])):
        context.progress(0.5, f"comparing rows, {(number + 1) * _ROWS_AT_ONCE:,} at most so far")
        coded = table[segment].cast(pa.string()).combine_chunks().dictionary_encode()
        codes = pc.fill_null(coded.indices, -1).to_numpy()
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        unknown += int(starts[0])
        values = {name: _values(table[name])[order] for name in features}
        for key, first, last in zip(coded.dictionary.to_pylist(), starts, starts[1:], strict=False):
            if key not in known:
                unknown += int(last - first)
                continue
            rows[key] += int(last - first)
            own = counts.setdefault(key, {})
            for name, each in known[key]["statistics"].items():
                own[name] = own.get(name, 0) + counted_alike(each, values[name][first:last])
    return counts, rows, unknown


def _tables(files: Sequence[RowsFile], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yields captured rows, some hundred thousand at a time. Raises BadInput if a file lacks a column."""
    batches: list[pa.RecordBatch] = []
    for batch in FeatureRows(files)(names):
        batches.append(batch)
        if sum(each.num_rows for each in batches) >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(batches)
            batches = []
    if batches:
        yield pa.Table.from_batches(batches)


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns texts as objects, or floats with NaN for a missing one."""
    is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    values: np.ndarray = floats(column) if is_number else column.cast(pa.string()).to_numpy()
    return values
