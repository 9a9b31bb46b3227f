"""Evaluates an exported model on raw examples, against the champion on the same rows, and blesses it or not."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.contract.evaluation import REPORT_FILE, Difference, EvaluationReport, Figures, ModelReference
from airflow_hops.contract.model_record import ServedVersion
from airflow_hops.contract.properties import ExamplesProperties, ModelProperties, TransformedExamplesProperties
from airflow_hops.contract.splits import TRAIN
from airflow_hops.contract.target import REGRESSION
from airflow_hops.data.raw_features import example_files
from airflow_hops.runtime.evaluate.binary_metrics import Metrics, binary_metrics, compare
from airflow_hops.runtime.evaluate.blessing import BlessingRule, bless
from airflow_hops.runtime.evaluate.class_metrics import METRICS, ClassMetrics, class_metrics, compare_classifiers
from airflow_hops.runtime.evaluate.scoring import ScoredRows, ServedModel, score
from airflow_hops.runtime.step.context import StepContext
from airflow_hops.store.model_records import read_record

log = logging.getLogger(__name__)

CANDIDATE, CHAMPION = "candidate", "champion"
NOT_SYNCHRONIZED = (
    "the model's property 'synchronized' is not true: nothing says that the ranks which trained it ended with the same "
    "weights; train it with HorovodTrainOperator"
)
MAX_SLICE_VALUES = 100
"""Values of a slicing column that are looked at, the most frequent first."""


def run(
    context: StepContext,
    *,
    model_name: str,
    splits: Sequence[str] | None = None,
    slices: Sequence[str] = (),
    metric: str = "auc",
    minimum: Mapping[str, float] | None = None,
    max_regression: float | Mapping[str, float] = 0.01,
    min_improvement: float | None = 0.0,
) -> Artifact:
    """The step: writes the artifact ``evaluation``, whether the model is blessed or not.

    A model whose training did not prove that its ranks ended with the same weights is never blessed.

    Args:
        context: The step's context; inputs ``model`` and ``examples``.
        model_name: Name under which the model is served, whose champion is compared with.
        splits: Splits to score; None for all of the examples but ``train``. The first must have labels of both classes.
        slices: Columns by whose values the figures are given too.
        metric: As :class:`~airflow_hops.runtime.evaluate.blessing.BlessingRule`.
        minimum: As there.
        max_regression: As there.
        min_improvement: As there.

    Raises:
        BadInput: model and examples do not go together, there is no split to score, or the first one has one class
            only.
    """
    rule = BlessingRule(metric, minimum, max_regression, min_improvement)
    model, examples = context.input("model"), context.input("examples")
    of = TransformedExamplesProperties.of(examples)
    label = of.label_column
    splits = _splits(splits, examples)
    folder = context.local("examples")
    files = {split: example_files(folder, split) for split in splits}
    models = {CANDIDATE: ServedModel(context.local("model") / "saved_model")}
    champion = read_record(context.store, model_name).champion
    is_champion = champion is not None and champion.fingerprint == model.fingerprint
    if champion is not None and not is_champion:
        models[CHAMPION] = ServedModel(_champion_model(context, champion))
    _check_models(rule, models)
    classes = of.classes
    figures: dict[str, dict[str, Any]] = {}
    for number, split in enumerate(splits):
        scored = score(models, files[split], label, slices=slices, split=split)
        if number == 0:
            _check_classes(scored, split, label)
        figures[split] = describe(scored, metric, classes)
        context.progress((number + 1) / len(splits), f"scored {len(scored.labels)} rows of {split}")
    candidate: dict[str, Metrics | ClassMetrics] = {split: figures[split][CANDIDATE] for split in splits}
    gains = {split: figures[split]["gain"] for split in splits} if CHAMPION in models else None
    if is_champion and champion is not None:
        blessed, reasons = False, [f"the model is the champion already (version {champion.version})"]
    else:
        blessed, reasons = bless(rule, candidate, gains)
    if ModelProperties.of(context.store.manifest(model.uri)).synchronized is not True:
        blessed = False
        reasons.insert(0, NOT_SYNCHRONIZED)
    for reason in reasons:
        log.info("%s", reason)
    log.info("%s", "Blessed" if blessed else "Not blessed")
    report = EvaluationReport(
        blessed=blessed,
        reasons=tuple(reasons),
        model_name=model_name,
        candidate=ModelReference(model.uri, model.fingerprint),
        champion=ModelReference(champion.model.uri, champion.fingerprint, champion.version) if champion else None,
        rule={**rule.__dict__, "minimum": dict(minimum or {})},
        splits={split: Figures.from_dict(_as_json(figure)) for split, figure in figures.items()},
    )
    with context.output() as writer:
        (writer.path / REPORT_FILE).write_text(json.dumps(report.to_dict(), indent=1))
        return writer.commit(
            rows={split: RowCounts(figures[split]["rows"], figures[split]["rows"]) for split in splits},
            metrics=_metrics(figures),
            properties=report.properties.to_dict(),
        )


def evaluate_model(
    saved_model: Path, parquet_files: Sequence[Path], label: str, slices: Sequence[str] = ()
) -> dict[str, Any]:
    """Figures of one exported model on the rows of Parquet files.

    Args:
        saved_model: Folder of the SavedModel.
        parquet_files: Raw examples.
        label: Name of the label column.
        slices: Columns by whose values the figures are given too.

    Returns:
        The figures of :class:`~airflow_hops.runtime.evaluate.binary_metrics.Metrics` by name, and under ``slices``, for
        each column, a list of them with their ``value``, the most frequent first.
    """
    scored = score({CANDIDATE: ServedModel(saved_model)}, parquet_files, label, slices=slices)
    figures = _as_json(describe(scored, "auc"))
    sliced = {
        column: [{"value": entry["value"], **entry[CANDIDATE]} for entry in entries]
        for column, entries in figures["slices"].items()
    }
    return {**figures[CANDIDATE], "slices": sliced}


def describe(scored: ScoredRows, metric: str, classes: Sequence[str] | None = None) -> dict[str, Any]:
    """Figures of scored rows, overall and by slice.

    Args:
        scored: The rows.
        metric: By which candidate and champion are compared.
        classes: Names of the classes, where there are several.

    Returns:
        ``rows``, ``candidate``, ``champion`` and ``gain`` (None without a champion), and ``slices``: for each column a
        list of the same with their ``value``, the most frequent first.
    """
    figures = _figures(scored, np.ones(len(scored.labels), bool), metric, classes)
    sliced = {}
    for column, values in scored.slices.items():
        found, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        if len(order) > MAX_SLICE_VALUES:
            log.warning(
                "slice %r has %d values; the %d most frequent are looked at, %d rows are left out",
                column, len(order), MAX_SLICE_VALUES, int(counts[order[MAX_SLICE_VALUES:]].sum()),
            )  # fmt: skip
        sliced[column] = [
            {"value": str(found[index]), **_figures(scored, values == found[index], metric, classes)}
            for index in order[:MAX_SLICE_VALUES]
        ]
    return {**figures, "slices": sliced}


def _figures(scored: ScoredRows, chosen: Any, metric: str, classes: Sequence[str] | None) -> dict[str, Any]:
    labels = scored.labels[chosen]
    probabilities = {name: p[chosen] for name, p in scored.predictions.items()}
    several = probabilities[CANDIDATE].ndim == 2
    metrics: dict[str, Any] = {
        name: class_metrics(labels, p, classes) if several else binary_metrics(labels, p)
        for name, p in probabilities.items()
    }
    gain: Difference | None = None
    if CHAMPION in metrics:
        contrast = compare_classifiers if several else compare
        gain = contrast(metric, labels, probabilities[CANDIDATE], probabilities[CHAMPION])
    return {"rows": len(labels), CANDIDATE: metrics[CANDIDATE], CHAMPION: metrics.get(CHAMPION), "gain": gain}


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


def _champion_model(context: StepContext, champion: ServedVersion) -> Path:
    """The champion's SavedModel; what the server has of it where its artifact was replaced, or is gone."""
    try:
        return context.store.local(champion.model) / "saved_model"
    except BadInput as error:
        served = Path(champion.serving_path)
        if not champion.serving_path or not served.is_dir():
            raise
        log.info("The champion is read from %s: %s", served, error)
        return served


