"""The feature store of a pipeline through the API."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_hops.core.store.owners import claim, owners_of, set_owners
from airflow_hops.extensions.feature_store.core.stored_features import (
    OWNED,
    FeatureDefinitions,
    MaterializationProperties,
    ViewDefinition,
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


def configuration() -> dict[str, Any]:
    """The artifacts of a run that loaded the first day of January."""
    loaded = MaterializationProperties(("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"), {"delays": "loaded"})
    return {
        "feature_definitions": {
            "files": {"definitions.json": DEFINITIONS.to_dict()},
            "properties": {"project": "flights", "owned_name": OWNED_NAME},
        },
        "materialization": {"files": {}, "properties": loaded.to_dict()},
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
