"""A run by stage, with what it made; files of an artifact; what goes on with what pipelines serve."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import airflow_hops
from airflow_hops.core.artifacts.artifact import Producer
from web.conftest import Api

pytestmark = pytest.mark.runtime


@pytest.fixture
def failed_train(api: Api) -> Iterator[str]:
    """A run of ``pages_training`` whose training has failed and told why; its id."""
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    from airflow_hops.runner.progress import ProgressWriter

    run_id = "manual__a:run+of~its.own"
    with create_session() as session:
        dag: Any = SerializedDagModel.get_dag("pages_training", session=session)
        run = dag.create_dagrun(
            run_id=run_id, run_type=DagRunType.MANUAL, run_after=api.pages.run_after, state=DagRunState.FAILED,
            triggered_by=DagRunTriggeredByType.TEST, triggering_user_name="ann", session=session,
        )  # fmt: skip
        for instance in session.query(TaskInstance).filter_by(dag_id="pages_training", run_id=run_id):
            failed = instance.task_id == "train"
            instance.state = TaskInstanceState.FAILED if failed else TaskInstanceState.UPSTREAM_FAILED
            instance.start_date, instance.end_date = run.run_after, run.run_after
            instance.try_number = 1
    report = ProgressWriter(api.store, Producer("pages_training", run_id, "train"))
    report.failed("rank 1 ended: <b>out of memory</b>")
    yield run_id
    report.succeeded()
    with create_session() as session:
        session.delete(session.query(DagRun).filter_by(dag_id="pages_training", run_id=run_id).one())


def _stages(api: Api, run: Any) -> Any:
    return api.get(f"{api.run_path(run)}/stages", "viewer").json()


def test_run_has_stage_states_and_artifacts(api: Api) -> None:
    run = _stages(api, api.pages)
    assert [(stage["task_id"], stage["stage"], stage["state"]) for stage in run["stages"]] == [
        ("examples", None, "success"),
        ("statistics", "statistics", "success"),
        ("schema", "schema", "success"),
        ("validate", "validation", "success"),
    ]
    (statistics,) = run["stages"][1]["artifacts"]
    assert (statistics["kind"], statistics["state"]) == ("statistics", "present")
    assert statistics["maker"]["run_id"] == api.pages.run_id
    assert run["stages"][1]["duration_s"] > 0
    assert run["stages"][0]["artifacts"][0]["rows"]["eval"]["rows_out"] == 200


def test_run_with_a_refused_model_has_the_reason(api: Api, run_dag: Any) -> None:
    def last_run() -> Any:
        (pipeline,) = api.get("/api/pipelines?name=pages_refused", "viewer").json()["entries"]
        return pipeline["last_run"]

    refused = run_dag("pages_refused", {})
    assert str(refused.state) == "success"
    why = "eval: AUC 0.51, at least 0.6 is asked for"
    refusal = {"task_id": "evaluate", "map_index": -1, "iteration": -1, "verdict": "not blessed", "why": why}
    assert _stages(api, refused)["refusals"] == [refusal]
    assert (last_run()["state"], last_run()["refusals"]) == ("success", [refusal])
    assert _stages(api, api.pages)["refusals"] == []
    run_dag("pages_refused", {})
    assert last_run()["run_id"] != refused.run_id
    assert last_run()["refusals"] == [refusal], "of an artifact that was taken from the cache, too"
    deploy = _stages(api, refused)["stages"][1]
    assert (deploy["state"], deploy["skipped"]) == ("skipped", f"evaluation: not blessed: {why}")
    skipped = [api.get(f"{api.run_path(refused)}/tasks/{task}/-1").json()["skipped"] for task in ("deploy", "evaluate")]
    assert skipped == [deploy["skipped"], None]

    candidates = api.get("/api/dags/pages_refused/models/pages_candidate").json()["refused"]
    assert [candidate["why"] for candidate in candidates] == [why] * 2
    assert candidates[0]["champion_version"] is None
    assert (candidates[1]["judged"]["run_id"], candidates[1]["judged"]["task_id"]) == (refused.run_id, "evaluate")
    (model,) = api.get("/api/dags/pages_refused/models").json()["entries"]
    assert (model["last_decision"], model["last_refused"]) == (None, candidates[0])
    runs = api.get("/api/dags/pages_refused/overview").json()["runs"]
    assert [(run["refusals"], len(run["stages"])) for run in runs] == [([refusal], 2)] * 2


def test_newest_measurement_requires_the_right_to_its_dag(api: Api, run_dag: Any) -> None:
    path, nothing = "/api/dags/pages_refused/models/pages_candidate/performance", {"artifact": None, "report": None}
    assert api.get(path).json() == {**nothing, "labels": []}
    run = run_dag("pages_performance", {})
    waits = _stages(api, run)["stages"][1]
    assert (waits["state"], waits["skipped"]) == ("skipped", "no version of model 'pages_candidate' serves yet")
    answer = api.get(path, "viewer").json()
    result = answer["report"]
    assert (answer["artifact"]["dag_id"], answer["artifact"]["run_id"]) == ("pages_performance", run.run_id)
    assert (result["metric"], result["notes"], result["delay_s"]) == ("auc", ["<b>nobody</b> knows"], None)
    (version,) = result["versions"]
    assert version["figures"] == {"auc": [0.7, 0.6, 0.8]}
    assert (version["start"], version["rows"], version["labelled"]) == ("2026-01-01T00:00:00+00:00", 200, 150)
    assert [(each["labelled"], each["figures"]) for each in result["periods"]] == [(20, {})]
    assert result["ages"] == [{"from_s": 0, "to_s": None, "rows": 200, "labelled": 150}]
    assert api.get(path, "only:pages_refused").json() == {**nothing, "labels": []}


@pytest.mark.parametrize(
    ("kind", "properties", "verdict"),
    [
        ("evaluation", {"blessed": True, "reasons": ["better"]}, None),
        ("rollout", {"decision": "promoted", "reasons": []}, None),
        ("rollout", {"decision": "rolled_back", "reasons": ["errors: 5 of 100"]}, "rolled back"),
        ("skew", {"decision": "rolled_back"}, None),
        # A run that made the champion once more refuses nothing.
        ("evaluation", {"blessed": False, "candidate": {"fingerprint": "c"}, "champion": {"fingerprint": "c"}}, None),
        ("evaluation", {"blessed": False, "candidate": {"fingerprint": "c"}, "champion": None}, "not blessed"),
        ("evaluation", {"blessed": False, "candidate": "mine", "champion": 3, "reasons": "too bad"}, "not blessed"),
    ],
)
def test_only_judging_stages_refuse_a_model(kind: str, properties: dict[str, Any], verdict: str | None) -> None:
    from airflow_hops.core.artifacts.artifact import Artifact
    from airflow_hops.web.artifacts.tasks import ReturnedArtifact
    from airflow_hops.web.runs.states import refusals_in

    artifact = Artifact("file:///store/made", kind, "f" * 64, properties=properties)
    returned = [ReturnedArtifact("dag", "run", task, -1, datetime.now(UTC), artifact) for task in ("one", "two")]
    results = [(refusal.task_id, refusal.verdict) for refusal in refusals_in(returned)]
    assert results == ([("one", verdict), ("two", verdict)] if verdict else [])


def test_failed_run_names_task_and_reason(api: Api, failed_train: str) -> None:
    train, deploy = _stages(api, SimpleNamespace(dag_id="pages_training", run_id=failed_train))["stages"]
    why = "rank 1 ended: <b>out of memory</b>"
    assert (train["state"], train["error"], train["artifacts"]) == ("failed", why, [])
    assert (deploy["state"], deploy["error"], deploy["model_name"]) == ("upstream_failed", None, "pages_model")
    (pipeline,) = api.get("/api/pipelines?name=pages_training", "viewer").json()["entries"]
    run = pipeline["last_run"]
    assert (run["run_id"], run["state"]) == (failed_train, "failed")
    stages = [(stage["task_id"], stage["state"], stage["ended"]) for stage in run["stages"]]
    assert stages == [("train", "failed", 1), ("deploy", "upstream_failed", 1)]
    assert run["failure"] == {"task_id": "train", "map_index": -1, "iteration": -1, "verdict": "failed", "why": why}


def test_file_is_downloaded_never_shown_inline(api: Api) -> None:
    path = f"{api.artifact_path('statistics', 'statistics')}/files/train/statistics.json"
    answer = api.get(path, "viewer")
    assert answer.content == (api.folder("statistics", "statistics") / "train" / "statistics.json").read_bytes()
    assert {
        "content-type": "application/octet-stream",
        "content-disposition": "attachment; filename*=UTF-8''statistics.json",
        "x-content-type-options": "nosniff",
    }.items() <= answer.headers.items()
    assert "sandbox" in answer.headers["content-security-policy"]
    api.refused(path, 403, user="only:pages_other")


@pytest.mark.parametrize(
    "file",
    [
        "no_such", "manifest.json", "train", "%2e%2e/%2e%2e/examples/examples/manifest.json", "..%2fmanifest.json",
        "%2fetc%2fpasswd", "train/%2e/statistics.json", "train%2f%2e%2e%2f%2e%2e%2fx", "%00",
    ],
)  # fmt: skip
def test_only_files_of_the_manifest_are_served(api: Api, file: str) -> None:
    answer = api.get(f"{api.artifact_path('statistics', 'statistics')}/files/{file}")
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text


def test_deleted_file_is_410(api: Api) -> None:
    with api.without(api.folder("statistics", "statistics") / "eval" / "statistics.json"):
        api.refused(f"{api.artifact_path('statistics', 'statistics')}/files/eval/statistics.json", 410, "was deleted")


def test_notebook_page_is_sandboxed(api: Api) -> None:
    api.write("notebook", {"notebook.html": "<script>draw()</script>ü"}, "examples")
    page = f"{api.artifact_path(kind='notebook')}/page"
    outer = api.get(page, "viewer")
    assert "draw()" not in outer.text and 'sandbox="allow-scripts" src="?framed=true"' in outer.text
    assert '<a href="?scripts=true">' in outer.text
    assert "frame-src 'self'" in outer.headers["content-security-policy"]
    answer = api.get(f"{page}?framed=true", "viewer")
    assert (answer.text, answer.headers["content-type"]) == ("<script>draw()</script>ü", "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts; default-src 'none'" in policy and "allow-same-origin" not in policy
    assert "frame-ancestors 'self'" in policy and "connect-src" not in policy
    api.refused(page, 403, user="only:pages_other")


def test_notebook_scripts_run_only_on_request_except_dive(api: Api) -> None:
    template = (Path(airflow_hops.__file__).parent / "extensions" / "notebooks" / "ml" / "dive.html").read_text()

    def frame(data: str) -> str:
        return f'<iframe srcdoc="{html.escape(template.replace("DATA", data))}"></iframe>'

    content = [frame('{"columns": {}, "rows": 1}'), frame("{}; new RTCPeerConnection()"), "<script>x()</script>"]
    api.write("notebook", {"notebook.html": "".join(content)}, "examples")
    page = f"{api.artifact_path(kind='notebook')}/page"

    def sources(query: str, site: str) -> str:
        policy = api.get(f"{page}?{query}", headers={"Sec-Fetch-Site": site}).headers["content-security-policy"]
        return str(policy.partition("script-src ")[2].partition(";")[0])

    script = template.replace("DATA", '{"columns": {}, "rows": 1}').partition("<script>")[2].partition("</script>")[0]
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert sources("framed=true", "same-origin") == f"'sha256-{known}'"
    assert sources("framed=true&scripts=true", "cross-site") == f"'sha256-{known}'"
    assert sources("framed=true&scripts=true", "same-origin") == "'unsafe-inline'"
    asking = api.get(f"{page}?scripts=true", headers={"Sec-Fetch-Site": "same-origin"})
    assert 'src="?framed=true&amp;scripts=true"' in asking.text


def test_silent_server_is_named_without_other_dags(api: Api) -> None:
    asked = "/api/pipelines/activity?dag_id=pages&dag_id="
    result = api.get(f"{asked}pages_training&dag_id=no_such", "viewer").json()
    assert result["pages"] == {"traffic": None, "health": []}
    assert "serving_rest_port" in result["pages_training"]["traffic"]["problem"]
    assert [each["state"] for each in result["pages_training"]["health"]] == ["unknown"]
    others = api.get(f"{asked}pages_other", "only:pages_other").json()
    for name, each in ("no_such", result["no_such"]), ("pages", others["pages"]):
        missing = f"DAG '{name}' does not exist, has no tasks of this package, or you may not read it"
        assert each["traffic"]["problem"] == each["health"][0]["detail"] == missing
    assert others["pages_other"] == {"traffic": None, "health": []}


def test_pages_know_the_names_of_stages() -> None:
    package = Path(str(airflow_hops.__file__)).parent
    pages = [*package.glob("web/**/*.py"), *(package.parent / "ui" / "src").glob("**/*.ts*")]
    text = "\n".join(page.read_text() for page in pages if page.is_file())
    compared = re.findall(r'stage [!=]==? "(\w+)"', text)
    listed = re.findall(r"^_(?:TRACKED|WATCHING|DECIDING) = [({](.*)[)}]$", text, re.MULTILINE)
    assert len(compared) > 3 and len(listed) == 3
    named = {*compared, *(name.strip(' "') for names in listed for name in names.split(","))} - {"base"}
    assert named <= {file.stem for file in package.glob("operators/*.py")}
