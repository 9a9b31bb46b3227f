"""Task instances through the API: what they made, how far they came, why they failed, and links to pages."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.steps.protocol import Line
from airflow_hops.runner.progress import ProgressWriter, TaskProgress
from web.conftest import Api, bearer

pytestmark = pytest.mark.runtime


def test_ended_task_shows_its_artifact(api: Api) -> None:
    result = api.get(f"{api.run_path()}/tasks/statistics/-1", "viewer").json()
    assert (result["stage"], result["state"]) == ("statistics", "success")
    assert (result["progress"], result["error"]) == ([], None)
    (artifact,) = result["artifacts"]
    assert (artifact["kind"], artifact["state"]) == ("statistics", "present")
    assert artifact["metrics"]["train_rows"] == 800


def test_mapped_task_lists_instances_and_failed_progress(api: Api, run_dag: Any) -> None:
    run = run_dag("task_progress", {})
    path = f"{api.run_path(run)}/tasks/learn"
    whole = api.get(f"{path}/-1").json()
    assert [(each["map_index"], each["state"]) for each in whole["instances"]] == [(0, "success"), (1, "failed")]
    failed = api.get(f"{path}/1").json()
    assert "ValueError: the loss of <b>shard 7</b> is not a number" in failed["error"]
    progress = [(each["progress"], each["text"]) for each in failed["progress"]]
    assert progress == [(0.25, "epoch 1 of 4"), (0.5, "epoch 2 of 4")]
    assert failed["progress"][1]["metrics"] == {"loss": 0.5, "val_loss": 0.55}
    succeeded = api.get(f"{path}/0").json()
    assert (succeeded["state"], succeeded["progress"], succeeded["error"]) == ("success", [], None)
    assert TaskProgress.read(api.store, Producer(run.dag_id, run.run_id, "learn", 0)) is None
    api.refused(f"{path}/2", 404)


def test_many_progress_reports_are_thinned_out_except_the_last(api: Api) -> None:
    producer = Producer("pages", api.pages.run_id, "nobody", try_number=2)
    writer = ProgressWriter(api.store, producer)
    for number in range(5000):
        writer.hear(Line(20, f"step {number}", number / 10_000, {"loss": 1.0}))
    writer.hear(Line(20, "said in passing"))
    writer.failed("no more")
    report = TaskProgress.read(api.store, producer)
    assert report is not None
    assert (report.error, report.try_number, report.points[-1].text) == ("no more", 2, "step 4999")
    assert 150 < len(report.points) <= 401
    assert [point.at for point in report.points] == sorted(point.at for point in report.points)
    again = ProgressWriter(api.store, producer)
    again.hear(Line(20, "goes on", 1.0))
    resumed = TaskProgress.read(api.store, producer)
    assert resumed is not None
    assert (resumed.error, resumed.points[0], resumed.points[-1].text) == (None, report.points[0], "goes on")
    assert resumed.began_at == report.began_at < time.time()


def test_failed_progress_write_does_not_fail_the_task(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(type(api.store), "write_text", fail)
    writer = ProgressWriter(api.store, Producer("pages", api.pages.run_id, "nobody_else"))
    writer.hear(Line(20, "half", 0.5))
    writer.failed("for another reason")


def test_failed_deferred_task_keeps_earlier_progress(api: Api) -> None:
    producer = Producer("pages", api.pages.run_id, "deferred")
    ProgressWriter(api.store, producer).hear(Line(20, "half of it", 0.5, {"loss": 0.1}))
    ProgressWriter(api.store, producer).failed("the ranks are gone")
    report = TaskProgress.read(api.store, producer)
    assert report is not None
    assert ([point.text for point in report.points], report.error) == (["half of it"], "the ranks are gone")
    ProgressWriter(api.store, producer).succeeded()
    assert TaskProgress.read(api.store, producer) is None


def _links(api: Api, task_id: str) -> dict[str, Any]:
    run = quote(api.pages.run_id, safe="")
    path = f"/api/v2/dags/pages/dagRuns/{run}/taskInstances/{task_id}/links"
    result: dict[str, Any] = api.client.get(path, headers=bearer("viewer")).json()["extra_links"]
    return result


PAGES = {
    "Data": "Prepare PrepareImages Statistics Transform TrainingDataset",
    "Schema": "Schema ValidateExamples",
    "Runs": "HorovodTrain Search TorchTrain Train",
    "TensorBoard": "HorovodTrain Search TorchTrain Train",
    "Models": "Evaluate InfraValidate DeployModel Rollout Performance",
    "Skew": "Skew RequestRetraining",
}
"""Operators by the page that they link to."""


@pytest.mark.parametrize(
    ("task_id", "kind", "page"),
    [
        ("examples", "examples", "lineage"),
        ("statistics", "statistics", "data"),
        ("schema", "schema", "schema"),
        ("validate", "anomalies", "schema"),
    ],
)
def test_task_links_to_the_page_of_its_artifact(api: Api, task_id: str, kind: str, page: str) -> None:
    links = _links(api, task_id)
    assert set(links) == {"Lineage", page.capitalize()}
    result = urlsplit(links[page.capitalize()])
    assert result.path == f"/plugin/hops/{page}"
    artifact = f"{kind}/pages/{task_id}/-1/{api.pages.run_id}"
    assert parse_qs(result.query) == {"dag": ["pages"], "artifact": [artifact]}


def test_links_keep_airflows_path_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK, MODELS_LINK

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/behind/a-proxy/")
    instance: Any = SimpleNamespace(dag_id="a dag", run_id="run/1&x", task_id="t", map_index=3)
    examples = SimpleNamespace(output_kind="examples")
    address = urlsplit(DATA_LINK.get_link(examples, ti_key=instance))
    assert (address.netloc, address.path) == ("", "/behind/a-proxy/plugin/hops/data")
    assert parse_qs(address.query) == {"dag": ["a dag"], "tab": ["dive"], "artifact": ["examples/a dag/t/3/run/1&x"]}
    decision = SimpleNamespace(model_name="m/1", output_kind=None)
    assert MODELS_LINK.get_link(decision, ti_key=instance) == "/behind/a-proxy/plugin/hops/models/m%2F1?dag=a+dag"
    assert LINEAGE_LINK.get_link(decision, ti_key=instance).endswith("/lineage?dag=a+dag&model=m%2F1")


def test_each_operator_of_a_stage_links_to_its_page_and_to_the_lineage() -> None:
    from airflow_hops import operators
    from airflow_hops.operators.base import HopsOperator

    expected = {page: {f"{name}Operator" for name in names.split()} for page, names in PAGES.items()}
    expected["Models"] |= {name for name in operators.__all__ if name.endswith(("TrafficOperator", "ModelOperator"))}
    expected["Models"] -= {"ImportModelOperator"}  # its model is not deployed yet
    classes = {name: getattr(operators, name) for name in operators.__all__ if name.endswith("Operator")}
    assert len(classes) > 12
    for name, operator in classes.items():
        results = {link.name for link in operator.operator_extra_links}
        pages = {page for page, names in expected.items() if name in names}
        assert results == {*pages, "Lineage"}, name
        assert issubclass(operator, HopsOperator) or name == "RequestRetrainingOperator"
