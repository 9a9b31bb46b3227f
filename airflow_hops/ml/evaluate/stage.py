"""Evaluates an exported model on raw examples, compares it with the champion and decides on its blessing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import REPORT_FILE, EvaluationReport, LabelReport, ModelReference
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.models.model_record import ServedVersion, read_record
from airflow_hops.core.names import check_known
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.ml.evaluate.blessing import BlessingRule, bless
from airflow_hops.ml.evaluate.by_split import figures_by_split
from airflow_hops.ml.evaluate.more_labels import evaluate_more_labels, minimum_by_label
from airflow_hops.ml.metrics.class_names import CANDIDATE, CHAMPION, ClassNames, class_names
from airflow_hops.ml.metrics.custom_metrics import custom_metrics
from airflow_hops.ml.metrics.judging import METRICS, Judge, Scores
from airflow_hops.ml.metrics.leakage import TELLS, repeats_label, score_alone
from airflow_hops.ml.metrics.metrics import Metrics
from airflow_hops.ml.metrics.scoring import ScoredModel, score
from airflow_hops.ml.model_server.request_inputs import other_types, request_inputs
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import log_evaluation

log = logging.getLogger(__name__)

NOT_SYNCHRONIZED = (
    "the model's property 'synchronized' is not true: it is unknown whether the ranks that trained it ended with "
    "the same weights; train it with HorovodTrainOperator"
)


def run(
    context: StepContext,
    *,
    model_name: str,
    splits: Sequence[str] | None = None,
    slices: Sequence[str] = (),
    metric: str | None = None,
    minimum: Mapping[str, float] | None = None,
    max_regression: float | Mapping[str, float] | None = None,
    min_improvement: float | None = 0.0,
    metrics: Mapping[str, Sequence[str]] | None = None,
    better_than_constant: bool = True,
) -> Artifact:
    """Writes the artifact ``evaluation``, blessed or not.

    A model is never blessed if its training did not confirm that the ranks ended with the same weights. Parameters are
    those of ``EvaluateOperator``. Inputs are ``model`` and ``examples``.

    Raises:
        BadInput: model and examples do not match, no split can be scored, or all labels of the first split are equal.
    """
    model, examples = context.input("model"), context.input("examples")
    target = ExamplesProperties.of(examples).target
    minimum, of_labels = minimum_by_label(minimum, target, metrics or ())
    splits = _splits(splits, examples)
    for split in max_regression if isinstance(max_regression, Mapping) else ():
        check_known("a split of max_regression", split, splits)
    folder = context.local("examples")
    files = {split: example_files(folder, split) for split in splits}
    trained = context.store.manifest(model.uri)
    properties = {CANDIDATE: ModelProperties.of(trained)}
    models = {CANDIDATE: ScoredModel(model_folder(context.store, model))}
    reasons: list[str] = []
    champion = read_record(context.store, model_name).champion
    number = champion.version or None if champion else None
    is_champion = champion is not None and champion.fingerprint == model.fingerprint
    if champion is not None and not is_champion:
        path, properties[CHAMPION] = champion_model(context, champion)
        models[CHAMPION] = ScoredModel(path)
        others = other_types(request_inputs(path), request_inputs(models[CANDIDATE].path))
        reasons += [f"the model {other}, unlike the champion: it cannot be its canary" for other in others]
    names = class_names(models, properties, target)
    problem = models[CANDIDATE].problem
    custom = custom_metrics(metrics, {each.name for each in fields(METRICS[problem].figures)})
    rule = BlessingRule.of(problem, custom, metric, minimum, max_regression, min_improvement, better_than_constant)
    judge = Judge(problem, rule.metric, names.of_candidate, custom)
    mine, theirs = (names.models.get(name) for name in (CANDIDATE, CHAMPION))
    if problem == BINARY and mine and theirs and mine != theirs:
        reasons.append(
            f"the model gives the probability of {mine[1]!r}, and the champion that of {theirs[1]!r}: clients must "
            "take this into account"
        )
    figures, not_compared, unscored = figures_by_split(models, names, judge, files, target, slices, context.progress)
    reasons += not_compared
    more, all_met, further_reasons = evaluate_more_labels(models, properties, target, files, slices, of_labels)
    if is_champion and champion is not None:
        blessed, reasons = False, ["the model is the champion already" + (f" (version {number})" if number else "")]
    else:
        candidates, champions, gains = {split: figures[split].candidate for split in splits}, None, None
        if CHAMPION in models:
            champions = {split: figures[split].champion for split in splits}
            gains = {split: unscored.get(split, figures[split].gain) for split in splits}
        blessed, checks = bless(rule, candidates, gains, champions)
        parts = sorted([(blessed, checks), (all_met, further_reasons)], key=lambda part: part[0])
        reasons = [*(sentence for _, sentences in parts for sentence in sentences), *reasons]
        blessed &= all_met
    everything = {path.name: sorted(path.glob("*.parquet")) for path in folder.iterdir()}
    warnings = [
        warning
        for split in splits
        for warning in warn_if_too_good(
            problem, split, figures[split].candidate, everything, target.label, list(models[CANDIDATE].inputs)
        )
    ]
    reasons = [*warnings, *reasons] if blessed else [reasons[0], *warnings, *reasons[1:]]
    if properties[CANDIDATE].synchronized is not True:
        blessed = False
        reasons.insert(0, NOT_SYNCHRONIZED)
    for reason in reasons:
        log.log(logging.WARNING if reason.startswith(WARNING) else logging.INFO, "%s", reason)
    log.info("%s", "Blessed" if blessed else "Not blessed")
    report = EvaluationReport(
        blessed=blessed,
        reasons=tuple(reasons),
        model_name=model_name,
        candidate=ModelReference(model.uri, model.fingerprint),
        champion=ModelReference(champion.model.uri, champion.fingerprint, number) if champion else None,
        rule=rule.to_dict(),
        problem=problem,
        label=target.label,
        splits={split: scores.report() for split, scores in figures.items()},
        more_labels={
            label: LabelReport(
                each.target.problem,
                each.rule.to_dict(),
                {split: scores.report() for split, scores in each.figures.items()},
            )
            for label, each in more.items()
        }
        or None,
    )
    compared = {} if champion is None or is_champion else {COMPARED: champion.model}
    with context.output(**compared) as writer:
        (writer.path / REPORT_FILE).write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False))
        evaluation = writer.commit(
            rows={split: RowCounts(figures[split].rows, figures[split].rows) for split in splits},
            metrics={
                **_metrics(figures, rule.higher_is_better),
                **{
                    name: value
                    for label, each in more.items()
                    for name, value in _metrics(each.figures, each.rule.higher_is_better, f"{label}/").items()
                },
            },
            properties=report.properties.to_dict(),
        )
    log_evaluation(context.store, context.spec.services.get("tracking_uri", ""), model, trained, evaluation)
    return evaluation


def evaluate_model(
    folder: Path, parquet_files: Sequence[Path], label: str, slices: Sequence[str] = (), weight: str | None = None
) -> dict[str, Any]:
    """Computes the metrics of one exported model of any format on raw examples.

    ``slices`` are the columns that define slices, ``weight`` is the weight column, if any.

    Returns:
        Metrics of the model's problem by name (:mod:`~airflow_hops.ml.metrics.binary_metrics` and its siblings).
        ``slices`` holds a list of metrics per column, each with its ``value``, most frequent first.
    """
    model = ScoredModel(folder)
    scored = score({CANDIDATE: model}, parquet_files, label, weight=weight, slices=slices)
    rows = ClassNames(None, {}).align(scored, "the examples")
    scores = Judge(model.problem, METRICS[model.problem].metric).describe(rows)
    sliced = {
        column: [{"value": each.value, **each.candidate.to_dict()} for each in parts]
        for column, parts in (scores.slices or {}).items()
    }
    return {**scores.candidate.to_dict(), "slices": sliced}


def _splits(wanted: Sequence[str] | None, examples: Artifact) -> list[str]:
    if wanted is None:
        there = list(ExamplesProperties.of(examples).splits)
        wanted = [split for split in there if split != TRAIN]
        if not wanted:
            raise BadInput(
                f"{examples.uri}: no split to evaluate on; it has {', '.join(there) or 'none'}. Set eval_percent where "
                "the examples are prepared, or name splits"
            )
        log.info("Evaluating on the splits %s", ", ".join(wanted))
    if not wanted:
        raise BadInput("splits is empty; expected at least one split to evaluate on")
    return list(wanted)


def champion_model(context: StepContext, champion: ServedVersion) -> tuple[Path, ModelProperties]:
    """Returns the champion's model; if its artifact was replaced or deleted, the server's copy."""
    try:
        folder = model_folder(context.store, champion.model)
        return folder, ModelProperties.of(context.store.manifest(champion.model.uri))
    except BadInput as error:
        served = Path(champion.serving_path)
        if not champion.serving_path or not served.is_dir():
            raise
        log.info("The champion is read from %s: %s", served, error)
        return served, ModelProperties.of(champion.model)


def _metrics(figures: Mapping[str, Scores], names: Iterable[str], label: str = "") -> dict[str, float]:
    """Returns ``eval_auc``, ``champion_eval_auc``, ``eval_gain`` and so on, without undefined ones.

    ``label`` is the name of a further label and a slash, as in ``eval_minutes/rmse``.
    """
    metrics: dict[str, float] = {}
    for split, scores in figures.items():
        for prefix, scored in (("", scores.candidate), ("champion_", scores.champion)):
            values = {name: scored.value(name) for name in names} if scored is not None else {}
            metrics |= {f"{prefix}{split}_{label}{name}": value for name, value in values.items() if value is not None}
        if scores.gain is not None:
            metrics[f"{split}_{label}gain"] = scores.gain.difference
    return metrics


WARNING = "warning: "
"""Prefix of reasons that are warnings."""

_FEWEST_ROWS = 100
_FEWEST_OF_CLASS = 10
_MOST_NAMED = 5


def warn_if_too_good(
    problem: Problem,
    split: str,
    metrics: Metrics,
    files: Mapping[str, Sequence[Path]],
    label: str,
    features: Sequence[str],
) -> list[str]:
    """Returns a warning if a model's main metric is at least ``TELLS``, naming the features that reach it alone.

    On few rows, where an honest model may be perfect, only such features are reason to warn; the rows of all splits,
    ``files``, show whether there are any.
    """
    name = {BINARY: "auc", MULTICLASS: "accuracy"}.get(problem, "r2")
    value = metrics.value(name)
    if value is None or value < TELLS:
        return []
    few = metrics.rows < _FEWEST_ROWS
    if problem == BINARY:
        positives = int(metrics.value("positives") or 0)
        few |= min(positives, metrics.rows - positives) < _FEWEST_OF_CLASS
    read = [file for group in files.values() for file in group] if few else files[split]
    alone = _features_that_tell(problem, read, label, features)
    if few and not alone:
        return []
    which = (
        f"{', '.join(map(repr, alone[:_MOST_NAMED]))} alone predict{'s' * (len(alone) == 1)} the label: leave out what "
        "is not known when a prediction is asked for"
        if alone
        else "check that no feature is known only with the label, and that no rows of training are among these"
    )
    return [f"{WARNING}{split}: {name} {value:.4f} is too good to be true of most tasks; {which}"]


def _features_that_tell(problem: Problem, files: Sequence[Path], label: str, features: Sequence[str]) -> list[str]:
    labels, scores = scan.table(files, [label]).column(label), {}
    for name in features:  # one at a time, as all of a large split may not fit into memory
        column = _plain(scan.table(files, [name]).column(name))
        if not pa.types.is_string(column.type) and not pa.types.is_primitive(column.type):
            continue
        is_missing = pc.is_null(column, nan_is_null=True)
        repeats = repeats_label(column, labels, problem) or repeats_label(is_missing, labels, problem)
        scores[name] = 1.0 if repeats else score_alone(column, labels, problem) or 0.0
    return sorted((name for name, score in scores.items() if score >= TELLS), key=lambda name: -scores[name])


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns text of any type as strings."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.cast(pa.string() if pa.types.is_large_string(kind) else kind)
