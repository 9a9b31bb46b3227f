"""Differences between two distributions by feature, and their significance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT, STABLE, SkewTest
from airflow_hops.ml.monitoring.skew.causes import FAULTS, cause_of, swapped
from airflow_hops.ml.monitoring.skew.distribution import (
    Distribution,
    Numbers,
    Values,
    Vectors,
    count_of_values,
    distribution,
    lengths,
    present_share,
)
from airflow_hops.ml.monitoring.skew.measures import (
    CATEGORICAL,
    NUMERIC,
    OF_FEW,
    common_histogram,
    every_score,
    measurable,
    score,
)
from airflow_hops.ml.monitoring.skew.report import FeatureSkew, SkewReport
from airflow_hops.ml.monitoring.skew.vectors import MEASURE
from airflow_hops.ml.schemas import infer_schema
from airflow_hops.ml.statistics import comparable_options, generate_statistics, load_statistics
from airflow_hops.ml.statistics.frequent_numbers import has_few_numbers
from airflow_hops.ml.statistics.summary import common_statistics, features_by_name, histogram, type_name
from airflow_hops.ml.statistics.vectors import sampled_vectors, vector_width

if TYPE_CHECKING:
    from airflow_hops.ml.monitoring.skew.significance import Judgement


@dataclass(frozen=True)
class _Wanted:
    measure: str
    threshold: float | None


@dataclass(frozen=True)
class _Tested:
    """Test of a feature, before the correction for the number of tests."""

    wanted: _Wanted
    features: tuple[Any, Any]
    distributions: tuple[Distribution | None, Distribution | None]
    missing: tuple[float, float]
    missing_p: float | None
    lengths: tuple[Numbers, Numbers] | None = None
    lengths_moved: float = 0.0
    lengths_p: float | None = None
    score: float | None = None
    judgement: Judgement | None = None


def detect_skew(reference: Any, current: Any, *, schema: Any = None, **options: Any) -> SkewReport:
    """Compares two distributions feature by feature.

    A feature's values have drifted if its score is higher than those of unchanged samples of the same sizes (see
    :mod:`~airflow_hops.ml.monitoring.skew.significance`) and above the fixed threshold, if the schema or ``thresholds``
    sets one. p-values assume that rows are independent; use a fixed threshold for time series. Missing values,
    including NaN, do not count for the score; a feature has also drifted if its share of missing values has changed
    significantly (Fisher's exact test), and by more than ``missing_threshold``. So has one of lists if the numbers of
    values per row have, by their Kolmogorov-Smirnov distance.

    Args:
        reference: ``DatasetFeatureStatisticsList``, a ``.pb`` file of one, or a source as
            :func:`~airflow_hops.ml.statistics.generate_statistics` takes.
        current: The same for the rows to compare.
        schema: ``Schema``, whose comparators select the features and thresholds; None to compare all features that both
            sides have.
        options: Fields of :class:`airflow_hops.core.contract.skew.SkewTest`.

    Raises:
        BadInput: a feature has another type in ``current``, or a feature of the schema is missing from it; there is
            nothing to compare; or an argument is out of range.
    """
    test = SkewTest(**options)
    return compare_statistics(_statistics(reference), _statistics(current), schema, test)


def compare_statistics(reference: Any, current: Any, schema: Any, test: SkewTest) -> SkewReport:
    """Compares two ``DatasetFeatureStatisticsList`` as :func:`detect_skew` does."""
    before, after = features_by_name(reference), features_by_name(current)
    rows = int(reference.datasets[0].num_examples), int(current.datasets[0].num_examples)
    if schema is None and test.alpha is None:
        schema = infer_schema(reference)
    unmatched: tuple[str, ...] = ()
    if schema is None:
        wanted = _all_features({name: feature for name, feature in before.items() if name in after})
        unmatched = tuple(sorted(before.keys() ^ after.keys()))
    else:
        wanted = _by_schema(schema, before, test.comparator)
    if not wanted:
        sides = (", ".join(sorted(side)) or "none" for side in (before, after))
        why = "the features of the reference are {}, those of the current rows are {}".format(*sides)
        if schema is not None:
            why = f"the schema has no {test.comparator}_comparator for a feature of the reference; freeze it with some"
        raise BadInput(f"nothing to compare: {why}")
    wanted = _with_choices(wanted, before, test.measures or {}, test.thresholds or {})
    for name, want in wanted.items():
        _check_feature(name, before[name], after)
        if test.alpha is None and want.threshold is None:
            raise BadInput(
                f"feature {name!r} has no fixed threshold, and alpha is None, so it could never drift; give "
                f"thresholds={{{name!r}: …}}, or an alpha"
            )
    results = {
        name: _test(want, (before[name], after[name]), rows, test.alpha, crc32(f"{test.seed} {name}".encode()))
        for name, want in wanted.items()
    }
    features = _decide(results, test)
    moved = [name for name, skew in features.items() if skew.drifted]
    moved.sort(key=lambda name: (not features[name].fault, -features[name].excess))
    verdict = STABLE
    if rows[1] < test.rows_needed:
        verdict = INSUFFICIENT
    elif moved:
        verdict = PIPELINE_FAULT if any(features[name].fault for name in moved) else DRIFT
    return SkewReport(verdict, tuple(moved), features, *rows, test.rows_needed, test.alpha, unmatched)


def _statistics(source: Any) -> Any:
    if type(source).__name__ == "DatasetFeatureStatisticsList":
        return source
    if isinstance(source, str | Path) and Path(source).suffix == ".pb":
        return load_statistics(Path(source))
    return generate_statistics(source, options=comparable_options())


def _all_features(before: Mapping[str, Any]) -> dict[str, _Wanted]:
    """Returns every feature with a distribution, and the measure that shows the smallest changes."""

    def measure(feature: Any) -> str:
        if vector_width(feature):
            return MEASURE
        is_spread = feature.WhichOneof("stats") == "num_stats" and not has_few_numbers(feature)
        return "kolmogorov_smirnov" if is_spread else OF_FEW

    return {
        name: _Wanted(measure(feature), None)
        for name, feature in before.items()
        if feature.WhichOneof("stats") in ("num_stats", "string_stats")
    }


def _by_schema(schema: Any, before: Mapping[str, Any], comparator: str) -> dict[str, _Wanted]:
    """Returns the features with a comparator of this kind, with its measure and threshold."""
    wanted = {}
    for feature in schema.feature:
        if feature.name not in before or not feature.HasField(f"{comparator}_comparator"):
            continue
        result = getattr(feature, f"{comparator}_comparator")
        divergence = result.jensen_shannon_divergence
        kind = before[feature.name].WhichOneof("stats")
        if vector_width(before[feature.name]):
            # TFDV has no measure of vectors; any comparator selects them.
            wanted[feature.name] = _Wanted(MEASURE, None)
        elif kind == "num_stats" and result.HasField("infinity_norm"):
            wanted[feature.name] = _Wanted("l_infinity", result.infinity_norm.threshold)
        elif kind == "num_stats" and result.HasField("jensen_shannon_divergence"):
            by_quantiles = divergence.source.type == type(divergence.source).QUANTILES
            measure = "jensen_shannon_quantiles" if by_quantiles else "jensen_shannon"
            wanted[feature.name] = _Wanted(measure, divergence.threshold)
        elif kind == "string_stats":
            for field, measure in (
                ("infinity_norm", "l_infinity"),
                ("jensen_shannon_divergence", "jensen_shannon"),
                ("normalized_abs_difference", "normalized_abs_difference"),
            ):
                if result.HasField(field):
                    wanted[feature.name] = _Wanted(measure, getattr(result, field).threshold)
                    break
    return wanted


def _with_choices(
    wanted: Mapping[str, _Wanted],
    before: Mapping[str, Any],
    measures: Mapping[str, str],
    thresholds: Mapping[str, float],
) -> dict[str, _Wanted]:
    chosen = dict(wanted)
    for argument, names in (("measures", measures), ("thresholds", thresholds)):
        for name in names:
            if name not in wanted:
                raise BadInput(f"{argument} names feature {name!r}, which is not compared; compared are {list(wanted)}")
    for name, measure in measures.items():
        is_number = before[name].WhichOneof("stats") == "num_stats"
        numeric = (*NUMERIC, OF_FEW) if has_few_numbers(before[name]) else NUMERIC
        known = (MEASURE,) if vector_width(before[name]) else numeric if is_number else CATEGORICAL
        if measure not in known:
            raise BadInput(f"measures[{name!r}] is {measure!r}, expected one of {', '.join(known)}")
        chosen[name] = _Wanted(measure, chosen[name].threshold if chosen[name].measure == measure else None)
    return {n: _Wanted(want.measure, thresholds.get(n, want.threshold)) for n, want in chosen.items()}


def _check_feature(name: str, before: Any, after: Mapping[str, Any]) -> None:
    if name not in after:
        raise BadInput(f"feature {name!r} is not among the current rows; there are {', '.join(sorted(after))}")
    types = type_name(before), type_name(after[name])
    # A feature without values has no type.
    valued = all(count_of_values(common_statistics(side)) for side in (before, after[name]))
    if valued and (types[0] != types[1] or before.WhichOneof("stats") != after[name].WhichOneof("stats")):
        raise BadInput(f"feature {name!r} is {types[1]} in the current rows, but {types[0]} in the reference")
    widths = vector_width(before), vector_width(after[name])
    if valued and any(widths):
        if widths[0] != widths[1]:
            report = [f"vectors of {width} numbers" if width else "no vectors of one length" for width in widths]
            raise BadInput(f"feature {name!r} has {report[1]} in the current rows, but {report[0]} in the reference")
        for side, feature in (("reference", before), ("current rows", after[name])):
            if sampled_vectors(feature) is None:
                raise BadInput(
                    f"feature {name!r}: the statistics of the {side} hold no sample of its vectors, without which they "
                    "cannot be compared; compute them again with the statistics stage or generate_statistics"
                )


def _test(want: _Wanted, features: tuple[Any, Any], rows: tuple[int, int], alpha: float | None, seed: int) -> _Tested:
    import numpy as np

    from airflow_hops.ml.monitoring.skew.significance import (
        judge_lengths,
        judge_numbers,
        judge_values,
        judge_vectors,
        missing_p_value,
    )

    missing = tuple(1.0 - present_share(side, n) for side, n in zip(features, rows, strict=True))
    counts = [(round(share * n), n) for share, n in zip(missing, rows, strict=True)]
    missing_p = None if alpha is None or not all(rows) else missing_p_value(*counts)
    one, other = distribution(features[0]), distribution(features[1])
    want = replace(want, measure=measurable(want.measure, one, other))
    result = _Tested(want, features, (one, other), (missing[0], missing[1]), missing_p)
    if (both := _lengths(features)) is not None:
        moved, p = judge_lengths(*both)
        result = replace(result, lengths=both, lengths_moved=moved, lengths_p=None if alpha is None else p)
    if one is None or other is None:
        return result
    result = replace(result, score=(scored := score(one, other, want.measure)))
    if alpha is None:
        return result
    matters, random = want.threshold is None or scored > want.threshold, np.random.default_rng(seed)
    if isinstance(one, Numbers) and isinstance(other, Numbers):
        judgement = judge_numbers(one, other, want.measure, random, matters=matters)
    elif isinstance(one, Values) and isinstance(other, Values):
        judgement = judge_values(one, other, want.measure, random, matters=matters)
    else:
        assert isinstance(one, Vectors) and isinstance(other, Vectors)
        judgement = judge_vectors(one, other, random)
    return replace(result, judgement=judgement)


def _lengths(features: tuple[Any, Any]) -> tuple[Numbers, Numbers] | None:
    """Returns the numbers of values per row, unless all rows of both sides have the same."""
    common = [common_statistics(feature) for feature in features]
    limits = {number for each in common for number in (each.min_num_values, each.max_num_values)}
    one, other = lengths(features[0]), lengths(features[1])
    return None if len(limits) == 1 or one is None or other is None else (one, other)


def _decide(result: Mapping[str, _Tested], test: SkewTest) -> dict[str, FeatureSkew]:
    from scipy.stats import false_discovery_control

    alpha = test.alpha
    tests = [(n, "value", f.judgement.p_value) for n, f in result.items() if f.judgement]
    tests += [(n, "missing", f.missing_p) for n, f in result.items() if f.missing_p is not None]
    tests += [(n, "lengths", f.lengths_p) for n, f in result.items() if f.lengths_p is not None]
    adjusted = dict(
        zip([t[:2] for t in tests], map(float, false_discovery_control([t[2] for t in tests])), strict=True)
    )
    discoveries = max(1, sum(p <= alpha for p in adjusted.values())) if alpha else 1
    cut = alpha * discoveries / len(tests) if alpha and tests else None
    features = {
        name: _judged(each, {of: adjusted.get((name, of)) for of in ("value", "missing", "lengths")}, test, cut)
        for name, each in result.items()
    }
    moved = [n for n, skew in features.items() if skew.drifted or (alpha and skew.p_value and skew.p_value <= alpha)]
    for name, detail in swapped({n: result[n].distributions for n in moved}).items():
        features[name] = replace(features[name], drifted=True, cause="swapped", detail=detail)
    return features


def _judged(result: _Tested, p_values: Mapping[str, float | None], test: SkewTest, cut: float | None) -> FeatureSkew:
    import numpy as np

    p, missing_p, lengths_p = p_values["value"], p_values["missing"], p_values["lengths"]
    fixed, score, measure = result.wanted.threshold, result.score, result.wanted.measure
    if fixed is None and result.judgement is not None:
        score, measure = max(0.0, result.judgement.score), result.judgement.measure
    above = score is not None and (fixed is None or score > fixed)
    significant = above if test.alpha is None else score is not None and p is not None and p <= test.alpha
    missing_reference, missing_current = result.missing
    missing_moved = abs(missing_current - missing_reference) > test.missing_threshold
    missing_moved &= test.alpha is None or (missing_p is not None and missing_p <= test.alpha)
    lengths_moved = result.lengths_moved > test.missing_threshold
    lengths_moved &= test.alpha is None or (lengths_p is not None and lengths_p <= test.alpha)
    threshold = fixed
    if fixed is None and result.judgement is not None and cut is not None:
        threshold = result.judgement.critical_score(cut)
    one, other = result.distributions
    cause = detail = None
    if significant or missing_moved:
        cause, detail = cause_of(one, other, values_moved=significant, missing_moved=missing_moved)
    # A fault in some of the rows may stay below a fixed threshold, which is meant for real changes.
    values_moved = significant and (above or cause in FAULTS)
    if not (values_moved or missing_moved):
        cause = detail = None
    if lengths_moved and result.lengths is not None:
        # Histograms show the least share of rows with an empty list, which is missing like no list.
        empty = [float(each.curve.at(np.zeros((1, 1)))[0, 0]) for each in result.lengths]
        missing_reference, missing_current = (1 - (1 - m) * (1 - e) for m, e in zip(result.missing, empty, strict=True))
        emptied = abs(missing_current - missing_reference) > test.missing_threshold
        if cause is None:
            cause, _ = cause_of(one, other, values_moved=False, missing_moved=emptied)
            before, now = (each.mean for each in result.lengths)
            detail = f"a row has {now:.3g} values on average, and {before:.3g} in the reference"
    return FeatureSkew(
        measure=measure,
        score=_rounded(score),
        threshold=_rounded(threshold),
        drifted=values_moved or missing_moved or lengths_moved,
        missing_reference=round(missing_reference, 6),
        missing_current=round(missing_current, 6),
        p_value=p,
        missing_p_value=missing_p,
        cause=cause,
        detail=detail,
        scores={name: round(value, 6) for name, value in every_score(one, other).items()},
        histogram_reference=histogram(result.features[0]),
        histogram_current=histogram(result.features[1]),
        common_histogram=common_histogram(one, other),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
