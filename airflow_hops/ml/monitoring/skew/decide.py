"""Decides which features have drifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scipy.stats import false_discovery_control

from airflow_hops.core.contract.skew import SkewTest
from airflow_hops.ml.monitoring.skew.causes import FAULTS, cause_of, swapped
from airflow_hops.ml.monitoring.skew.distances import DISTANCE, Comparison, other_scores
from airflow_hops.ml.monitoring.skew.histogram import common_histogram
from airflow_hops.ml.monitoring.skew.questions import INFINITE, LENGTHS, MISSING, OTHERS, SINGLE, VALUES
from airflow_hops.ml.monitoring.skew.report import FeatureSkew
from airflow_hops.ml.monitoring.skew.sides import Feature, Vectors
from airflow_hops.ml.monitoring.skew.tfdv_measures import Measured
from airflow_hops.ml.monitoring.skew.vectors import MEASURE
from airflow_hops.ml.monitoring.skew.windows import Nearest
from airflow_hops.ml.monitoring.skew.words import in_words


@dataclass(frozen=True)
class Judged:
    """A feature to decide about.

    Attributes:
        pair: Its values in the reference and in the current rows; None without samples.
        answers: Distance and test of each question about it.
        tfdv: TFDV's measure, which judges instead of the distance of the values.
        threshold: Distance of the values above which it has drifted.
        nearest: By question, the distance to the most similar window of the reference; empty without windows.
    """

    pair: Sequence[Feature] | None
    answers: Mapping[str, Comparison]
    tfdv: Measured | None
    threshold: float
    nearest: Mapping[str, Nearest] = field(default_factory=dict)

    def is_usual(self, question: str) -> bool:
        """Returns whether windows of the reference differ as much."""
        return bool(self.nearest) and not (question in self.nearest and self.nearest[question].is_beyond)


def decide(judged: Mapping[str, Judged], test: SkewTest) -> dict[str, FeatureSkew]:
    """Decides which features have drifted, with ``alpha`` bounding the share of false discoveries among them."""
    asked = [(name, question) for name, each in judged.items() for question in each.answers]
    p_values, cut = dict[tuple[str, str], float](), None
    if test.alpha is not None and asked:
        adjusted = false_discovery_control([judged[name].answers[question].p_value for name, question in asked])
        p_values = dict(zip(asked, map(float, adjusted), strict=True))
        cut = test.alpha * max(1, int((adjusted <= test.alpha).sum())) / len(asked)
    features = {
        name: _judge(each, {question: p_values.get((name, question), 0.0) for question in each.answers}, test, cut)
        for name, each in judged.items()
    }
    moved = {
        n: (each.pair[0].distribution, each.pair[1].distribution)
        for n, each in judged.items()
        if each.pair and _significant(features[n], test)
    }
    for name, detail in swapped(moved).items():
        features[name] = replace(features[name], drifted=True, cause="swapped", detail=detail)
    return dict(sorted(features.items(), key=lambda item: item[1].rank))


def _significant(skew: FeatureSkew, test: SkewTest) -> bool:
    return skew.drifted or (test.alpha is not None and skew.p_value is not None and skew.p_value <= test.alpha)


def _judge(judged: Judged, p_values: Mapping[str, float], test: SkewTest, cut: float | None) -> FeatureSkew:
    """Judges a feature, given the corrected p-value of each question; ``cut`` is the uncorrected one that counts."""

    def significant(question: str) -> bool:
        return p_values.get(question, 2.0) <= (test.alpha or 1.0) and not judged.is_usual(question)

    def moved(question: str, threshold: float) -> bool:
        return significant(question) and judged.answers[question].distance > threshold

    score: float | None
    values, tfdv = judged.answers.get(VALUES), judged.tfdv
    if tfdv is not None:
        measure, score, threshold = tfdv.measure, float(tfdv.score), tfdv.threshold
    else:
        is_vector = judged.pair is not None and isinstance(judged.pair[0].distribution, Vectors)
        measure, threshold = MEASURE if is_vector else DISTANCE, judged.threshold
        score = None if values is None else max(0.0, values.distance)
        if VALUES in judged.nearest:
            score, threshold = judged.nearest[VALUES].distance, max(threshold, judged.nearest[VALUES].allowed)
        elif values is not None and cut is not None:
            threshold = max(threshold, values.by_chance(cut))
        if score is not None and score <= threshold and moved(SINGLE, judged.threshold):
            score, threshold = judged.answers[SINGLE].distance, judged.threshold
    of_values = [question for question in (VALUES, SINGLE, OTHERS) if question in p_values]
    p_value = min((p_values[question] for question in of_values), default=None)
    changed = not judged.answers or any(map(significant, of_values))
    above = score is not None and score > threshold
    if tfdv is None and score is not None and not changed:
        threshold = max(threshold, score)  # both say the same, also where a p-value is estimated
    missing_moved = moved(MISSING, test.missing_threshold)
    other_moved = moved(INFINITE, test.missing_threshold) or moved(LENGTHS, test.missing_threshold)
    one, other = (None, None) if judged.pair is None else (side.distribution for side in judged.pair)
    cause = detail = None
    if judged.pair is not None and ((changed and values is not None) or missing_moved or other_moved):
        cause, detail = cause_of(one, other, values_moved=changed, missing_moved=missing_moved)
    # A fault in some of the rows may stay below the threshold, which is meant for real changes.
    drifted = (changed and (above or cause in FAULTS)) or missing_moved or other_moved
    if not drifted:
        cause = detail = None
    elif cause is None:
        cause = "covariate_shift"
    shares = [side.missing / max(1, side.rows) for side in judged.pair or ()] or [0.0, 0.0]
    return FeatureSkew(
        measure=measure,
        score=_rounded(score),
        threshold=_rounded(threshold),
        drifted=drifted,
        missing_reference=round(shares[0], 6),
        missing_current=round(shares[1], 6),
        p_value=p_value if test.alpha is not None else None,
        missing_p_value=p_values.get(MISSING) if test.alpha is not None else None,
        cause=cause,
        detail=detail,
        summary=None
        if judged.pair is None
        else in_words(judged.pair[0], judged.pair[1], values.distance if values else 0.0),
        scores=other_scores(one, other),
        common_histogram=common_histogram(one, other),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
