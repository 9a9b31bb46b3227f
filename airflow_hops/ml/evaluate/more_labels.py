"""Evaluates further labels and checks their minimums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.evaluate.blessing import BlessingRule, check_minimum
from airflow_hops.ml.evaluate.by_split import SameLabel, figures_by_split
from airflow_hops.ml.metrics.class_names import CANDIDATE, CHAMPION, ClassNames, class_names
from airflow_hops.ml.metrics.judging import Judge, Scores
from airflow_hops.ml.metrics.scoring import ScoredModel


class FurtherLabel(NamedTuple):
    """The evaluation of a further label, with its figures by split."""

    target: Target
    rule: BlessingRule
    figures: Mapping[str, Scores]


MoreLabels = dict[str, FurtherLabel]
"""Evaluations of further labels, by label."""


def minimum_by_label(
    minimum: Mapping[str, float] | None, target: Target, custom: Collection[str]
) -> tuple[Mapping[str, float] | None, dict[str, dict[str, float]]]:
    """Separates the label's minimums (None if it has none) from those of further labels (``minutes/rmse``), by label.

    Names of custom metrics may contain a slash, too.

    Raises:
        BadInput: a name refers to an unknown label.
    """
    own: dict[str, float] = {}
    more: dict[str, dict[str, float]] = {each.label: {} for each in target.more}
    for name, bound in (minimum or {}).items():
        label, slash, metric = name.rpartition("/")
        if slash and label in more:
            more[label][metric] = bound
        elif slash and name not in custom:
            labels = ", ".join(map(repr, more)) or "none"
            raise BadInput(f"minimum names {name!r}, but the further labels of the examples are {labels}")
        else:
            own[name] = bound
    return (own or None) if minimum else minimum, more


def evaluate_more_labels(
    models: Mapping[str, ScoredModel],
    properties: Mapping[str, ModelProperties],
    target: Target,
    files: Mapping[str, Sequence[Path]],
    slices: Sequence[str],
    minimum: Mapping[str, Mapping[str, float]],
) -> tuple[MoreLabels, bool, list[str]]:
    """Evaluates models on the further labels of examples; reads the rows again for each.

    The champion's figures are reported if the two are comparable, but do not affect the result.

    Args:
        models: The candidate, and the champion if one exists.
        properties: Properties of the models' artifacts.
        target: The labels of the examples.
        files: Parquet files of examples by split.
        slices: Columns that define slices.
        minimum: Worst allowed figure by metric, on every split, by label.

    Returns:
        The results, whether all minimums are met, and the reasons.

    Raises:
        BadInput: a label with a minimum is not predicted by the model, a metric is unknown, or as for the first label.
    """
    labels: MoreLabels = {}
    blessed, reasons = True, list[str]()
    for label in target.more:
        prefix, asked = target.output_prefix(label.label), minimum[label.label]
        candidate = models[CANDIDATE].head(prefix)
        if candidate is None:
            lacks = f"{label.label}: the model has no output for it ({models[CANDIDATE].path})"
            if asked:
                raise BadInput(f"{lacks}, and minimum asks for {', '.join(asked)}; train a model that predicts it")
            reasons.append(f"{label.label}: not evaluated, as the model does not predict it")
            continue
        of_label = {name: each.of_label(label.label) for name, each in properties.items()}
        try:
            heads, names, not_shown = _heads(candidate, models.get(CHAMPION), prefix, of_label, label)
            rule = BlessingRule.of(label.problem, {}, None, asked, None, None)
            judge = Judge(heads[CANDIDATE].problem, rule.metric, names.of_candidate)
            weighted = replace(label, weight=target.weight)
            figures, not_compared, unscored = figures_by_split(heads, names, judge, files, weighted, slices)
        except BadInput as error:
            if isinstance(error, SameLabel) and not asked:
                reasons.append(f"{label.label}: not evaluated: {error}")
                continue
            raise BadInput(f"further label {label.label!r}: {error}") from None
        met, checks = check_minimum(rule, {split: scores.candidate for split, scores in figures.items()})
        blessed &= met
        not_compared += [f"{split}: not compared: {why}" for split, why in unscored.items()]
        sentences = (*checks, *not_shown, *not_compared)
        reasons += [f"{label.label}: {sentence}" for sentence in sentences]
        labels[label.label] = FurtherLabel(label, rule, figures)
    return labels, blessed, reasons


def _heads(
    candidate: ScoredModel,
    champion: ScoredModel | None,
    prefix: str,
    properties: Mapping[str, ModelProperties],
    label: Target,
) -> tuple[dict[str, ScoredModel], ClassNames, list[str]]:
    """Returns the outputs to score for a label, their classes, and why the champion is missing."""
    heads, reasons = {CANDIDATE: candidate}, []
    if champion is not None:
        try:
            theirs = champion.head(prefix)
            if theirs is not None:
                both = {**heads, CHAMPION: theirs}
                return both, class_names(both, properties, label), []
            reasons.append("not compared, as the champion does not predict it")
        except BadInput as error:
            reasons.append(f"not compared with the champion: {error}")
    return heads, class_names(heads, properties, label), reasons
