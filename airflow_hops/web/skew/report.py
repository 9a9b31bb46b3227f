"""The report of a comparison: verdict and features, and for one feature histograms and rows that differ."""

from __future__ import annotations

import json
import threading
from typing import Annotated, Any

from cachetools import LRUCache, cached
from fastapi import APIRouter, HTTPException, Query
from pydantic_core import from_json

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.skew import HISTOGRAMS_FILE, REPORT_FILE
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.artifacts.lookup import FoundArtifact, TaskArtifact, damaged, open_artifact, reaching
from airflow_hops.web.types import Json, Model, Number

_reports: LRUCache[str, str] = LRUCache(64 << 20, getsizeof=len)


def read_report(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """Reads a report.

    Raises:
        HTTPException: 410, it was deleted or replaced; 502, the store or the report cannot be read.
    """
    try:
        report: dict[str, Any] = from_json(_read(store, artifact))
    except ValueError as error:
        raise damaged(f"{artifact.uri}/{REPORT_FILE}", error) from error
    return report


@cached(_reports, key=lambda store, artifact: artifact.fingerprint, condition=threading.Condition())
def _read(store: ArtifactStore, artifact: Artifact) -> str:
    there, _ = open_artifact(store, artifact)
    uri = f"{there.uri}/{REPORT_FILE}"
    with reaching(store):
        try:
            return store.read_text(uri)
        except FileNotFoundError:
            raise HTTPException(410, f"{uri} was deleted") from None


router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/skew", tags=["skew"])


class FeatureFigures(Model):
    """Results of a comparison for a feature."""

    name: str
    measure: str | None = None
    score: Number = None
    threshold: Number = None
    p_value: Number = None
    drifted: bool = False
    missing_reference: Number = None
    missing_current: Number = None
    missing_p_value: Number = None
    cause: str | None = None
    detail: str | None = None
    """Evidence for the cause; or the reason why there are no results."""
    summary: str | None = None
    """The change in words; null in reports of earlier versions."""
    effect: Number = None
    """Mean change of a prediction due to the drift, in the label's unit for a regression."""
    effect_signed: Number = None
    """Change of the mean prediction; null for multiclass models, and in reports of earlier versions."""
    scores: dict[str, Number] = {}


class RowFeature(Model):
    """Differences in a feature between rows of the same identifier."""

    name: str
    differ: int
    mismatch: int
    training_only: int
    serving_only: int
    match: int
    types: list[str | None]


class RowComparison(Model):
    """A comparison of served rows with the training rows of the same identifiers."""

    identifiers: list[str]
    pairs: int
    skewed_pairs: int
    matches: dict[str, int]
    """Results of joining the rows, in TFDV's terms."""
    features: list[RowFeature]


class SkewComparison(Model):
    """A comparison."""

    verdict: str
    rows_reference: int
    rows_current: int
    min_rows: int
    alpha: Number
    unmatched: list[str]
    """Features that exist on one side only."""
    reference: dict[str, Json]
    prediction_reference: Number
    """Mean prediction for the training data's values."""
    prediction_current: Number
    problem: str | None
    """Type of the model's label, to which effects and predictions refer; null if none were computed."""
    notes: list[str]
    """Notes on skipped work, with reasons."""
    features: list[FeatureFigures]
    """Drifted features first, those that matter most before others."""
    row_skew: RowComparison | None


class Bucket(Model):
    """Shares of values on both sides: of numbers from ``low`` to ``high``, or of a ``value``."""

    low: Number
    high: Number
    value: str | None
    reference: Number
    current: Number


class RowExample(Model):
    """A row that differs."""

    identifier: dict[str, Json]
    training: Json
    serving: Json


class FeatureComparison(FeatureFigures):
    """A feature of a comparison, with both histograms."""

    histogram: list[Bucket]
    effect_by_class: dict[str, Number]
    """Mean change of each class's probability, for multiclass models."""
    problem: str | None
    """Type of the model's label, if effects were computed."""
    standard_error: Number
    rows: RowFeature | None
    examples: list[RowExample]


@router.get("")
def get_skew_report(
    found: TaskArtifact,
    features: Annotated[bool, Query(description="Whether to return each feature; there may be thousands")] = True,
) -> SkewComparison:
    """Returns the result of a comparison."""
    expect_skew(found)
    return describe_comparison(read_report(found.store, found.artifact), features)


@router.get("/feature")
def get_skew_feature(
    found: TaskArtifact, feature: Annotated[str, Query(min_length=1, max_length=4096)]
) -> FeatureComparison:
    """Returns a feature in one comparison."""
    expect_skew(found)
    report = read_report(found.store, found.artifact)
    if feature not in report["features"]:
        raise HTTPException(404, f"feature {feature!r} was not compared")
    if not found.has(HISTOGRAMS_FILE):
        raise HTTPException(409, found.without_page())
    lines = found.read_text(HISTOGRAMS_FILE).split("\n")
    try:
        buckets = json.loads(lines[list(report["features"]).index(feature)])
    except (ValueError, IndexError) as error:
        raise found.damaged(HISTOGRAMS_FILE, error) from error
    return _feature(report, feature, buckets)


def expect_skew(found: FoundArtifact) -> None:
    """Refuses artifacts of another kind with HTTPException (422)."""
    if found.artifact.kind != "skew":
        raise HTTPException(422, f"kind is {found.artifact.kind!r}, expected 'skew'")


def describe_comparison(report: dict[str, Any], features: bool = True) -> SkewComparison:
    """Describes a report, with or without its features."""
    attribution, rows = report.get("attribution") or {}, report.get("row_skew")
    if not features:
        report = {**report, "features": {}}
        rows = rows and {**rows, "features": {}}
    return SkewComparison(
        **{name: report[name] for name in ("verdict", "rows_reference", "rows_current", "min_rows")},
        alpha=report.get("alpha"),
        unmatched=report.get("unmatched") or [],
        reference={name: value for name, value in report["reference"].items() if name in ("model", "version")},
        prediction_reference=attribution.get("prediction_reference"),
        prediction_current=attribution.get("prediction_current"),
        problem=attribution.get("problem"),
        notes=report.get("notes") or [],
        features=[FeatureFigures(name=name, **_figures(skew)) for name, skew in _in_order(report)],
        row_skew=RowComparison(
            identifiers=rows["identifiers"],
            pairs=rows["pairs"],
            skewed_pairs=rows["skewed_pairs"],
            matches=rows["matches"],
            features=[_row_feature(name, skew) for name, skew in rows["features"].items()],
        )
        if rows
        else None,
    )


def _in_order(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the features as reports order them; those of earlier versions order only the drifted ones."""
    drifted = {name: place for place, name in enumerate(report["drifted"])}
    return sorted(report["features"].items(), key=lambda item: drifted.get(item[0], len(drifted)))


def _figures(skew: dict[str, Any]) -> dict[str, Any]:
    return {name: skew.get(name) for name in FeatureFigures.model_fields if name != "name"}


def _row_feature(name: str, skew: dict[str, Any]) -> RowFeature:
    return RowFeature(
        name=name,
        differ=skew["diff_count"],
        mismatch=skew["mismatch_count"],
        training_only=skew["base_only"],
        serving_only=skew["test_only"],
        match=skew["match_count"],
        types=list(skew["types"]),
    )


def _feature(report: dict[str, Any], name: str, buckets: list[list[Any]]) -> FeatureComparison:
    attribution = report.get("attribution") or {}
    effect = (attribution.get("effects") or {}).get(name) or {}
    rows = ((report.get("row_skew") or {}).get("features") or {}).get(name)
    return FeatureComparison(
        name=name,
        **{**_figures(report["features"][name]), "effect_signed": effect.get("effect_signed")},
        histogram=[_bucket(bucket) for bucket in buckets],
        effect_by_class=effect.get("by_class") or {},
        problem=attribution.get("problem"),
        standard_error=effect.get("standard_error"),
        rows=_row_feature(name, rows) if rows else None,
        examples=[RowExample(**example) for example in rows["examples"]] if rows else [],
    )


def _bucket(bucket: list[Any]) -> Bucket:
    if len(bucket) == 3:
        value, reference, current = bucket
        return Bucket(low=None, high=None, value=str(value), reference=reference, current=current)
    low, high, reference, current = bucket
    return Bucket(low=low, high=high, value=None, reference=reference, current=current)
