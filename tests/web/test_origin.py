"""Origin of requests that change something, behind proxies and under a path."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from airflow_hops.web.access import check_origin

HOST = "http://airflow.example:8080"


@pytest.fixture
def client() -> TestClient:
    """A client of an application with one route that changes something, at ``HOST``."""
    app = FastAPI(dependencies=[Depends(check_origin)])
    app.add_api_route("/change", lambda: "changed", methods=["GET", "POST", "DELETE"])
    return TestClient(app, base_url=HOST)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": HOST},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://ml.example", "X-Forwarded-Host": "ml.example", "X-Forwarded-Proto": "https"},
        {"Origin": "https://ml.example", "Host": "ml.example"},
        {"Origin": "https://ml.example:8443", "X-Forwarded-Host": "ml.example:8443, inner.example"},
        {"Origin": "https://public.example", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_same_origin_and_programs_are_allowed(
    client: TestClient, headers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://public.example/some/path")
    assert client.post("/change", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://airflow.example"},
        {"Origin": "http://airflow.example:8080.elsewhere.example"},
        {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://airflow.example:99999999"},
        {"Origin": "http://inner.example", "X-Forwarded-Host": "ml.example, inner.example"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_other_origins_are_refused(client: TestClient, headers: Any, method: str) -> None:
    answer = client.request(method, "/change", headers=headers)
    assert answer.status_code == 403
    assert "may not change anything here" in answer.json()["detail"]
    assert client.get("/change", headers=headers).status_code == 200
