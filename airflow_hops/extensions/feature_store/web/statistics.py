"""Statistics of features over the windows that a pipeline loaded into the online store."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.extensions.feature_store.core.stored_features import (
    STATISTICS_NAME,
    MaterializationProperties,
    WindowStatistics,
)
from airflow_hops.web.artifacts.lookup import open_returned, pipeline_of
from airflow_hops.web.artifacts.tasks import last_returned
from airflow_hops.web.types import Model, Number, Page, Time

router = APIRouter()

_MATERIALIZATIONS = 50


class StoredFeatureWindow(Model):
    """A feature in the rows of one window."""

    start: Time
    end: Time
    """Its rows are those from ``start`` until before ``end``."""
    rows: int
    missing: int
    distinct: int | None
    mean: Number
    std: Number
    quantiles: list[Number] | None
    """The 5th, 50th and 95th percentile."""


class StoredFeatureHistory(Model):
    """A feature over the windows, oldest first."""

    view: str
    feature: str
    windows: list[StoredFeatureWindow]


@router.get("/statistics")
def get_feature_statistics(user: GetUserDep, dag_id: str) -> Page[StoredFeatureHistory]:
    """Returns the statistics of the windows that were loaded last; of a window loaded again, those of the last time."""
    with create_session() as session:
        pipeline_of(session, dag_id)
        loaded = last_returned(session, [dag_id], "materialization", _MATERIALIZATIONS)[:_MATERIALIZATIONS]
    series: dict[tuple[str, str], dict[tuple[str | None, str | None], StoredFeatureWindow]] = {}
    seen: set[tuple[str, Any]] = set()
    problems = []
    for each in loaded:
        properties = MaterializationProperties.of(each.artifact)
        again = {(view, properties.window) for view in properties.views}
        if again <= seen:
            continue
        try:
            materialization = open_returned(user, each)
            if not materialization.has(STATISTICS_NAME):
                continue
            statistics = WindowStatistics.from_dict(materialization.read_json(STATISTICS_NAME))
            for view, figures in statistics.views.items():
                for feature, summary in figures.features.items():
                    start, end = statistics.window
                    window = StoredFeatureWindow.of(summary, start=start, end=end, rows=figures.rows)
                    series.setdefault((view, feature), {}).setdefault(statistics.window, window)
        except HTTPException as error:
            problems.append(str(error.detail))
        except (TypeError, ValueError) as error:
            problems.append(f"{each.artifact.uri}/{STATISTICS_NAME}: {error}")
        else:
            seen |= again
    features = [
        StoredFeatureHistory(
            view=view,
            feature=feature,
            windows=sorted(windows.values(), key=lambda window: (window.start, window.end)),
        )
        for (view, feature), windows in sorted(series.items())
    ]
    return Page[StoredFeatureHistory](entries=features, total_entries=len(features), problems=problems)
