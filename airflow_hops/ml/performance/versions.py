"""Computes a version's quality on its held-out rows, and measured or estimated on its served predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import BINARY, REGRESSION, Target
from airflow_hops.core.errors import BadInput, DamagedArtifact
from airflow_hops.core.metrics import Interval, worse_by
from airflow_hops.core.models.model_record import deployed_model
from airflow_hops.core.performance import PerformanceOptions, VersionPerformance
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.metrics.class_names import CANDIDATE, class_names
from airflow_hops.ml.metrics.judging import METRICS, Judge
from airflow_hops.ml.metrics.metrics import Sample
from airflow_hops.ml.metrics.scoring import ScoredModel, score
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.performance.figures import Calibration, estimate, find_calibration, measure
from airflow_hops.ml.performance.join import Predictions
from airflow_hops.ml.readers.artifact_files import example_files

US = 1_000_000
FEWEST_OF_A_CLASS = 10
"""Minimum rows per class of two for 95% intervals; rows of unequal weight, and copies, count as fewer."""


@dataclass(frozen=True)
class Version:
    """Version of a model.

    Attributes:
        judge: Problem and classes.
        baseline: Metrics on its held-out rows; empty if these were deleted.
        calibration: Of the same rows; None for a regression, or if the rows were deleted.
        why: Reason for a missing baseline.
        is_known: Whether the judge's classes are the version's own, so that labels are comparable with its predictions.
    """

    number: int
    judge: Judge
    baseline: Mapping[str, Interval] = field(default_factory=dict)
    calibration: Calibration | None = None
    why: str = ""
    is_known: bool = True


def find_version(
    store: ArtifactStore, model_name: str, number: int, known: ModelProperties, prefix: str = ""
) -> Version:
    """Returns a version with the baseline from its model and examples.

    Args:
        store: The artifact store.
        model_name: Model name.
        number: The version.
        known: Properties of the champion for the label, used if the version's are unknown.
        prefix: Prefix of the names of the label's outputs.
    """
    properties, is_known = known, not known.target.classes
    try:
        model, _ = deployed_model(store, model_name, number)
        properties, is_known = ModelProperties.of(store.manifest(model.uri)).of_label(known.target.label), True
        served = ScoredModel(model_folder(store, model)).head(prefix)
        if served is None:
            raise BadInput(f"{model.uri} has no output for {known.label!r}")
        return with_baseline(store, number, served, properties, examples_of(store, model, properties))
    except (BadInput, DamagedArtifact) as error:
        target = properties.target
        judge = Judge(target.problem, METRICS[target.problem].metric, target.classes)
        without = "baseline and no estimates" if is_known else "baseline, no estimates and no figures, as its classes"
        without += "" if is_known else " may be others or in another order than the champion's"
        return Version(number, judge, why=f"version {number} has no {without}: {error}", is_known=is_known)


def with_baseline(
    store: ArtifactStore, number: int, served: ScoredModel, of: ModelProperties, examples: Artifact
) -> Version:
    """Returns a version with its baseline, and a calibration if it is a classifier.

    ``examples`` are those of its training; the first split besides ``train`` is the held-out one. Its rows have the
    weights of the examples, so that they stand for the rows that the version is asked for.

    Raises:
        BadInput: the examples have no held-out split, or the model cannot be evaluated on it, as it has too few rows.
    """
    split, target, weight = held_out(store, of, examples)
    names = class_names({CANDIDATE: served}, {CANDIDATE: of}, target)
    files = example_files(store.local(examples), split)
    scored = score({CANDIDATE: served}, files, target.label, classes=names.count, weight=weight, split=split)
    rows = names.align(scored, f"split {split!r}")
    is_binary = served.problem == BINARY
    sizes = Sample(rows.weights, rows.labels if is_binary else None, rows.copies).effective_classes(len(rows.labels))
    if len(sizes) < 1 + is_binary or sizes.min() < FEWEST_OF_A_CLASS:
        of_class = " of each class" * is_binary
        few = ", ".join(f"{size:.3g}" for size in sizes) or "none"
        raise BadInput(f"split {split!r} has too few rows: {few}, expected at least {FEWEST_OF_A_CLASS}{of_class}")
    judge = Judge(served.problem, METRICS[served.problem].metric, names.of_candidate)
    outputs = rows.predictions[CANDIDATE]
    calibration = None if served.problem == REGRESSION else find_calibration(rows.labels, outputs, rows.weights)
    return Version(number, judge, measure(judge, rows.labels, outputs, rows.copies, rows.weights), calibration)


def held_out(store: ArtifactStore, of: ModelProperties, examples: Artifact) -> tuple[str, Target, str | None]:
    """Returns the held-out split of a model's examples, its target, and the column of weights.

    Raises:
        BadInput: there is no such split, or no such label.
    """
    properties = ExamplesProperties.of(store.manifest(examples.uri))
    split = next((name for name in properties.splits if name != TRAIN), None)
    if split is None:
        raise BadInput(f"{examples.uri} has no held-out split")
    target = next((each for each in properties.target.all if each.label == of.label), None)
    if target is None:
        raise BadInput(f"{examples.uri} has no label {of.label!r}")
    return split, target, properties.target.weight


def examples_of(store: ArtifactStore, model: Artifact, properties: ModelProperties) -> Artifact:
    """Returns the raw examples that a model was trained on, from its statistics or its own inputs."""
    for uri in (properties.statistics, model.uri):
        for examples in store.manifest(uri).inputs.get("examples", ()) if uri else ():
            if examples.kind == "examples":
                return examples
    raise BadInput(f"{model.uri}: the manifests name no examples that it was trained on")


def measure_whole(
    options: PerformanceOptions, as_of_us: int, version: Version, rows: Predictions, start_us: int
) -> VersionPerformance:
    """Measures a version with the labels known at ``as_of_us`` over the whole window, from ``start_us``."""
    result = _measure(options, as_of_us, version, rows, (start_us, as_of_us))
    both = [name for name in result.figures if name in version.baseline]
    drop = {name: worse_by(name, result.figures[name], version.baseline[name]) for name in both}
    return replace(result, baseline=dict(version.baseline), drop=drop)


def measure_periods(
    options: PerformanceOptions, as_of_us: int, version: Version, rows: Predictions
) -> Iterator[VersionPerformance]:
    """Measures a version in each period with predictions, oldest first; arguments as in :func:`measure_whole`."""
    length = int(options.period_s * US)
    place = rows.time_us // length
    order = np.argsort(place, kind="stable")
    result, starts = np.unique(place[order], return_index=True)
    for period, chosen in zip(result.tolist(), np.split(order, starts[1:]), strict=True):
        bounds_us = period * length, (period + 1) * length
        yield _measure(options, as_of_us, version, rows.where(chosen), bounds_us)


def _measure(
    options: PerformanceOptions, as_of_us: int, version: Version, rows: Predictions, bounds_us: tuple[int, int]
) -> VersionPerformance:
    usable = np.isfinite(rows.labels)
    chosen = usable & (rows.time_us <= as_of_us - int(options.label_delay_s * US))
    old, enough = rows.where(chosen), options.min_rows
    apart = old.labels if old.keys is None else old.labels[np.unique(old.keys, return_index=True)[1]]
    figures: Mapping[str, Interval] = {}
    is_binary = version.judge.problem == BINARY
    rarest = min((apart == 0).sum(), (apart == 1).sum()) if is_binary else np.inf
    if version.is_known and len(apart) >= enough and rarest >= FEWEST_OF_A_CLASS:
        figures = measure(version.judge, old.labels, old.outputs, old.keys)
    estimates: Mapping[str, Interval] = {}
    if options.estimates and version.calibration is not None and len(rows.labels) >= enough:
        estimates = estimate(version.judge, version.calibration, rows.outputs, version.baseline)
    return VersionPerformance(
        version=version.number,
        start=as_iso(bounds_us[0]),
        end=as_iso(bounds_us[1]),
        rows=len(rows.labels),
        labelled=int(usable.sum()),
        measured=len(old.labels),
        figures=figures,
        estimates=estimates,
    )


def as_iso(us: int) -> str:
    """Formats microseconds since the epoch as ISO 8601, UTC."""
    return datetime.fromtimestamp(us / US, UTC).isoformat()
