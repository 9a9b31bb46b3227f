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
from airflow_hops.web.artifacts.lookup import FoundArtifact, TaskArtifact, open_artifact, reaching
from airflow_hops.web.types import Json, Model, Number

_reports: LRUCache[str, str] = LRUCache(64 << 20, getsizeof=len)


def read_report(store: ArtifactStore, artifact: Artifact) -> dict[str, Any]:
    """Reads a report.

    Raises:
        HTTPException: 410, it was deleted or replaced; 502, the store or the report cannot be read.
    """
    with reaching(store, f"{artifact.uri}/{REPORT_FILE}"):
        report: dict[str, Any] = from_json(_read(store, artifact))
    return report


@cached(_reports, key=lambda store, artifact: artifact.fingerprint, condition=threading.Condition())
def _read(store: ArtifactStore, artifact: Artifact) -> str:
    there, _ = open_artifact(store, artifact)
    with reaching(store, uri := f"{there.uri}/{REPORT_FILE}"):
        return store.read_text(uri)


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


Bucket = tuple[Number, Number, Number, Number] | tuple[str | float, Number, Number]
"""Two ends of numbers, or a value; and its shares of the reference and of the current data."""


class RowExample(Model):
    """A row that differs."""

    identifier: dict[str, Json]
    training: Json
    serving: Json


class RowFeature(Model):
    """Differences in a feature between rows of the same identifier, in TFDV's terms: ``base`` is the training data."""

    diff_count: int
    mismatch_count: int
    base_only: int
    test_only: int
    match_count: int
    examples: list[RowExample]


class RowComparison(Model):
    """A comparison of served rows with the training rows of the same identifiers."""

    identifiers: list[str]
    pairs: int
    skewed_pairs: int


class SkewComparison(Model):
    """A comparison."""

    verdict: str
    model: str | None
    version: int | None
    """Version whose training data was used; null if two spans were compared."""
    rows_reference: int
    rows_current: int
    alpha: Number = None
    unmatched: list[str] = []
    """Features that exist on one side only."""
    prediction_reference: Number = None
    """Mean prediction for the training data's values."""
    prediction_current: Number = None
    problem: str | None = None
    """Type of the model's label, to which effects and predictions refer; null if none were computed."""
    notes: list[str] = []
    """Notes on skipped work, with reasons."""
    features: list[FeatureFigures]
    """Drifted features first, those that matter most before others."""
    row_skew: RowComparison | None = None


class FeatureComparison(FeatureFigures):
    """A feature of a comparison, with both histograms."""

    histogram: list[Bucket]
    effect_by_class: dict[str, Number]
    """Mean change of each class's probability, for multiclass models."""
    problem: str | None
    """Type of the model's label, if effects were computed."""
    standard_error: Number
    rows: RowFeature | None


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
    with found.reading(HISTOGRAMS_FILE):
        buckets = json.loads(lines[list(report["features"]).index(feature)])
    return _feature(report, feature, buckets)


def expect_skew(found: FoundArtifact) -> None:
    """Refuses artifacts of another kind with HTTPException (422)."""
    if found.artifact.kind != "skew":
        raise HTTPException(422, f"kind is {found.artifact.kind!r}, expected 'skew'")


def describe_comparison(report: dict[str, Any], features: bool = True) -> SkewComparison:
    """Describes a report, with or without its features."""
    # Reports of earlier versions order only the drifted features.
    drifted = {name: place for place, name in enumerate(report["drifted"])}
    ordered = sorted(report["features"].items(), key=lambda item: drifted.get(item[0], len(drifted)))
    listed = [{**skew, "name": name} for name, skew in ordered] if features else []
    reference = {name: (report.get("reference") or {}).get(name) for name in ("model", "version")}
    known = {**report, **reference, "features": listed}
    return SkewComparison.model_validate({**(report.get("attribution") or {}), **known})


def _feature(report: dict[str, Any], name: str, buckets: list[list[Any]]) -> FeatureComparison:
    attribution = report.get("attribution") or {}
    effect = (attribution.get("effects") or {}).get(name) or {}
    return FeatureComparison.model_validate(
        {
            **report["features"][name],
            "name": name,
            "effect_signed": effect.get("effect_signed"),
            "histogram": buckets,
            "effect_by_class": effect.get("by_class") or {},
            "problem": attribution.get("problem"),
            "standard_error": effect.get("standard_error"),
            "rows": ((report.get("row_skew") or {}).get("features") or {}).get(name),
        }
    )
