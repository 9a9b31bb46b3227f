"""Decides which features have drifted, and describes the change: in words, and on the same buckets for pictures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import false_discovery_control

from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.distances.causes import FAULTS, MOST_SWAPPED, as_numbers, cause_of, in_text, swapped, unusual
from airflow_hops.ml.distances.measures import DISTANCE, Comparison, other_scores
from airflow_hops.ml.distances.questions import INFINITE, LENGTHS, MISSING, OTHERS, SINGLE, VALUES, answers
from airflow_hops.ml.distances.report import FeatureSkew
from airflow_hops.ml.distances.sides import Array, Distribution, Feature, Kinds, Numbers, Vectors
from airflow_hops.ml.distances.tfdv_measures import Measured
from airflow_hops.ml.distances.vectors import MEASURE
from airflow_hops.ml.distances.windows import Nearest

BUCKETS = 20
_OUTER = 0.005
"""Share of a side's numbers that the outer buckets hold, at each end."""

_LEAST = 0.05
"""Smallest change that is mentioned besides the largest."""
_ALIKE = 0.15
"""Largest difference of the quartiles' ratios, or shifts, at which all values have changed alike."""

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
    def of(
        cls,
        read: Callable[[], Sequence[Feature]],
        threshold: float,
        seed: int,
        *,
        described: bool = True,
        **known: Any,
    ) -> Judged:
        """Compares a feature in both samples; ``known`` are further attributes.

        Unless it is ``described``, the report has no words, no other scores and no histogram, which take the most time.
        """
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
        )
        if described:
            draft = replace(
                draft,
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


def decide(
    judged: Mapping[str, Judged], test: SkewTest, only: Collection[str] | None = None, *, explained: bool = True
) -> dict[str, FeatureSkew]:
    """Decides which features have drifted, with ``alpha`` bounding the share of false discoveries among them.

    Those of ``only``, by default all, are decided about; the others count for the share of false discoveries. Unless
    they are to be ``explained``, the cause, which takes the most time, is looked for only where it decides.
    """
    asked = [(name, question) for name, each in judged.items() for question in each.answers]
    p_values, cut = dict[tuple[str, str], float](), None
    if test.alpha is not None and asked:
        adjusted = false_discovery_control([judged[name].answers[question].p_value for name, question in asked])
        p_values = dict(zip(asked, map(float, adjusted), strict=True))
        cut = test.alpha * max(1, int((adjusted <= test.alpha).sum())) / len(asked)
    features = {
        name: _judge(name, each, {asks: p_values.get((name, asks), 0.0) for asks in each.answers}, test, cut, explained)
        for name, each in judged.items()
        if only is None or name in only
    }
    moved = [name for name, skew in features.items() if judged[name].read and _significant(skew, test)]
    if not explained and any(skew.drifted for skew in features.values()):
        moved = []
    pairs = {name: judged[name].distributions() for name in moved[:MOST_SWAPPED]}
    for name, detail in swapped(pairs).items():
        features[name] = replace(features[name], drifted=True, cause="swapped", detail=detail)
    return dict(sorted(features.items(), key=lambda item: item[1].rank))


def _significant(skew: FeatureSkew, test: SkewTest) -> bool:
    return skew.drifted or (test.alpha is not None and skew.p_value is not None and skew.p_value <= test.alpha)


def _judge(
    name: str, judged: Judged, p_values: Mapping[str, float], test: SkewTest, cut: float | None, explained: bool
) -> FeatureSkew:
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
    is_certain = (changed and above) or missing_moved or other_moved
    has_cause = judged.read is not None and ((changed and values is not None) or is_certain)
    if has_cause and (explained or not is_certain):
        cause, detail = cause_of(
            *judged.distributions(), name=name, unit=judged.unit, values_moved=changed, missing_moved=missing_moved
        )
    # A fault in some of the rows may stay below the threshold, which is meant for real changes.
    drifted = is_certain or (changed and cause in FAULTS)
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


def in_words(reference: Feature, current: Feature, distance: float) -> str:
    """Describes the largest change, such as "about 30% larger than in the reference".

    Args:
        reference: The feature in the reference.
        current: The feature in the current rows.
        distance: Distance of the values.
    """
    old, new, sides = reference.distribution, current.distribution, (reference, current)
    missing = [side.missing / max(1, side.rows) for side in sides]
    if new is None:
        return "no values"
    if old is None:
        return f"values in {_percent(1 - missing[1])} of the rows, none in the reference"
    changes = [(distance, _of_values(old, new))]
    changes.append((abs(missing[1] - missing[0]), f"missing in {_both(missing)}"))
    infinite = [side.infinite / max(1, side.rows) for side in sides]
    changes.append((abs(infinite[1] - infinite[0]), f"infinite in {_both(infinite)}"))
    if len(reference.lengths) and len(current.lengths):
        means = [float(side.lengths.mean()) for side in sides]
        change = abs(means[1] - means[0]) / max(*means, 1e-9)
        changes.append((change, f"{means[1]:.3g} values per row, {means[0]:.3g} in the reference"))
    first, *others = sorted(changes, key=lambda change: -change[0])
    return "; ".join([first[1], *(words for change, words in others if change >= _LEAST)])


def _of_values(old: Distribution, new: Distribution) -> str:
    one, other = as_numbers(old), as_numbers(new)
    if one is not None and other is not None:
        return _of_numbers(one, other)
    if isinstance(old, Kinds) and isinstance(new, Kinds):
        values = dict.fromkeys([*old.counts, *new.counts])
        value = max(values, key=lambda each: abs(new.share(each) - old.share(each)))
        return f"{in_text(value)!r} in {_both([old.share(value), new.share(value)])}"
    assert isinstance(old, Vectors) and isinstance(new, Vectors)
    norms = [float(np.median(side.norms)) for side in (old, new)]
    return f"median norm {_number(norms[1])}, {_number(norms[0])} in the reference"


def _both(shares: list[float]) -> str:
    return f"{_percent(shares[1])} of the rows, {_percent(shares[0])} in the reference"


def _of_numbers(old: Numbers, new: Numbers) -> str:
    others = unusual(old, new)
    prefix = ""
    if others is not None:
        prefix = f"values other than {_number(old.usual[0])}: "
        old, new = others
    quartiles, after = (side.quantiles(np.array([0.25, 0.5, 0.75])) for side in (old, new))
    if (quartiles != 0).all() and (np.sign(quartiles) == np.sign(after)).all():
        ratios = after / quartiles
        if np.ptp(ratios) <= _ALIKE * abs(ratios[1] - 1) and abs(ratios[1] - 1) >= 0.005:
            return f"{prefix}{_times(float(np.exp(np.log(ratios).mean())))} in the reference"
    return f"{prefix}median {_number(after[1])}, {_number(quartiles[1])} in the reference"


def _times(ratio: float) -> str:
    if ratio >= 2:
        return f"about {ratio:.3g} times as large as"
    return f"about {_percent(abs(ratio - 1))} {'larger' if ratio > 1 else 'smaller'} than"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else "100%" if share >= 0.9995 else f"{100 * share:.1f}%"


def common_histogram(reference: Distribution | None, current: Distribution | None) -> list[list[object]]:
    """Returns shares by bucket: ``[low, high, reference, current]``, or ``[value, reference, current]`` for text.

    Numbers get equally wide buckets; the first and the last also count outliers, so that these do not widen the range;
    integers of a small range get one each; text its most frequent values; vectors their norms.
    """
    if reference is None or current is None:
        return []
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        return _buckets(np.sort(reference.norms), np.sort(current.norms))
    one, other = as_numbers(reference), as_numbers(current)
    if one is not None and other is not None:
        return _buckets(one.values, other.values)
    if isinstance(reference, Kinds) and isinstance(current, Kinds):
        shares = {v: (reference.share(v), current.share(v)) for v in {**reference.counts, **current.counts}}
        most = sorted(shares, key=lambda value: (-max(shares[value]), value))[:BUCKETS]
        return [[in_text(value), *(round(share, 6) for share in shares[value])] for value in most]
    return []


def _buckets(reference: Array, current: Array) -> list[list[object]]:
    ends = [side[[int(_OUTER * len(side)), len(side) - 1 - int(_OUTER * len(side))]] for side in (reference, current)]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    if low == high:
        return [[low, high, 1.0, 1.0]]
    if not np.isfinite(high - low):
        return []
    edges = np.linspace(low, high, BUCKETS + 1)
    shares = [np.histogram(np.clip(side, low, high), edges)[0] / len(side) for side in (reference, current)]
    return [
        [float(cell) for cell in row] for row in np.stack([edges[:-1], edges[1:], *(s.round(6) for s in shares)], 1)
    ]
