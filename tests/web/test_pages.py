"""The pages' JavaScript as the API server sends it, and the plugin's entries that lead to it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter

from airflow_hops import plugin
from airflow_hops.core.errors import BadInput
from airflow_hops.web import pages
from airflow_hops.web.extension_pages import ExtensionPage
from web.conftest import bearer

pytestmark = pytest.mark.runtime
CODE = b"globalThis.AirflowPlugin = () => null; // " + b"x" * 5000
FINGERPRINT = hashlib.sha256(CODE).hexdigest()[:16]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts a small build in the place of the real one; its fingerprint."""
    (tmp_path / "hops.umd.js").write_bytes(CODE)
    (tmp_path / "fingerprint").write_text(FINGERPRINT)
    monkeypatch.setattr(pages, "STATIC", tmp_path)
    return FINGERPRINT


def test_airflow_accepts_all_entries_with_existing_bundles(api: Any) -> None:
    plugins = api.client.get("/api/v2/plugins", headers=bearer("admin")).json()["plugins"]
    (entries,) = (plugin["react_apps"] for plugin in plugins if plugin["name"] == "hops")
    assert [(entry["name"], entry["destination"], entry["url_route"]) for entry in entries] == [
        ("Pipelines", "nav", "hops"),
        ("ML Artifacts", "dag_run", "hops-run"),
        ("ML Results", "task_instance", "hops-task"),
    ]
    # Relative, so that they are found below any base_url; and different, or the host takes the second for broken.
    assert len({entry["bundle_url"] for entry in entries}) == 3
    for address in [*(entry["bundle_url"] for entry in entries), entries[0]["icon"]]:
        assert not address.startswith("/")
        assert api.client.get(f"/{address}").status_code == 200


def test_entry_names_match_the_bundle() -> None:
    source = (Path(__file__).parents[2] / "ui" / "src" / "host.ts").read_text()
    names = ", ".join(f'"{entry["name"]}"' for entry in pages.react_apps())
    assert f"ENTRY_NAMES = [{names}]" in source


def test_bundle_is_immutable_only_under_its_fingerprint(api: Any, built: str) -> None:
    current = api.get(f"/static/hops.umd.js?v={built}")
    assert current.content == CODE
    assert current.headers["content-encoding"] == "gzip"
    assert current.headers["content-type"].startswith("text/javascript")
    assert "immutable" in current.headers["cache-control"]
    for query in ("", "?v=", "?v=none", "?v=of-an-older-build"):
        other = api.get(f"/static/hops.umd.js{query}")
        assert (other.content, other.headers["cache-control"]) == (CODE, "no-cache")


def test_cached_bundle_is_304(api: Any, built: str) -> None:
    first = api.get("/static/hops.umd.js")
    again = api.get("/static/hops.umd.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    (pages.STATIC / "hops.umd.js").write_bytes(CODE + b"// changed")
    assert api.get("/static/hops.umd.js", headers={"If-None-Match": first.headers["etag"]}).status_code == 200


def test_missing_build_is_explained_on_the_page(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "STATIC", tmp_path / "nothing")
    assert all("?v=none&" in entry["bundle_url"] for entry in pages.react_apps())
    notice = api.get("/static/hops.umd.js?v=none")
    assert notice.status_code == 200
    assert "globalThis.AirflowPlugin" in notice.text
    assert "make ui" in notice.text
    assert notice.headers["cache-control"] == "no-cache"


def test_bundle_of_an_extension_is_listed_and_served(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "any name.js"
    page = ExtensionPage(router=APIRouter(), bundle=bundle, destination="model", label="Calibration")
    monkeypatch.setitem(plugin._api._app.state.pages, "calibration", page)

    def listed() -> Any:
        return next(each for each in api.get("/api/extensions").json() if each["name"] == "calibration")

    assert listed()["bundle"] == "hops/static/calibration.umd.js?v=none"
    assert "make ui" in api.get("/static/calibration.umd.js").text
    bundle.write_bytes(CODE)
    assert listed() == {
        "name": "calibration",
        "bundle": f"hops/static/calibration.umd.js?v={FINGERPRINT}",
        "destination": "model",
        "label": "Calibration",
        "kind": None,
        "applies": None,
    }
    answer = api.client.get(f"/{listed()['bundle']}")
    assert (answer.content, "immutable" in answer.headers["cache-control"]) == (CODE, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"destination": "model", "label": "X"}, "bundle is missing"),
        ({"kind": "notebook"}, "bundle is missing"),
        ({"bundle": Path("x.js")}, "destination and kind are missing"),
        ({"bundle": Path("x.js"), "destination": "runs"}, "label is missing: a page of the destination 'runs'"),
        ({"bundle": Path("x.js"), "destination": "runs", "label": "X", "applies": "/y"}, "applies is '/y', but only"),
    ],
)
def test_page_that_nothing_could_show_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ExtensionPage(router=APIRouter(), **arguments)


@pytest.mark.parametrize(
    "name",
    ["fingerprint", "sources.sha256", "..%2Fpages.py", "%2E%2E%2Fapp.py", "%2Fetc%2Fpasswd", "..%5Capp.py", "x" * 500],
)
def test_only_built_files_are_served(api: Any, built: str, name: str) -> None:
    assert api.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize(
    ("path", "status", "policy"),
    [
        ("/hops/api/pipelines", 200, "default-src 'none'"),
        ("/hops/api/pipelines?limit=0", 422, "default-src 'none'"),
        ("/hops/api/nothing", 404, "default-src 'none'"),
        ("/hops/static/hops.umd.js", 200, "default-src 'none'"),
        ("/hops/static/icon.svg", 200, "default-src 'none'"),
        ("/plugin/hops", 200, "base-uri 'self'; object-src 'none'"),
        ("/plugin/hops/models?dag=pages", 200, "base-uri 'self'; object-src 'none'"),
        ("/dags/pages/runs/first/plugin/hops-run", 200, "base-uri 'self'; object-src 'none'"),
    ],
)
def test_other_sites_cannot_frame_the_pages(api: Any, built: str, path: str, status: int, policy: str) -> None:
    answer = api.client.get(path, headers=bearer("admin"))
    assert answer.status_code == status
    assert answer.headers.get_list("content-security-policy") == ["frame-ancestors 'self'", policy]
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/dags/pages", "/plugin/hops-of-others", "/api/v2/version"])
def test_pages_of_airflow_and_other_plugins_are_unchanged(api: Any, path: str) -> None:
    answer = api.client.get(path, headers=bearer("admin"))
    assert answer.status_code == 200
    assert "content-security-policy" not in answer.headers
    assert "x-frame-options" not in answer.headers
