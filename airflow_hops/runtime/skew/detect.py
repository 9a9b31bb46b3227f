"""How far two distributions differ, feature by feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime import tfdv_extension
from airflow_hops.runtime.schema import infer_schema
from airflow_hops.runtime.skew.report import FeatureSkew, SkewReport, Verdict
from airflow_hops.runtime.statistics import generate_statistics, load_statistics
from airflow_hops.runtime.statistics.summary import common_statistics, features_by_name, histogram, type_name

MIN_ROWS = 5000
"""Windows below this size score above the default thresholds by chance: of 2,000 unchanged flights one in twenty does,
of 1,000 one in three, of 5,000 none of 30."""


def detect_skew(reference: Any, current: Any, *, schema: Any = None, min_rows: int = MIN_ROWS) -> SkewReport:
    """Compares two distributions feature by feature, with TFDV's measures and the schema's skew comparators.

    Missing values are no part of a score; their shares stand beside it.

    Args:
        reference: ``DatasetFeatureStatisticsList``, a ``.pb`` file of one, or a source as
            :func:`~airflow_hops.runtime.statistics.generate_statistics` takes.
        current: The same, of the rows in question.
        schema: ``Schema``, whose ``skew_comparator`` fields say which features are compared and to what threshold;
            None for one inferred from the reference.
        min_rows: Rows of ``current`` below which the verdict is "insufficient".

    Raises:
        BadInput: a feature is of another type in ``current``, or missing from it.
    """
    reference, current = _statistics(reference), _statistics(current)
    schema = schema if schema is not None else infer_schema(reference)
    before, after = features_by_name(reference), features_by_name(current)
    rows_before, rows_after = (int(s.datasets[0].num_examples) for s in (reference, current))
    compared = {f.name: f for f in schema.feature if f.HasField("skew_comparator") and f.name in before}
    for name in compared:
        if name not in after:
            raise BadInput(f"feature {name!r} is not among the current rows; there are {', '.join(sorted(after))}")
        types = type_name(before[name]), type_name(after[name])
        # A feature without a value has no type of its own.
        if types[0] != types[1] and common_statistics(after[name]).num_non_missing:
            raise BadInput(f"feature {name!r} is {types[1]} in the current rows, but {types[0]} in the reference")
    anomalies = tfdv_extension.validate_statistics(reference, schema, serving=current)
    scores = {
        ".".join(info.path.step): float(measurement.value)
        for info in anomalies.drift_skew_info
        for measurement in info.skew_measurements
    }
    features = {
        name: _compare(feature, before[name], after[name], scores.get(name), rows_before, rows_after)
        for name, feature in compared.items()
    }
    moved = [name for name, skew in features.items() if skew.drifted]
    lost = tuple(n for n, skew in features.items() if skew.missing_reference < 1 and skew.missing_current == 1)
    moved.sort(key=lambda name: -features[name].excess)
    verdict: Verdict = "pipeline_fault" if lost else "drift" if moved else "stable"
    if rows_after < min_rows:
        verdict = "insufficient"
    return SkewReport(verdict, tuple(moved), features, rows_before, rows_after, min_rows, lost)


def _statistics(source: Any) -> Any:
    if type(source).__name__ == "DatasetFeatureStatisticsList":
        return source
    if isinstance(source, str | Path) and Path(source).suffix == ".pb":
        return load_statistics(Path(source))
    return generate_statistics(source)


def _compare(expected: Any, before: Any, after: Any, score: float | None, rows_before: int, rows_after: int) -> Any:
    comparator = expected.skew_comparator
    numeric = comparator.HasField("jensen_shannon_divergence")
    threshold = (comparator.jensen_shannon_divergence if numeric else comparator.infinity_norm).threshold
    if not (common_statistics(before).num_non_missing and common_statistics(after).num_non_missing):
        score = None
    return FeatureSkew(
        measure="jensen_shannon" if numeric else "l_infinity",
        score=None if score is None else round(score, 6),
        threshold=threshold,
        drifted=score is not None and score > threshold,
        missing_reference=_missing(before, rows_before),
        missing_current=_missing(after, rows_after),
        histogram_reference=histogram(before),
        histogram_current=histogram(after),
    )


def _missing(feature: Any, rows: int) -> float:
    return round(1.0 - common_statistics(feature).num_non_missing / rows, 6) if rows else 0.0
