"""Explains a model: what it looks at, how it depends on it, and the reasons of a few predictions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import ModelReference
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.extensions.explain.core.explanation import (
    EXPLANATION_FILE,
    MAX_CLASSES,
    MAX_IMPORTANCES,
    MAX_REASONS,
    Dependence,
    DependencePoint,
    ExplainedRow,
    Explanation,
    FeatureImportance,
    ShapleyOptions,
)
from airflow_hops.extensions.explain.ml.importance import (
    Importance,
    carrying,
    constant_loss,
    permutation_importance,
    row_loss,
)
from airflow_hops.extensions.explain.ml.rows import (
    CountedPredictions,
    check_tabular,
    explained_row,
    explainer_of,
    sampled_table,
)
from airflow_hops.extensions.explain.ml.shapley import Array, Explainer, Predict, single_rows
from airflow_hops.ml.evaluate.stage import champion_model
from airflow_hops.ml.features.raw_features import dense_arrays
from airflow_hops.ml.metrics.class_names import CANDIDATE, CHAMPION, ClassNames, class_names
from airflow_hops.ml.metrics.scoring import ScoredModel, ScoredRows
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext

POINTS = 20
"""Maximum number of a feature's values."""

log = logging.getLogger(__name__)

_DEPENDENCE_ROWS = 500


def run(
    context: StepContext,
    *,
    model_name: str | None = None,
    split: str | None = None,
    rows: int = 5000,
    repeats: int = 5,
    dependence: int = 6,
    explained: int = 10,
    **options: Any,
) -> Artifact:
    """Writes the artifact ``explanation``.

    Parameters are those of ``ExplainOperator``. Inputs are ``model`` and ``examples``, and optionally ``background``.

    Raises:
        BadInput: model and examples do not match, the model has no tabular input, the background lacks a column, or
            more predictions are needed than allowed.
    """
    shapley = ShapleyOptions(**options)
    sample = _Sample.read(context, model_name, split, rows, shapley.seed)
    features = list(dict.fromkeys(name for model in sample.models.values() for name in model.inputs))
    shuffled = sum(len(model.inputs) * repeats + 3 for model in sample.models.values()) * sample.rows
    averaged = min(sample.rows, _DEPENDENCE_ROWS)
    depended = dependence * (POINTS + 1) * averaged * len(sample.models)
    explained = min(explained, sample.rows)
    mine = sample.models[CANDIDATE]
    counted = CountedPredictions(context)
    explainer = explainer_of(context, mine, shapley, counted)
    each = explainer.predictions_per_row
    counted.planned = counted.made + shuffled + depended + explained * each
    factors = (
        f"{sample.rows:,} rows × {len(features)} features × {repeats} repeats for each of {len(sample.models)} models, "
        f"and {explained} rows × {each:,} for reasons"
    )
    shapley.check_cost(counted.planned, factors)
    log.info("At most %s predictions: %s", f"{counted.planned:,}", factors)

    losses: dict[str, float] = {}
    importance: dict[str, dict[str, Importance]] = {}
    warnings = list(sample.warnings)
    for name, model in sample.models.items():
        selected = sample.compared(name)
        if not len(selected):
            warnings.append(f"the champion knows the class of none of the {sample.rows} rows: it is not compared")
            continue
        loss_name, loss = row_loss(mine.problem, sample.labels[selected])
        weights = None if sample.weights is None else sample.weights[selected]
        arrays = {column: values[selected] for column, values in sample.arrays[name].items()}
        aligned = sample.aligned(name, counted.of(model))
        losses[name] = float(np.average(loss(aligned(arrays)), weights=weights))
        importance[name] = permutation_importance(
            aligned, arrays, loss, features=list(model.inputs), repeats=repeats, seed=shapley.seed, weights=weights
        )
    constant = constant_loss(mine.problem, sample.labels, sample.weights, sample.classes)
    if carries := carrying(importance[CANDIDATE], losses[CANDIDATE], constant):
        warnings.append(
            f"{carries[0]!r} carries the model: it has {carries[1]:.0%} of all importance; check that it is known when "
            "a prediction is asked for, and not only with the label"
        )
    leading = sorted(importance[CANDIDATE], key=lambda name: -importance[CANDIDATE][name][0][0])
    random = np.random.default_rng(shapley.seed)
    few = np.sort(random.choice(sample.rows, averaged, replace=False))
    shown, columns = sample.shown_classes()
    models = {
        name: (
            _outputs(sample.aligned(name, counted.of(model)), columns),
            {column: values[few] for column, values in sample.arrays[name].items()},
        )
        for name, model in sample.models.items()
    }
    dependences = tuple(
        partial_dependence(
            feature,
            sample.arrays[CANDIDATE][feature],
            {name: model for name, model in models.items() if feature in sample.models[name].inputs},
        )
        for feature in [name for name in leading if name in sample.tabular][:dependence]
    )
    report = Explanation(
        candidate=sample.references[CANDIDATE],
        champion=sample.references.get(CHAMPION),
        model_name=model_name,
        problem=mine.problem,
        label=sample.label,
        split=sample.split,
        rows=sample.rows,
        repeats=repeats,
        background_rows=explainer.background_rows,
        seed=shapley.seed,
        log_odds=shapley.log_odds,
        loss=loss_name,
        candidate_loss=losses[CANDIDATE],
        champion_loss=losses.get(CHAMPION),
        constant_loss=constant,
        features=len(features),
        predictions=0,
        warnings=tuple(warnings),
        dependence_classes=shown,
        importance=_importances(features, importance)[:MAX_IMPORTANCES],
        dependence=dependences,
        explained=_explained(sample, explainer, explained, counted.of(mine)),
    )
    for warning in warnings:
        log.warning("%s", warning)
    with context.output() as writer:
        content = {**report.to_dict(), "predictions": counted.made}
        (writer.path / EXPLANATION_FILE).write_text(json.dumps(content, indent=1, allow_nan=False))
        top = report.importance[:20]
        return writer.commit(
            rows={sample.split: RowCounts(sample.rows, sample.rows)},
            metrics={
                "predictions": float(counted.made),
                "beyond_chance": float(sum(each.is_beyond_chance for each in report.importance)),
                **{f"importance {each.feature}": each.candidate[0] for each in top if each.candidate},
            },
            properties=report.properties.to_dict(),
        )