def _check_models(rule: BlessingRule, models: Mapping[str, ServedModel]) -> None:
    model = models[CANDIDATE]
    if model.problem == REGRESSION:
        raise BadInput(f"{model.path}: the model predicts a number; this version evaluates classifiers alone")
    if CHAMPION in models and models[CHAMPION].classes != model.classes:
        raise BadInput(
            f"the model tells {model.classes or 2} classes apart, and the champion {models[CHAMPION].classes or 2}; "
            "they cannot be compared: serve the new one under another model_name"
        )
    if model.classes is None:
        return
    for name in [rule.metric, *(rule.minimum or {})]:
        if name not in METRICS:
            raise BadInput(
                f"metric {name!r} is of two classes, and the model tells {model.classes} apart; expected one of "
                f"{', '.join(METRICS)}, as in metric='accuracy', minimum={{'accuracy': 0.9}}"
            )


def _check_classes(scored: ScoredRows, split: str, label: str) -> None:
    rows, positives = len(scored.labels), int(scored.labels.sum())
    if not rows:
        raise BadInput(f"split {split!r}: no rows to evaluate on")
    if scored.predictions[CANDIDATE].ndim == 2:
        return
    if positives in (0, rows):
        raise BadInput(
            f"split {split!r}: label {label!r} is {int(positives > 0)} in all {rows} rows; an evaluation needs both "
            "classes: widen the window, or look at how prepare() derives the label"
        )


def _as_json(value: Any) -> Any:
    if isinstance(value, Metrics | ClassMetrics | Difference):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list) else value


def _metrics(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """``eval_auc``, ``champion_eval_auc``, ``eval_gain`` and so on; what is not defined is left out."""
    metrics: dict[str, float] = {}
    for split, found in figures.items():
        for prefix, name in (("", CANDIDATE), ("champion_", CHAMPION)):
            for metric in ("auc", "log_loss", "brier", "accuracy"):
                value = getattr(found[name], metric, None)
                if value is not None:
                    metrics[f"{prefix}{split}_{metric}"] = value
        if found["gain"] is not None:
            metrics[f"{split}_gain"] = found["gain"].difference
    return metrics
