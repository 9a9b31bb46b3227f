"""Differences between two samples of rows by feature, and their significance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import INSUFFICIENT, SkewTest
from airflow_hops.ml.distances.decide import Judged, decide
from airflow_hops.ml.distances.repeats import without_repeats
from airflow_hops.ml.distances.report import FeatureSkew, SkewReport, verdict_of
from airflow_hops.ml.distances.sides import Feature, Side, alike
from airflow_hops.ml.distances.tfdv_measures import Measured, blind_measures, measured_by_tfdv
from airflow_hops.ml.distances.windows import Nearest, OwnWindow, compare_windows, window_of
from airflow_hops.ml.schema.comparators import compared_features, unit_of
from airflow_hops.ml.schema.diff import flat_features
from airflow_hops.ml.statistics import load_statistics
from airflow_hops.ml.statistics.generate import collect_statistics
from airflow_hops.ml.statistics.sample import load_sample
from airflow_hops.ml.statistics.summary import common_statistics, features_by_name, type_name, vector_width

# Decision for one feature, in this order: a distance per question (values, missing, lengths, …); its p-value by chance,
# corrected over all questions of all features; if rows depend on time, whether windows of the reference differ as much;
# then the threshold. It has drifted only if the distance is above the threshold, significant, and unusual. A likely
# fault of the pipeline needs no threshold, but must be significant.


def detect_skew(
    reference: object, current: object, *, schema: object = None, time: str | None = None, **options: Any
) -> SkewReport:
    """Compares two samples of rows feature by feature.

    A feature has drifted if its values, its missing or infinite values, or the lengths of its lists are further apart
    than ``threshold`` and than unchanged samples of these sizes would be (see
    :mod:`~airflow_hops.ml.distances.measures`). p-values assume that rows are independent.

    Args:
        reference: ``DatasetFeatureStatisticsList``, a ``.pb`` file of one, beside which its ``sample.parquet`` may lie,
            or a source as :func:`~airflow_hops.ml.statistics.generate_statistics` takes.
        current: The same for the rows to compare.
        schema: ``Schema``, whose comparators select the features; None to compare all features that both sides have.
        time: Column of the rows' times on both sides, where rows depend on it: a feature has then drifted only if it is
            further from the most similar window of the reference than such windows, as long as the current one and, if
            there is a year of them, of the same season, are from each other.
        options: Fields of :class:`airflow_hops.core.skew.SkewTest`.

    A feature of the schema that ``current`` lacks, or a feature of another type in it, counts as drifted.

    Raises:
        BadInput: no feature can be compared, or an argument is out of range.
    """
    test, base, new = SkewTest(**options), side_of(reference), side_of(current)
    windows = None if time is None or new.sample is None else window_of(new.sample, time)
    new, notes = without_repeats(base, new)
    report = compare_sides(base, new, schema, test, windows)
    return replace(report, notes=(*notes, *report.notes))


def side_of(source: object) -> Side:
    """Returns one side of a comparison, from an argument of :func:`detect_skew`."""
    if type(source).__name__ == "DatasetFeatureStatisticsList":
        return Side(source)
    if isinstance(source, str | Path) and Path(source).suffix == ".pb":
        return Side(load_statistics(Path(source)), load_sample(Path(source).parent))
    collected = collect_statistics(source)
    return Side(collected.statistics, collected.sample)


@dataclass(frozen=True)
class Prepared:
    """A comparison of two sides up to the features' values, which may change before they are judged.

    Attributes:
        reference: The reference.
        current: The current rows; their statistics tell types and lengths of vectors.
        test: Options of the comparison.
        windows: Windows of the reference, if rows depend on the time.
        thresholds: Threshold of each feature whose values are compared.
        findings: Features that cannot be compared.
        widths: Lengths of vectors by feature.
        units: Units by feature, if the schema has them.
        measured: TFDV's measures of the features that the schema wants judged by them.
        unmatched: Without a schema, features of one side only.
    """

    reference: Side
    current: Side
    test: SkewTest
    windows: OwnWindow | None
    thresholds: Mapping[str, float]
    findings: dict[str, FeatureSkew]
    widths: Mapping[str, int | None]
    units: Mapping[str, str]
    measured: Mapping[str, Measured]
    unmatched: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, reference: Side, current: Side, schema: Any, test: SkewTest, windows: OwnWindow | None = None
    ) -> Prepared:
        """Prepares a comparison; arguments as of :func:`compare_sides`."""
        old, new = features_by_name(reference.statistics), features_by_name(current.statistics)
        thresholds = _thresholds(old, new, schema, test)
        if windows is not None:
            thresholds.pop(windows[0], None)  # times always differ
        compared = {name: _finding(old[name], new.get(name), reference.rows, current.rows) for name in thresholds}
        findings = {name: finding for name, finding in compared.items() if finding is not None}
        thresholds = {name: threshold for name, threshold in thresholds.items() if name not in findings}
        is_sampled = reference.sample is not None and current.sample is not None
        return cls(
            reference,
            current,
            test,
            windows,
            thresholds,
            findings,
            {name: _common_width(old[name], new[name]) for name in thresholds},
            {} if schema is None else {name: unit_of(each) for name, each in flat_features(schema.feature)},
            measured_by_tfdv(
                reference.statistics, current.statistics, schema, test.comparator, () if is_sampled else thresholds
            ),
            tuple(sorted(old.keys() ^ new.keys())) if schema is None else (),
        )

    def judged(self) -> tuple[dict[str, Judged], list[str]]:
        """Compares all features; returns them to be decided about, and notes on windows of the reference."""
        reference, current = self.reference.sample, self.current.sample
        if reference is None or current is None:
            measured = self.measured
            return {name: Judged.by_tfdv(measured[name]) for name in self.thresholds if name in measured}, []
        nearest, notes = dict[str, dict[str, Nearest]](), list[str]()
        if self.windows is not None:
            nearest, note = compare_windows(self.windows, reference, current, self.widths)
            notes.append(note)
        samples = [reference, current]
        return {
            name: self.judge(
                name, partial(alike, samples, name, width=width, seed=self.test.seed), nearest.get(name, {})
            )
            for name, width in self.widths.items()
        }, notes

    def judge(
        self, name: str, read: Callable[[], Sequence[Feature]], nearest: Mapping[str, Nearest], **options: Any
    ) -> Judged:
        """Compares a feature's values, which ``read`` returns of both sides; options as of :meth:`Judged.of`."""
        return Judged.of(
            read,
            self.thresholds[name],
            crc32(f"{self.test.seed} {name}".encode()),
            tfdv=None if name in (self.test.thresholds or {}) else self.measured.get(name),
            unit=self.units.get(name, ""),
            nearest=nearest,
            **options,
        )


