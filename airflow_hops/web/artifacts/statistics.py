"""Statistics of features, by the splits of a statistics artifact or the sides of a skew artifact."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.core.artifacts.page_files import FeatureDetail, FeatureTable
from airflow_hops.web.access import may_read
from airflow_hops.web.artifacts.distances import compare_views, judged_features
from airflow_hops.web.artifacts.feature_pages import FeaturePage, dataset_names
from airflow_hops.web.artifacts.lookup import INSTANCE, FoundArtifact, TaskArtifact, find_artifact, task_instance
from airflow_hops.web.types import Model, Number, Time

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}", tags=["statistics"])
_KINDS = ("statistics", "skew")
_INSTANCE = re.compile(INSTANCE)
Dataset = Annotated[str, Query(max_length=250, description="A split of the statistics, or a side of the comparison")]
Slice = Annotated[str | None, Query(max_length=1000, description="Key of a slice; the whole data set by default")]
Weighted = Annotated[bool, Query(description="Whether to return weights instead of counts")]


class StatisticsDataset(Model):
    """A data set with statistics."""

    name: str
    rows: int
    weighted_rows: Number = None
    slices: dict[str, int] = {}
    """Rows by the key of a slice, the largest first."""
    slices_left_out: int = 0
    """Number of smaller slices without figures."""


class StatisticsDatasets(Model):
    """The data sets of an artifact's statistics."""

    datasets: list[StatisticsDataset]
    created_at: Time
    window: tuple[str | None, str | None] | None
    """Time window of the rows, if known."""
    label: str | None
    problem: str | None
    """Type of the label: binary, multiclass or regression; null if unknown."""
    classes: list[str] | None
    """Names of the label's classes by number, if any."""
    weight: str | None
    """Feature with the weights of rows."""
    time: str | None
    """Feature with the times of rows, in seconds since the epoch."""
    warnings: list[str] = []
    """Warnings of the ingest about the columns of the rows."""


class Distances(Model):
    """Distances between the common features of two data sets, as columns."""

    names: list[str]
    measures: list[str | None]
    scores: list[Number]
    thresholds: list[Number]
    p_values: list[Number]
    drifted: list[bool | None]
    reported: bool
    """Whether they come from a skew report; otherwise they were computed for this response."""
    every: dict[str, Number]
    """Scores by measure, if a single feature was requested."""


@router.get("/statistics")
def list_statistics(found: TaskArtifact) -> StatisticsDatasets:
    """Lists the data sets of an artifact's statistics."""
    _check_kind(found, "kind")
    properties = found.artifact.properties
    window = properties.get("window")
    return StatisticsDatasets(
        datasets=[_dataset(found, name) for name in dataset_names(found)],
        created_at=found.manifest.created_at,  # type: ignore[arg-type]  # read from ISO 8601
        window=tuple(window) if isinstance(window, list) and len(window) == 2 else None,
        warnings=properties.get("warnings") or [],
        **{name: properties.get(name) for name in ("label", "problem", "classes", "weight", "time")},
    )


@router.get("/statistics/features", response_model=FeatureTable)
def list_features(found: TaskArtifact, dataset: Dataset, slice: Slice = None, weighted: Weighted = False) -> Response:
    """Lists the features of a data set."""
    _check_kind(found, "kind")
    view = FeaturePage.read(found, dataset).view(slice, weighted)
    return Response(view.table, media_type="application/json")


@router.get("/statistics/feature", response_model=FeatureDetail)
def get_feature(
    found: TaskArtifact,
    dataset: Dataset,
    feature: Annotated[str, Query(max_length=1000, description="The feature's name")],
    slice: Slice = None,
    weighted: Weighted = False,
) -> Response:
    """Returns one feature of a data set in full."""
    _check_kind(found, "kind")
    view = FeaturePage.read(found, dataset).view(slice, weighted)
    return Response(view.detail(feature), media_type="application/json")


@router.get("/statistics/distances")
def list_distances(
    user: GetUserDep,
    found: TaskArtifact,
    dataset: Dataset,
    to: Annotated[str, Query(max_length=1500, description="The other artifact: kind/dag_id/task_id/instance/run_id")],
    to_dataset: Dataset,
    slice: Slice = None,
    to_slice: Slice = None,
    feature: Annotated[str | None, Query(max_length=1000, description="One feature, to get all its measures")] = None,
) -> Distances:
    """Returns the distances between the features of another data set and those of this one.

    They are those of the skew report if these are its sides; otherwise they are computed from both distributions.
    """
    kind, dag_id, task_id, instance, run_id = [*to.split("/", 4), *[""] * 5][:5]
    if kind not in _KINDS or not run_id or not _INSTANCE.fullmatch(instance):
        raise HTTPException(
            422, f"to is {to!r}, expected kind/dag_id/task_id/instance/run_id, of kind {' or '.join(_KINDS)}"
        )
    if not may_read(user, dag_id, DagAccessEntity.XCOM):
        raise HTTPException(403, "Forbidden")
    other = find_artifact(user, None, task_instance(dag_id, run_id, task_id, instance), kind)
    _check_kind(found, "kind")
    _check_kind(other, "to")
    old, new = FeaturePage.read(found, dataset), FeaturePage.read(other, to_dataset)
    shared = set(new.index.features) if feature is None else {feature}.intersection(new.index.features)
    names = [each for each in old.index.features if each in shared]
    is_report = found.artifact.kind == "skew" and found.artifact.fingerprint == other.artifact.fingerprint
    if is_report and (dataset, to_dataset) == ("reference", "current"):
        judged = judged_features(found)
    else:
        is_report = False
        judged = compare_views(old.view(slice, False), new.view(to_slice, False), names)
    columns = {"measures": "measure", "scores": "score", "thresholds": "threshold", "p_values": "p_value"}
    lists = {
        column: [judged.get(each, {}).get(field) for each in names]
        for column, field in (columns | {"drifted": "drifted"}).items()
    }
    every = {}
    if feature is not None and feature in judged:
        every = {judged[feature]["measure"]: judged[feature]["score"], **judged[feature].get("scores", {})}
    return Distances(names=names, **lists, reported=is_report, every=every)


def _check_kind(result: FoundArtifact, parameter: str) -> None:
    if result.artifact.kind not in _KINDS:
        raise HTTPException(422, f"{parameter} is {result.artifact.kind!r}, expected {' or '.join(_KINDS)}")


def _dataset(found: FoundArtifact, name: str) -> StatisticsDataset:
    """Returns the known facts of a data set; statistics without a page's file have their manifest's counts."""
    if not FeaturePage.exists(found, name):
        rows = found.artifact.rows.get(name)
        return StatisticsDataset(name=name, rows=rows.rows_out if rows else 0)
    return StatisticsDataset.of(FeaturePage.read(found, name).index, name=name)
