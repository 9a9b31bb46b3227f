"""The feature store of a pipeline through the API."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_hops.core.store.owners import claim, owners_of, set_owners
from airflow_hops.extensions.feature_store.core.stored_features import (
    OWNED,
    FeatureDefinitions,
    FeatureSummary,
    MaterializationProperties,
    ViewDefinition,
    ViewStatistics,
    WindowStatistics,
)
from web.conftest import Api

pytestmark = pytest.mark.runtime

DAG = "pages_features"
PATH = f"/api/dags/{DAG}/features"
OWNED_NAME = "flights@1c0b7e2f"
HOSTILE = "<img src=x onerror=alert(1)>"
DEFINITIONS = FeatureDefinitions(
    "flights",
    entities={"carrier": "carrier_id"},
    views=(
        ViewDefinition(
            "delays", "FeatureView", ("carrier_id",), {"mean_delay": "Float32"}, 3600.0, "ops@example.com", online=True
        ),
        ViewDefinition(
            "weather", "FeatureView", ("airport_id",), {"wind": "Float32"}, description=HOSTILE, online=True
        ),
    ),
    services={"scoring": ("delays:mean_delay",)},
    fingerprint="f" * 64,
)


def configuration(day: int = 1, mean: float = 5.0, statistics: Any = None) -> dict[str, Any]:
    """The artifact of a run that loaded one day of January."""
    window = (f"2026-01-{day:02}T00:00:00+00:00", f"2026-01-{day + 1:02}T00:00:00+00:00")
    loaded = MaterializationProperties(window, {"delays": "loaded"})
    summary = FeatureSummary(day, 40, mean, 2.0, (mean - 3, mean, mean + 3))
    written = WindowStatistics(window, {"delays": ViewStatistics(100, {"mean_delay": summary})})
    return {
        "feature_definitions": {
            "files": {"definitions.json": DEFINITIONS.to_dict()},
            "properties": {"project": "flights", "owned_name": OWNED_NAME},
        },
        "materialization": {
            "files": {"feature_statistics.json": statistics or written.to_dict()},
            "properties": loaded.to_dict(),
        },
    }


@pytest.fixture(scope="module")
def runs(api: Api, run_dag: Any) -> Any:
    return run_dag(DAG, configuration())


def test_the_page_has_views_and_their_freshness(api: Api, runs: Any) -> None:
    page = api.get(PATH, "viewer").json()
    delays, weather = page["views"]
    assert (page["project"], page["services"]) == ("flights", {"scoring": ["delays:mean_delay"]})
    assert (delays["owner"], delays["ttl_s"], delays["loaded_until"]) == (
        "ops@example.com", 3600, "2026-01-02T00:00:00Z",
    )  # fmt: skip
    assert (weather["loaded_until"], weather["description"], weather["used_by"]) == (None, HOSTILE, [])
    assert page["definitions"]["task_id"] == "feature_definitions"


def test_a_pipeline_without_a_feature_store_has_an_empty_page(api: Api) -> None:
    page = api.get("/api/dags/pages/features").json()
    assert (page["project"], page["views"]) == (None, [])


def test_owners_are_changed_by_those_who_may_trigger_all(api: Api, runs: Any) -> None:
    assert api.get(PATH).json()["owned"] is None

    def change(user: str, *owners: str) -> Any:
        return api.request("POST", f"{PATH}/owners", user, json={"owners": owners, "reason": "one team"})

    refused = change("admin", DAG)
    assert (refused.status_code, f"does not own '{OWNED_NAME}'" in refused.json()["detail"]) == (404, True)
    claim(api.store, OWNED, OWNED_NAME, DAG)
    assert api.get(PATH).json()["owned"] == {"name": OWNED_NAME, "owners": [DAG], "may_change": True}
    assert api.get(PATH, "viewer").json()["owned"]["may_change"] is False
    for user, owners, status in (
        ("viewer", [DAG], 403),
        (f"only:{DAG}", [DAG, "pages"], 403),
        ("admin", [], 422),
        ("admin", [DAG, "pagse"], 404),
        ("admin", [DAG, "pages", DAG], 200),
        (f"only:{DAG}", [DAG], 403),  # may not trigger the other owner
    ):
        answer = change(user, *owners)
        assert answer.status_code == status, answer.text
    assert list(owners_of(api.store, OWNED, OWNED_NAME)) == [DAG, "pages"]
    assert api.get(PATH, f"only:{DAG}").json()["owned"] == {"name": OWNED_NAME, "owners": [DAG], "may_change": False}
    set_owners(api.store, OWNED, OWNED_NAME, ["pages"], "root", "moved")
    assert change("admin", DAG).status_code == 404


def test_statistics_show_the_last_load_of_each_window(api: Api, runs: Any, brief_run: Any) -> None:
    brief_run(DAG, configuration(day=3, mean=8.0))
    brief_run(DAG, configuration(day=2, mean=6.0))
    brief_run(DAG, configuration(day=3, mean=9.0))
    page = api.get(f"{PATH}/statistics").json()
    (history,) = page["entries"]
    assert (history["view"], history["feature"], page["problems"]) == ("delays", "mean_delay", [])
    assert [window["mean"] for window in history["windows"]] == [5, 6, 9]
    assert [window["start"][:10] for window in history["windows"]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    newest = history["windows"][-1]
    assert (newest["rows"], newest["missing"], newest["quantiles"]) == (100, 3, [6, 9, 12])

    brief_run(DAG, configuration(day=4, statistics={"window": 7}))
    page = api.get(f"{PATH}/statistics").json()
    assert (len(page["entries"][0]["windows"]), len(page["problems"])) == (3, 1)
    assert "feature_statistics.json" in page["problems"][0]