def compare_sides(
    reference: Side, current: Side, schema: Any, test: SkewTest, windows: OwnWindow | None = None
) -> SkewReport:
    """Compares two sides as :func:`detect_skew` does, with windows of the reference if there is a time."""
    prepared = Prepared.of(reference, current, schema, test, windows)
    judged, notes = prepared.judged()
    findings, thresholds = prepared.findings, prepared.thresholds
    features = dict(sorted((decide(judged, test) | findings).items(), key=lambda item: item[1].rank))
    return SkewReport(
        verdict=INSUFFICIENT if current.rows < test.rows_needed else verdict_of(features.values()),
        features=features,
        rows_reference=reference.rows,
        rows_current=current.rows,
        min_rows=test.rows_needed,
        alpha=test.alpha,
        unmatched=prepared.unmatched,
        notes=(
            *_notes_of_schema(reference, schema, test),
            *notes,
            *_notes(reference, current, [name for name in thresholds if name not in features]),
        ),
    )


def _thresholds(old: Mapping[str, Any], new: Mapping[str, Any], schema: Any, test: SkewTest) -> dict[str, float]:
    """Returns the features to compare, with the thresholds of their distances."""
    if schema is None:
        compared: dict[str, float | None] = dict.fromkeys(
            name for name in old if name in new and _is_comparable(old[name])
        )
        why = "the features of the reference are {}, those of the current rows are {}".format(
            *(", ".join(sorted(side)) or "none" for side in (old, new))
        )
    else:
        compared = {n: own for n, own in compared_features(schema, test.comparator).items() if n in old}
        why = f"the schema has no {test.comparator}_comparator for a feature of the reference; freeze it with some"
    if not compared:
        raise BadInput(f"nothing to compare: {why}")
    for name in test.thresholds or {}:
        if name not in compared:
            raise BadInput(f"thresholds names feature {name!r}, which is not compared; compared are {list(compared)}")
    thresholds = {}
    for name, own in (compared | dict(test.thresholds or {})).items():
        is_vector = _common_width(old[name], new.get(name)) is not None
        if is_vector and own is None and test.alpha is None:
            raise BadInput(
                f"feature {name!r}, a vector, has no threshold, and alpha is None, so nothing decides whether it has "
                f"drifted; give thresholds={{{name!r}: …}}, or an alpha"
            )
        # A discrepancy of vectors is not a share of rows, so only significance decides.
        thresholds[name] = own if own is not None else 0.0 if is_vector else test.threshold
    return thresholds


