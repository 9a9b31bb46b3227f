"""Statistics of features, by the splits of a statistics artifact or the sides of a skew artifact; and rows."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Response

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.web.access import may_read
from airflow_hops.web.artifacts.lookup import INSTANCE, FoundArtifact, TaskArtifact, find_artifact, task_instance
from airflow_hops.web.queries import ask, ask_bytes
from airflow_hops.web.types import Model, Number, Time

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}", tags=["statistics"])
_KINDS = ("statistics", "skew")
_INSTANCE = re.compile(INSTANCE)
Kinds = Literal["num", "string", "bytes", "struct", "none"]
Dataset = Annotated[str, Query(max_length=250, description="A split of the statistics, or a side of the comparison")]
Slice = Annotated[str | None, Query(max_length=1000, description="Key of a slice; the whole data set by default")]
Weighted = Annotated[bool, Query(description="Whether to return weights instead of counts")]


class StatisticsDataset(Model):
    """A data set with statistics."""

    name: str
    rows: int
    weighted_rows: Number
    features: int
    slices: dict[str, int]
    """Rows by the key of a slice."""


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


class FeatureTable(Model):
    """The features of a data set in columns, rounded for display."""

    rows: int
    weighted_rows: Number
    names: list[str]
    types: list[str]
    kinds: list[Kinds]
    """Kinds of statistics: of numbers, strings, non-text bytes, nested features, or none."""
    count: list[Number]
    """Rows that have the feature."""
    missing: list[Number]
    zeros: list[int | None]
    nan: list[int | None]
    infinite: list[int | None]
    mean: list[Number]
    std: list[Number]
    quantiles: list[list[Number] | None]
    """Minimum, the nine deciles, maximum."""
    unique: list[int | None]
    average_length: list[Number]
    """In characters for strings, otherwise in bytes."""
    top_values: list[list[tuple[str, float]] | None]
    histogram: list[tuple[Number, Number, list[int]] | None]
    """Ends of equally wide buckets, and the share of values in each, in ten thousandths."""
    non_uniformity: list[Number]
    """0 if all buckets or values are equally frequent, 1 if there is only one."""
    values_per_row: list[Number]
    """Mean, unless always one."""


class DistributionFunction(Model):
    """A distribution function, linear between its knots, with jumps at repeated values."""

    values: list[float]
    shares: list[float]
    """Shares of the finite values up to each knot, 0 to 1."""


class FeatureDetail(Model):
    """A feature of a data set in full."""

    rows: int
    types: str
    kinds: Kinds
    count: Number
    missing: Number
    zeros: int | None
    nan: int | None
    infinite: int | None
    mean: Number
    std: Number
    quantiles: list[Number] | None
    unique: int | None
    not_utf8: int
    average_length: Number
    non_uniformity: Number
    values_per_row: tuple[Number, Number, Number] | None
    """Minimum, mean and maximum number of values in a row."""
    standard: list[tuple[Number, Number, float]]
    """Buckets of TFDV: from, to, number of values."""
    curve: DistributionFunction | None
    values: list[tuple[str, float]]
    other_values: Number
    """Number of occurrences of other values."""
    custom: dict[str, float | str | None]
    """Results of additional statistics generators."""


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
    artifact = _checked(found, "kind")
    properties = artifact["properties"]
    window = properties.get("window")
    return StatisticsDatasets(
        **ask(found.hook, "statistics/datasets", {"artifact": artifact}),
        created_at=found.manifest.created_at,  # type: ignore[arg-type]  # read from ISO 8601
        window=tuple(window) if isinstance(window, list) and len(window) == 2 else None,  # type: ignore[arg-type]
        **{name: properties.get(name) for name in ("label", "problem", "classes", "weight", "time")},
    )


@router.get("/statistics/features", response_model=FeatureTable)
def list_features(found: TaskArtifact, dataset: Dataset, slice: Slice = None, weighted: Weighted = False) -> Response:
    """Lists the features of a data set."""
    params = {"artifact": _checked(found, "kind"), "dataset": dataset, "slice": slice, "weighted": weighted}
    # Passed on unparsed, since the features of a wide table are megabytes.
    return Response(ask_bytes(found.hook, "statistics/features", params), media_type="application/json")


@router.get("/statistics/feature")
def get_feature(
    found: TaskArtifact,
    dataset: Dataset,
    feature: Annotated[str, Query(max_length=1000, description="The feature's name")],
    slice: Slice = None,
    weighted: Weighted = False,
) -> FeatureDetail:
    """Returns one feature of a data set in full."""
    params = {"dataset": dataset, "slice": slice, "weighted": weighted, "feature": feature}
    return FeatureDetail(**ask(found.hook, "statistics/feature", {"artifact": _checked(found, "kind"), **params}))


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
    """Returns the distances between the features of another data set and those of this one."""
    kind, dag_id, task_id, instance, run_id = [*to.split("/", 4), *[""] * 5][:5]
    if kind not in _KINDS or not run_id or not _INSTANCE.fullmatch(instance):
        raise HTTPException(
            422, f"to is {to!r}, expected kind/dag_id/task_id/instance/run_id, of kind {' or '.join(_KINDS)}"
        )
    if not may_read(user, dag_id, DagAccessEntity.XCOM):
        raise HTTPException(403, "Forbidden")
    other = find_artifact(user, None, task_instance(dag_id, run_id, task_id, instance), kind)
    if other.hook.settings.store != found.hook.settings.store:
        raise HTTPException(422, f"to: {to!r} is in the store {other.store.root}, expected {found.store.root}")
    params = {
        "reference": {"artifact": _checked(found, "kind"), "dataset": dataset, "slice": slice},
        "current": {"artifact": _checked(other, "to"), "dataset": to_dataset, "slice": to_slice},
        "feature": feature,
    }
    return Distances(**ask(found.hook, "statistics/distances", params))


def _checked(result: FoundArtifact, parameter: str) -> dict[str, Any]:
    """Returns the reference of an artifact that has statistics."""
    if result.artifact.kind not in _KINDS:
        raise HTTPException(422, f"{parameter} is {result.artifact.kind!r}, expected {' or '.join(_KINDS)}")
    return result.artifact.to_dict()


class ColumnType(Model):
    """A column: its Arrow type, and the kind of its values; null if its values cannot be sent."""

    name: str
    type: str
    role: Literal["number", "category", "boolean", "time"] | None


class SplitRows(Model):
    """The rows of a split."""

    rows: int
    columns: list[ColumnType]


@router.get("/splits")
def list_splits(found: TaskArtifact) -> dict[str, SplitRows]:
    """Returns the rows of an artifact by split; none if it has no Parquet files."""
    splits = ask(found.hook, "examples/splits", {"artifact": found.artifact.to_dict()})["splits"]
    return {name: SplitRows(**rows) for name, rows in splits.items()}


@router.get(
    "/rows",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def sample_rows(
    found: TaskArtifact,
    split: Annotated[str, Query(max_length=250)],
    rows: Annotated[int, Query(ge=1, le=50_000)] = 50_000,
    column: Annotated[list[str] | None, Query(description="Columns to return; all by default")] = None,
    row: Annotated[
        int | None, Query(ge=0, lt=50_000, description="One row of the sample, with unrounded numbers")
    ] = None,
) -> Response:
    """Returns a repeatable sample of a split's rows as typed columns (``ml/queries/columns.py``).

    Numbers are rounded to the digits needed for plotting; a single row has all digits.
    """
    params = {"artifact": found.artifact.to_dict(), "split": split, "rows": rows, "columns": column, "row": row}
    return Response(ask_bytes(found.hook, "examples/sample", params), media_type="application/octet-stream")
