"""Decides which features have drifted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scipy.stats import false_discovery_control

from airflow_hops.core.distances import SkewTest
from airflow_hops.ml.distances.causes import FAULTS, MOST_SWAPPED, cause_of, swapped
from airflow_hops.ml.distances.histogram import common_histogram
from airflow_hops.ml.distances.measures import DISTANCE, Comparison, other_scores
from airflow_hops.ml.distances.questions import INFINITE, LENGTHS, MISSING, OTHERS, SINGLE, VALUES, answers
from airflow_hops.ml.distances.report import FeatureSkew
from airflow_hops.ml.distances.sides import Distribution, Feature, Vectors
from airflow_hops.ml.distances.tfdv_measures import Measured
from airflow_hops.ml.distances.vectors import MEASURE
from airflow_hops.ml.distances.windows import Nearest
from airflow_hops.ml.distances.words import in_words

# False discoveries are controlled over all questions together (Benjamini and Hochberg): `cut` is the uncorrected
# p-value that just counts, from which the reported threshold is derived, so that score > threshold and significance
# agree. Swapped columns are looked for last, and only among features that moved, since each pair costs a comparison.


@dataclass(frozen=True)
class Judged:
    """A feature to decide about.

    Attributes:
        draft: Report of the feature, before the decision.
        answers: Distance and test of each question about it; empty without samples.
        threshold: Distance of the values above which it has drifted.
        read: Reads its values in the reference and in the current rows again, so that those of all features need not be
            in memory; None without samples.
        tfdv: TFDV's measure, which judges instead of the distance of the values.
        unit: Its unit, if the schema has it.
        nearest: By question, the distance to the most similar window of the reference; empty without windows.
    """

    draft: FeatureSkew
    answers: Mapping[str, Comparison]
    threshold: float
    read: Callable[[], Sequence[Feature]] | None = None
    tfdv: Measured | None = None
    unit: str = ""
    nearest: Mapping[str, Nearest] = field(default_factory=dict)

    @classmethod
    def of(cls, read: Callable[[], Sequence[Feature]], threshold: float, seed: int, **known: Any) -> Judged:
        """Compares a feature in both samples; ``known`` are further attributes."""
        one, other = read()
        comparisons = answers(one, other, seed)
        values, sides = comparisons.get(VALUES), (one.distribution, other.distribution)
        draft = FeatureSkew(
            measure=MEASURE if isinstance(one.distribution, Vectors) else DISTANCE,
            score=None,
            threshold=None,
            drifted=False,
            missing_reference=round(one.missing / max(1, one.rows), 6),
            missing_current=round(other.missing / max(1, other.rows), 6),
            summary=in_words(one, other, values.distance if values else 0.0),
            scores=other_scores(*sides),
            common_histogram=common_histogram(*sides),
        )
        return cls(draft, comparisons, threshold, read, **known)

    @classmethod
    def by_tfdv(cls, measured: Measured) -> Judged:
        """Returns a feature without samples, which TFDV's measure judges."""
        measure, _, threshold = measured
        draft = FeatureSkew(measure, None, None, drifted=False, missing_reference=0.0, missing_current=0.0)
        return cls(draft, {}, threshold, tfdv=measured)

    def distributions(self) -> tuple[Distribution | None, Distribution | None]:
        """Returns the values of both sides."""
        if self.read is None:
            return None, None
        one, other = self.read()
        return one.distribution, other.distribution

    def is_usual(self, question: str) -> bool:
        """Returns whether windows of the reference differ as much."""
        distance, allowed = self.nearest.get(question, (0.0, 0.0))
        return bool(self.nearest) and distance <= allowed


def decide(judged: Mapping[str, Judged], test: SkewTest) -> dict[str, FeatureSkew]:
    """Decides which features have drifted, with ``alpha`` bounding the share of false discoveries among them."""
    asked = [(name, question) for name, each in judged.items() for question in each.answers]
    p_values, cut = dict[tuple[str, str], float](), None
    if test.alpha is not None and asked:
        adjusted = false_discovery_control([judged[name].answers[question].p_value for name, question in asked])
        p_values = dict(zip(asked, map(float, adjusted), strict=True))
        cut = test.alpha * max(1, int((adjusted <= test.alpha).sum())) / len(asked)
    features = {
        name: _judge(
            name, each, {question: p_values.get((name, question), 0.0) for question in each.answers}, test, cut
        )
        for name, each in judged.items()
    }
    moved = [name for name, skew in features.items() if judged[name].read and _significant(skew, test)]
    pairs = {name: judged[name].distributions() for name in moved[:MOST_SWAPPED]}
    for name, detail in swapped(pairs).items():
        features[name] = replace(features[name], drifted=True, cause="swapped", detail=detail)
    return dict(sorted(features.items(), key=lambda item: item[1].rank))


def _significant(skew: FeatureSkew, test: SkewTest) -> bool:
    return skew.drifted or (test.alpha is not None and skew.p_value is not None and skew.p_value <= test.alpha)


def _judge(name: str, judged: Judged, p_values: Mapping[str, float], test: SkewTest, cut: float | None) -> FeatureSkew:
    """Judges a feature, given the corrected p-value of each question; ``cut`` is the uncorrected level."""

    def significant(question: str) -> bool:
        return p_values.get(question, 2.0) <= (test.alpha or 1.0) and not judged.is_usual(question)

    def moved(question: str, threshold: float) -> bool:
        return significant(question) and judged.answers[question].distance > threshold

    score: float | None
    values, tfdv = judged.answers.get(VALUES), judged.tfdv
    if tfdv is not None:
        measure, score, threshold = tfdv
    else:
        measure, threshold = judged.draft.measure, judged.threshold
        score = None if values is None else max(0.0, values.distance)
        if VALUES in judged.nearest:
            score, allowed = judged.nearest[VALUES]
            threshold = max(threshold, allowed)
        elif values is not None and cut is not None:
            threshold = max(threshold, values.by_chance(cut))
        if score is not None and score <= threshold and moved(SINGLE, judged.threshold):
            score, threshold = judged.answers[SINGLE].distance, judged.threshold
    of_values = [question for question in (VALUES, SINGLE, OTHERS) if question in p_values]
    p_value = min((p_values[question] for question in of_values), default=None)
    changed = not judged.answers or any(map(significant, of_values))
    above = score is not None and score > threshold
    if tfdv is None and score is not None and not changed:
        threshold = max(threshold, score)  # both agree, even if a p-value is estimated
    missing_moved = moved(MISSING, test.missing_threshold)
    other_moved = moved(INFINITE, test.missing_threshold) or moved(LENGTHS, test.missing_threshold)
    cause = detail = None
    if judged.read is not None and ((changed and values is not None) or missing_moved or other_moved):
        cause, detail = cause_of(
            *judged.distributions(), name=name, unit=judged.unit, values_moved=changed, missing_moved=missing_moved
        )
    # A fault in some of the rows may stay below the threshold, which is meant for real changes.
    drifted = (changed and (above or cause in FAULTS)) or missing_moved or other_moved
    if not drifted:
        cause = detail = None
    elif cause is None:
        cause = "covariate_shift"
    return replace(
        judged.draft,
        measure=measure,
        score=_rounded(score),
        threshold=_rounded(threshold),
        drifted=drifted,
        p_value=p_value if test.alpha is not None else None,
        missing_p_value=p_values.get(MISSING) if test.alpha is not None else None,
        cause=cause,
        detail=detail,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