def comparable_features(reference: Side, current: Side) -> list[str]:
    """Returns the features that both sides have, with the same type."""
    old, new = features_by_name(reference.statistics), features_by_name(current.statistics)
    shared = [name for name, feature in old.items() if name in new and _is_comparable(feature)]
    return [name for name in shared if _difference(old[name], new[name]) is None]


def _is_comparable(feature: Any) -> bool:
    return feature.WhichOneof("stats") in ("num_stats", "string_stats")


def _finding(old: object, new: object, rows_before: int, rows_after: int) -> FeatureSkew | None:
    """Returns the finding about a feature that cannot be compared."""
    missing = _missing(old, rows_before)
    skew = FeatureSkew("type", None, None, drifted=True, missing_reference=missing, missing_current=1.0)
    if new is None:
        return replace(skew, cause="all_missing", summary="not among the current rows")
    if (types := _difference(old, new)) is None:
        return None
    words = f"{types[1]} in the current rows, {types[0]} in the reference"
    return replace(skew, missing_current=_missing(new, rows_after), cause="other_type", summary=words)


def _missing(feature: object, rows: int) -> float:
    return round(1 - common_statistics(feature).num_non_missing / max(1, rows), 6)


def _difference(*sides: Any) -> tuple[str, str] | None:
    """Returns a feature's types on both sides, if values of them cannot be compared."""
    has_values = [common_statistics(side).num_non_missing * common_statistics(side).avg_num_values for side in sides]
    if all(map(_is_comparable, sides)) and not all(has_values):
        return None  # a feature without values has no type
    types = tuple("number" if each.WhichOneof("stats") == "num_stats" else type_name(each) for each in sides)
    return None if types[0] == types[1] else (type_name(sides[0]), type_name(sides[1]))


def _common_width(old: object, new: object) -> int | None:
    """Returns the length of a feature's vectors, if it is that of both sides; others are compared as lists."""
    width = vector_width(old)
    is_lacking = new is None or not common_statistics(new).num_non_missing
    return width if is_lacking or width == vector_width(new) else None


def _notes_of_schema(reference: Side, schema: Any, test: SkewTest) -> Iterator[str]:
    """Yields what comparators of the schema ask for in vain."""
    if schema is None:
        return
    known, chosen = features_by_name(reference.statistics), compared_features(schema, test.comparator)
    if absent := [name for name in chosen if name not in known]:
        yield f"Not compared, as the reference has no such feature: {', '.join(absent)}"
    for name, measures in blind_measures(reference.statistics, schema, test.comparator).items():
        yield (
            f"{name}: the schema's {test.comparator}_comparator has a threshold for {' and '.join(measures)}, of which "
            "TFDV gives 0 for any values of this type, so it does not count; without another threshold, the feature is "
            "compared as by default. infinity_norm and normalized_abs_difference are measures of text, "
            "jensen_shannon_divergence is one of text and of numbers below 2**53, and vectors have none"
        )


def _notes(reference: Side, current: Side, left_out: list[str]) -> tuple[str, ...]:
    notes = []
    lacking = [what for what, side in (("reference", reference), ("current rows", current)) if side.sample is None]
    if lacking:
        notes.append(
            f"The statistics of the {' and of the '.join(lacking)} hold no sample of rows: features are judged by "
            "TFDV's measures and thresholds alone, without p-values; compute the statistics again with "
            "StatisticsOperator"
        )
    if left_out:
        notes.append(f"Not compared, as TFDV has no measure of them: {', '.join(left_out)}")
    return tuple(notes)
