"""Finds which segments' rows have changed, among thousands of tests, with a bounded rate of false discoveries.

A test compares the counts of a feature's values in a segment's training rows and in its captured rows (chi-squared, two
samples). Benjamini and Hochberg (1995) bound the expected share of unchanged segments among all that are found, if
tests depend on each other positively. A segment's p-value is that of Simes for its features; of a segment that is
found, features are named that pass the bound within it (Benjamini and Bogomolov, 2014). What most segments of a group
have in common is one finding about the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from airflow_hops.core.json_fields import JsonFields

_LEAST_EXPECTED = 5.0
"""Expected values of a cell of the table below which it is joined with another (Cochran's rule)."""
_MOST = 0.5
"""Share of a group's segments in which a feature must have changed to be a finding about the group."""
_LEAST_SEGMENTS = 3


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
