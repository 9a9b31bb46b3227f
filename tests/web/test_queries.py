"""The ML side's server: what it answers, what it says of what cannot be answered, that it is there when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException

from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.web.queries import RuntimeServers, ServerProgram, _servers, _waiting, ask, ask_bytes
from web.conftest import Api

pytestmark = pytest.mark.runtime
STEPS = Path(__file__).parents[1] / "steps"


@pytest.fixture(scope="module")
def hook(api: Api, shared_run_step: Any, warm_launcher: Any) -> RuntimeHook:
    """The connection of the tests, after five trainings of the DAG ``pages``."""
    hook = RuntimeHook()
    aucs = [[0.5, 0.6], [0.5, 0.7], [0.5, 0.8], [0.5, 0.9], [0.5, float("nan")]]
    trainings = [
        {"params": {"lr": 10**-number}, "metrics": {"auc": [str(auc) for auc in series]}}
        for number, series in enumerate(aucs)
    ]
    shared_run_step(
        "mlflow_runs:log",
        params={"tracking_uri": hook.settings.tracking_uri, "dag_id": "pages", "trainings": trainings},
        code_paths=(str(STEPS),),
        launcher=warm_launcher,
    )
    return hook


def test_runs_use_mlflows_search_and_order(hook: RuntimeHook) -> None:
    query = {"experiment": "pages", "filter": "metrics.auc > 0.65", "order_by": ["metrics.auc DESC"]}
    result = ask(hook, "runs/search", query)
    assert [run["metrics"]["auc"] for run in result["runs"]] == [0.9, 0.8, 0.7]
    assert result["runs"][0]["params"]["lr"] == "0.001"
    assert result["runs"][0]["status"] == "FINISHED"
    assert result["runs"][0]["tags"]["hops.run_id"] == "run-3"
    assert result["next_page_token"] is None


def test_run_pages_continue_without_gaps(hook: RuntimeHook) -> None:
    query = {"experiment": "pages", "order_by": ["metrics.auc ASC"], "max_results": 3}
    first = ask(hook, "runs/search", query)
    rest = ask(hook, "runs/search", {**query, "page_token": first["next_page_token"]})
    assert [run["metrics"]["auc"] for run in first["runs"] + rest["runs"]] == [0.6, 0.7, 0.8, 0.9, None]
    assert rest["next_page_token"] is None


def test_untrained_pipeline_has_no_runs(hook: RuntimeHook, tmp_path: Path) -> None:
    none = {"runs": [], "next_page_token": None}
    assert ask(hook, "runs/search", {"experiment": "pages_other"}) == none
    elsewhere = RuntimeHook()
    elsewhere.__dict__["settings"] = type(hook.settings)(
        **{**vars(hook.settings), "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    )
    assert ask(elsewhere, "runs/search", {"experiment": "pages"}) == none
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("query", "params", "status", "says"),
    [
        ("runs/search", {"experiment": "pages", "filter": "metrics.auc >"}, 422, "character 1: Invalid clause(s)"),
        ("runs/search", {"experiment": "pages", "order_by": ["size"]}, 422, "order ['size']"),
        ("runs/tracking", {}, 422, "there is no query 'runs/tracking'"),
        ("os/system", {}, 422, "there is no query 'os/system'"),
        ("runs/search", {}, 502, "runs/search: KeyError: 'experiment'"),
    ],
)
def test_unanswerable_queries_are_explained(
    hook: RuntimeHook, query: str, params: dict[str, Any], status: int, says: str
) -> None:
    with pytest.raises(HTTPException) as refused:
        ask(hook, query, params)
    assert refused.value.status_code == status
    assert says in str(refused.value.detail)


def test_a_server_that_was_killed_is_started_again(hook: RuntimeHook) -> None:
    ask_bytes(hook, "runs/search", {"experiment": "pages_other"})
    (server,) = _servers._servers.values()
    server.process.kill()
    server.process.wait()
    assert ask(hook, "runs/search", {"experiment": "pages_other"})["runs"] == []
    assert [other.process.pid for other in _servers._servers.values()] != [server.process.pid]


def test_missing_runtime_environment_is_the_cause(hook: RuntimeHook, tmp_path: Path) -> None:
    elsewhere = RuntimeHook()
    elsewhere.__dict__["settings"] = type(hook.settings)(**{**vars(hook.settings), "runtime": tmp_path / "none"})
    with pytest.raises(HTTPException) as refused:
        ask(elsewhere, "runs/search", {"experiment": "pages"})
    assert refused.value.status_code == 502
    assert "airflow hops runtime create" in str(refused.value.detail)


def test_waiting_queries_leave_threads_to_airflow(hook: RuntimeHook) -> None:
    taken = 0
    while _waiting.acquire(blocking=False):
        taken += 1
    try:
        with pytest.raises(HTTPException) as refused:
            ask(hook, "runs/search", {"experiment": "pages"})
    finally:
        _waiting.release(taken)
    assert (refused.value.status_code, taken > 8) == (503, True)
    assert ask(hook, "runs/search", {"experiment": "pages"})["runs"]


def test_least_recently_used_query_server_is_ended(hook: RuntimeHook, tmp_path: Path) -> None:
    servers = RuntimeServers(most=2)
    programs = []
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        secrets = {"HOPS_QUERIES_TOKEN": name}
        module = "airflow_hops.ml.queries"
        programs.append(ServerProgram(name, module, hook.settings.runtime, tmp_path / name, secrets=secrets))
    try:
        first, second = servers.address(programs[0]), servers.address(programs[1])
        assert servers.address(programs[0]) == first
        servers.address(programs[2])
        assert set(servers._servers) == {programs[0], programs[2]}
        assert servers.address(programs[0]) == first != second
    finally:
        servers.end()
