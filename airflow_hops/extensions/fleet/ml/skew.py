"""Compares the captured rows of a fleet's segments with their training rows, with a bounded rate of false discoveries.

A test compares the counts of a feature's values in a segment's training rows and in its captured rows (chi-squared, two
samples). Benjamini and Hochberg (1995) bound the expected share of unchanged segments among all that are found, if
tests depend on each other positively. A segment's p-value is that of Simes for its features; of a segment that is
found, features are named that pass the bound within it (Benjamini and Bogomolov, 2014). What most segments of a group
have in common is one finding about the group.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import ModelNotFound
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.skew import DRIFT, INSUFFICIENT, STABLE
from airflow_hops.extensions.fleet.core.options import FINDINGS_FILE, FleetSkewProperties
from airflow_hops.extensions.fleet.ml.columns import floats
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.extensions.fleet.ml.reference import counted_alike
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew.feature_rows import FeatureRows
from airflow_hops.ml.skew.plan import one_run, window_of_run
from airflow_hops.ml.step.context import StepContext

_LEAST_EXPECTED = 5.0
"""Expected values of a cell of the table below which it is joined with another (Cochran's rule)."""
_MOST = 0.5
"""Share of a group's segments in which a feature must have changed to be a finding about the group."""
_LEAST_SEGMENTS = 3

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


def two_samples(reference: np.ndarray, current: np.ndarray) -> tuple[float, int]:
    """Returns the chi-squared statistic of two rows of counts, and its degrees of freedom; 0 if they cannot differ.

    Neighbouring counts are joined until about 5 are expected in each.

    >>> two_samples(np.array([50, 50]), np.array([50, 50]))
    (0.0, 1)
    """
    least = min(reference.sum(), current.sum())
    if least == 0:
        return 0.0, 0
    needed = _LEAST_EXPECTED * (reference.sum() + current.sum()) / least
    rows = [[0.0, 0.0]]
    for pair in zip(reference.tolist(), current.tolist(), strict=True):
        if sum(rows[-1]) >= needed:
            rows.append([0.0, 0.0])
        rows[-1] = [rows[-1][0] + pair[0], rows[-1][1] + pair[1]]
    if len(rows) > 1 and sum(rows[-1]) < needed:
        last = rows.pop()
        rows[-1] = [rows[-1][0] + last[0], rows[-1][1] + last[1]]
    if len(rows) < 2:
        return 0.0, 0
    table = np.array(rows)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    return float((np.square(table - expected) / expected).sum()), len(rows) - 1


@dataclass(frozen=True)
class SegmentTest:
    """A test of a feature of a segment: statistic, degrees of freedom, and the groups that the segment is in."""

    segment: str
    feature: str
    statistic: float
    freedom: int
    groups: Mapping[str, str]


@dataclass(frozen=True)
class DriftFinding(JsonFields):
    """Finding that features of one segment have changed, or a feature of a group of them.

    Attributes:
        group: The group in words, such as ``region=North``; empty for one segment.
        segments: Keys of the segments.
        columns: The features, the most certain first.
        words: The finding in a sentence.
        q_value: Least rate of false discoveries at which it is found.
    """

    group: str
    segments: Sequence[str]
    columns: Sequence[str]
    words: str
    q_value: float


def find(tests: Sequence[SegmentTest], rate: float) -> list[DriftFinding]:
    """Returns the findings, about groups first, and then the most certain first.

    A test that a finding about a group covers is no finding of its own.

    Args:
        tests: The tests, with at least one degree of freedom.
        rate: Bound on the rate of false discoveries.
    """
    if not tests:
        return []
    p_values = stats.chi2.sf([test.statistic for test in tests], [test.freedom for test in tests])
    q_values, significant = _significant(tests, p_values, rate)
    by_group: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, test in enumerate(tests):
        for name, value in {"": "", **test.groups}.items():
            by_group[name, value, test.feature].append(number)
    groups = [(key, numbers) for key, numbers in by_group.items() if len(numbers) >= _LEAST_SEGMENTS]
    # If half of the segments have not changed, a quarter or more of all p-values are expected above a half.
    small = [stats.binom.cdf((p_values[own] > 0.5).sum(), len(own), 0.25) for _, own in groups]
    common = stats.false_discovery_control(small) if groups else np.empty(0)
    findings: list[DriftFinding] = []
    covered: set[int] = set()
    # The whole fleet before its groups, and large groups before small ones.
    for (name, value, feature), numbers, q_value in sorted(
        ((key, numbers, q) for (key, numbers), q in zip(groups, common.tolist(), strict=True)),
        key=lambda item: (item[0][0] != "", -len(item[1]), item[0]),
    ):
        changed = [number for number in numbers if number in significant]
        has_most = len(changed) >= max(_MOST * len(numbers), _LEAST_SEGMENTS)
        if covered.issuperset(numbers) or not (has_most or q_value <= rate):
            continue
        covered.update(numbers)
        group = f"{name}={value}" if name else "all segments"
        words = f"{feature} has changed in {len(changed)} of {len(numbers)} segments of {group}"
        if not has_most:
            words = f"{feature} has changed a little in most of {len(numbers)} segments of {group}"
        best = min([q_value, *(float(q_values[number]) for number in changed)])
        segments = sorted(tests[number].segment for number in (changed if has_most else numbers))
        findings.append(DriftFinding(group, segments, [feature], words, best))
    findings.sort(key=lambda finding: (finding.q_value, finding.group, finding.columns))
    by_segment: dict[str, list[int]] = defaultdict(list)
    for number in sorted(significant - covered, key=lambda number: (q_values[number], -tests[number].statistic)):
        by_segment[tests[number].segment].append(number)
    for segment, numbers in by_segment.items():
        columns = [tests[number].feature for number in numbers]
        words = f"{', '.join(columns)} of segment {segment} {'has' if len(columns) == 1 else 'have'} changed"
        findings.append(DriftFinding("", [segment], columns, words, float(q_values[numbers[0]])))
    return findings


def _significant(tests: Sequence[SegmentTest], p_values: np.ndarray, rate: float) -> tuple[np.ndarray, set[int]]:
    """Returns the q-value of each test's segment, and the numbers of significant tests."""
    by_segment: dict[str, list[int]] = defaultdict(list)
    for number, test in enumerate(tests):
        by_segment[test.segment].append(number)
    within, q_values = np.empty(len(tests)), np.empty(len(tests))
    for numbers in by_segment.values():
        within[numbers] = stats.false_discovery_control(p_values[numbers])
    simes = [within[numbers].min() for numbers in by_segment.values()]
    of_segments = stats.false_discovery_control(simes)
    for numbers, q_value in zip(by_segment.values(), of_segments.tolist(), strict=True):
        q_values[numbers] = q_value
    bound = rate * (of_segments <= rate).mean()
    return q_values, set(np.flatnonzero((q_values <= rate) & (within <= bound)).tolist())
