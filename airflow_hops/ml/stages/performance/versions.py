"""Predictions of a version, and its quality on its own held-out rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.performance import Interval
from airflow_hops.core.contract.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.contract.splits import TRAIN
from airflow_hops.core.contract.target import REGRESSION
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.integrity import DamagedArtifact
from airflow_hops.ml.features.raw_features import example_files
from airflow_hops.ml.metrics.class_names import CANDIDATE, class_names
from airflow_hops.ml.metrics.judging import METRICS, Judge
from airflow_hops.ml.metrics.scoring import ServedModel, score
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.stages.performance.figures import Estimator, measure
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking.deployed import deployed_model


@dataclass(frozen=True)
class Version:
    """A version.

    Attributes:
        number: Its number.
        judge: Its problem and classes.
        baseline: The metrics on its held-out rows; empty if these are gone.
        estimator: Calibrated on the same rows; None of a regression, or if they are gone.
        why: Why there is no baseline; empty if there is one.
        is_known: Whether the judge's classes are its own, so that labels can be compared with what it predicts.
    """

    number: int
    judge: Judge
    baseline: Mapping[str, Interval] = field(default_factory=dict)
    estimator: Estimator | None = None
    why: str = ""
    is_known: bool = True


def find_version(
    context: StepContext, model_name: str, number: int, known: ModelProperties, prefix: str = ""
) -> Version:
    """A version, with the baseline that its model and its examples give.

    Args:
        context: The step's context; service ``tracking_uri`` finds versions that serve no more.
        model_name: Model name.
        number: The version.
        known: Properties of the champion, for a version of which nothing is known; of the label alone.
        prefix: What the names of the label's outputs begin with.
    """
    of, is_known = known, not known.target.classes
    try:
        model, _ = deployed_model(context.store, context.spec.services, model_name, number)
        of, is_known = ModelProperties.of(context.store.manifest(model.uri)).of_label(known.target.label), True
        served = ServedModel(model_folder(context.store, model)).head(prefix)
        if served is None:
            raise BadInput(f"{model.uri} has no output for {known.label!r}")
        return with_baseline(context.store, number, served, of, _examples(context.store, model, of))
    except (BadInput, DamagedArtifact) as error:
        target = of.target
        judge = Judge(target.problem, METRICS[target.problem].metric, target.classes)
        without = "baseline and no estimates" if is_known else "baseline, no estimates and no figures, as its classes"
        without += "" if is_known else " may be others or in another order than the champion's"
        return Version(number, judge, why=f"version {number} has no {without}: {error}", is_known=is_known)


def with_baseline(
    store: ArtifactStore, number: int, served: ServedModel, of: ModelProperties, examples: Artifact
) -> Version:
    """A version with its baseline, and an estimator if it is a classifier.

    Args:
        store: Where the examples are.
        number: Number of the version.
        served: Its model.
        of: Properties of the model's artifact.
        examples: Those that it was trained on; the first split besides ``train`` is the held-out one.

    Raises:
        BadInput: there is no held-out split, or the model cannot be judged on it.
    """
    properties = ExamplesProperties.of(store.manifest(examples.uri))
    split = next((name for name in properties.splits if name != TRAIN), None)
    if split is None:
        raise BadInput(f"{examples.uri} has no held-out split")
    target = next((each for each in properties.target.all if each.label == of.label), None)
    if target is None:
        raise BadInput(f"{examples.uri} has no label {of.label!r}")
    names = class_names({CANDIDATE: served}, {CANDIDATE: of}, target)
    files = example_files(store.local(examples), split)
    scored = score({CANDIDATE: served}, files, target.label, classes=names.count, split=split)
    rows = names.align(scored, f"split {split!r}")
    judge = Judge(served.problem, METRICS[served.problem].metric, names.of_candidate)
    outputs = rows.predictions[CANDIDATE]
    estimator = None if served.problem == REGRESSION else Estimator.fit(rows.labels, outputs)
    return Version(number, judge, measure(judge, rows.labels, outputs), estimator)


def _examples(store: ArtifactStore, model: Artifact, of: ModelProperties) -> Artifact:
    """The raw examples that a model was trained on: those of its statistics, or its own input."""
    for uri in (of.statistics, model.uri):
        for examples in store.manifest(uri).inputs.get("examples", ()) if uri else ():
            if examples.kind == "examples":
                return examples
    raise BadInput(f"{model.uri}: the manifests name no examples that it was trained on")