@dataclass(frozen=True)
class _Sample:
    """Rows of the split, and the models that predict them.

    Attributes:
        arrays: Raw features by model and name.
        labels: Numbers of the candidate's classes, or values; ``[rows]``.
        tabular: Inputs of the candidate with one value a row.
        keys: Keys of the rows, or their numbers.
    """

    models: Mapping[str, ScoredModel]
    references: Mapping[str, ModelReference]
    names: ClassNames
    split: str
    label: str
    arrays: Mapping[str, Mapping[str, Array]]
    labels: Array
    weights: Array | None
    tabular: tuple[str, ...]
    keys: Sequence[str]
    warnings: Sequence[str]

    @classmethod
    def read(cls, context: StepContext, model_name: str | None, split: str | None, rows: int, seed: int) -> _Sample:
        artifact, examples = context.input("model"), context.input("examples")
        data = ExamplesProperties.of(examples)
        target = data.target
        split = split or next((name for name in data.splits if name != TRAIN), None)
        if split is None:
            raise BadInput(
                f"{examples.uri}: no split to explain the model on; it has {', '.join(data.splits) or 'none'}. Set "
                "eval_percent where the examples are prepared, or name a split"
            )
        files = example_files(context.local("examples"), split)
        models = {CANDIDATE: ScoredModel(model_folder(context.store, artifact))}
        properties = {CANDIDATE: ModelProperties.of(context.store.manifest(artifact.uri))}
        references = {CANDIDATE: ModelReference(artifact.uri, artifact.fingerprint)}
        champion = read_record(context.store, model_name).champion if model_name else None
        if champion is not None and champion.fingerprint != artifact.fingerprint:
            path, properties[CHAMPION] = champion_model(context, champion)
            models[CHAMPION] = ScoredModel(path)
            references[CHAMPION] = ModelReference(champion.model.uri, champion.fingerprint, champion.version)
        names = class_names(models, properties, target)
        tabular = {name: check_tabular(model, file) for name, model in models.items() for file in files}
        own = {name: target.dtypes[name] for name in (target.label, target.weight) if name}
        wanted = [*(name for model in models.values() for name in model.inputs), *own, *filter(None, [data.key])]
        where = f"split {split!r}"
        table = sampled_table(files, list(dict.fromkeys(wanted)), rows, seed, where)
        if table.num_rows < 2:
            raise BadInput(f"{where}: there is one row; expected at least 2")
        facts = dense_arrays(table, own, where)
        labels, warnings = facts[target.label], []
        if target.problem != REGRESSION:
            numbers = names.numbers(labels)
            if (unknown := numbers < 0).any():
                raise BadInput(
                    f"{where}: label {target.label!r} is {_class_name(target, int(labels[unknown][0]))} in "
                    f"{int(unknown.sum())} of {len(labels)} rows, which is not a class of the model; its classes are "
                    f"{', '.join(names.of_candidate or ())}"
                )
            labels = numbers
            lacking = [name for number, name in enumerate(names.of_candidate or ()) if number not in labels]
            if lacking:
                warnings = [
                    f"{where} has no rows of class {', '.join(map(repr, lacking[:5]))}"
                    f"{' and others' * (len(lacking) > 5)}: nothing is known of what tells them from others"
                ]
        keys = table.column(data.key).cast(pa.string()).to_pylist() if data.key else map(str, range(table.num_rows))
        arrays = {name: dense_arrays(table, model.inputs, where) for name, model in models.items()}
        weights = facts[target.weight] if target.weight else None
        return cls(
            models, references, names, split, target.label, arrays, labels, weights, tabular[CANDIDATE],
            [str(key) for key in keys], warnings,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int | None:
        return self.models[CANDIDATE].classes

    def compared(self, name: str) -> Array:
        """Returns the rows whose class a model knows."""
        theirs, mine = self.names.models.get(name), self.names.of_candidate
        if theirs is None or mine is None:
            return np.arange(self.rows)
        known = np.array([each in theirs for each in mine])
        return np.flatnonzero(known[self.labels])

    def aligned(self, name: str, predict: Predict) -> Predict:
        """Returns a model's predictions in the order of the candidate's classes."""
        names = ClassNames(self.names.of_candidate, self.names.models)
        if name == CANDIDATE or names.models.get(CHAMPION, names.examples) == names.examples:
            return predict

        def reordered(arrays: Mapping[str, Array]) -> Array:
            predicted = predict(arrays)
            scored = ScoredRows(np.zeros(len(predicted), np.int64), {CHAMPION: predicted}, {})
            return names.align(scored, "the champion").predictions[CHAMPION]

        return reordered

    def shown_classes(self) -> tuple[tuple[str, ...] | None, Array | None]:
        """Returns names and numbers of the most frequent of several classes; None if there are none."""
        if self.classes is None:
            return None, None
        counts = np.bincount(self.labels, minlength=self.classes)
        chosen = np.sort(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
        return tuple((self.names.of_candidate or ())[number] for number in chosen), chosen


def _class_name(target: Target, number: int) -> str:
    return target.class_name(number) if 0 <= number < len(target.classes or ()) else str(number)


def _outputs(predict: Predict, columns: Array | None) -> Callable[[Mapping[str, Array]], Array]:
    """Returns predictions ``[rows, outputs]`` of the chosen classes."""
    return lambda arrays: predict(arrays)[:, None] if columns is None else predict(arrays)[:, columns]


def _importances(
    features: Sequence[str], importance: Mapping[str, Mapping[str, Importance]]
) -> tuple[FeatureImportance, ...]:
    """Returns the importance of each feature, by the greater of the models' rises."""
    mine, theirs = importance[CANDIDATE], importance.get(CHAMPION, {})
    result = [
        FeatureImportance(
            name,
            mine[name][0] if name in mine else None,
            theirs[name][0] if name in theirs else None,
            name in mine and mine[name][1],
        )
        for name in features
    ]
    return tuple(
        sorted(
            result, key=lambda e: -max(interval[0] for interval in (e.candidate, e.champion) if interval is not None)
        )
    )


def _explained(sample: _Sample, explainer: Explainer, count: int, predict: Predict) -> tuple[ExplainedRow, ...]:
    """Explains rows whose predictions are spread from the lowest to the highest."""
    if not count:
        return ()
    arrays = sample.arrays[CANDIDATE]
    predicted = predict(arrays)
    order = np.argsort(predicted if predicted.ndim == 1 else predicted.max(axis=1), kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(int))]
    rows, result = {name: values[chosen] for name, values in arrays.items()}, []
    for number, row, contributions in zip(chosen, single_rows(rows), explainer.explain(rows), strict=True):
        name = (sample.names.of_candidate or ())[contributions.output] if sample.classes else None
        result.append(explained_row(sample.keys[number], name, contributions, row, MAX_REASONS))
    return tuple(result)


def partial_dependence(
    feature: str, values: Array, models: Mapping[str, tuple[Predict, Mapping[str, Array]]]
) -> Dependence:
    """Computes the partial dependence of models on a feature.

    Args:
        feature: A feature of one value a row.
        values: Its values in all rows, ``[rows]``, for the density.
        models: Models, ``candidate`` and perhaps ``champion``, which predict ``[rows, outputs]``, each with the raw
            features of the rows over which predictions are averaged.
    """
    points, shares = grid(values)
    means: dict[str, list[tuple[float, ...]]] = {}
    for name, (predict, arrays) in models.items():
        dtype = arrays[feature].dtype
        rows = len(arrays[feature])
        means[name] = [
            tuple(predict({**arrays, feature: np.full(rows, value, dtype)}).mean(axis=0).tolist()) for value in points
        ]
    champion = means.get("champion")
    described = tuple(
        DependencePoint(_as_json(value), share, means["candidate"][index], champion[index] if champion else None)
        for index, (value, share) in enumerate(zip(points, shares, strict=True))
    )
    return Dependence(feature, values.dtype != object, described)


def grid(values: Array) -> tuple[list[object], list[float]]:
    """Returns values of a feature to predict with, and the share of the rows at or nearest to each.

    Of numbers, all different ones if they are few, else quantiles; of texts, the most frequent; a missing number last.
    """
    if values.dtype == object:
        kinds, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:POINTS]
        return list(kinds[order]), (counts[order] / len(values)).tolist()
    finite = values[np.isfinite(values)]
    different: Array = np.unique(finite)
    if len(different) > POINTS:
        quantiles = np.quantile(finite, np.linspace(0.01, 0.99, POINTS), method="nearest")
        different = np.unique(quantiles)
    middles = (different[1:].astype(float) + different[:-1]) / 2
    counts = np.bincount(np.searchsorted(middles, finite), minlength=len(different))
    result, shares = different.tolist(), (counts / len(values)).tolist()
    missing = np.isnan(values).mean() if values.dtype.kind == "f" else 0.0
    return ([*result, np.nan], [*shares, float(missing)]) if missing else (result, shares)


def _as_json(value: object) -> float | str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace") or None
    assert isinstance(value, int | float)
    return None if value != value else value
