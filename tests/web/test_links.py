"""The links on tasks, by Airflow's own endpoint: each leads to the page that fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from web.conftest import Api, bearer

pytestmark = pytest.mark.runtime


def _links(api: Api, task_id: str) -> dict[str, Any]:
    path = f"/api/v2/dags/pages/dagRuns/{quote(api.pages.run_id, safe='')}/taskInstances/{task_id}/links"
    result: dict[str, Any] = api.client.get(path, headers=bearer("viewer")).json()["extra_links"]
    return result


@pytest.mark.parametrize(
    ("task_id", "kind", "page"),
    [
        ("examples", "examples", "lineage"),
        ("statistics", "statistics", "data"),
        ("schema", "schema", "schema"),
        ("validate", "anomalies", "schema"),
    ],
)
def test_a_task_links_to_the_page_that_shows_what_it_made(api: Api, task_id: str, kind: str, page: str) -> None:
    links = _links(api, task_id)
    assert set(links) == {"Lineage", page.capitalize()}
    result = urlsplit(links[page.capitalize()])
    assert result.path == f"/plugin/hops/{page}"
    artifact = f"{kind}/pages/{task_id}/-1/{api.pages.run_id}"
    assert parse_qs(result.query) == {"dag": ["pages"], "artifact": [artifact]}


def test_links_keep_to_the_path_that_airflow_is_served_under(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_hops.operators.links import DataLink, LineageLink, ModelsLink

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/behind/a-proxy/")
    instance: Any = SimpleNamespace(dag_id="a dag", run_id="run/1&x", task_id="t", map_index=3)
    examples = SimpleNamespace(output_kind="examples")
    address = urlsplit(DataLink().get_link(examples, ti_key=instance))
    assert (address.netloc, address.path) == ("", "/behind/a-proxy/plugin/hops/data")
    assert parse_qs(address.query) == {"dag": ["a dag"], "tab": ["dive"], "artifact": ["examples/a dag/t/3/run/1&x"]}
    decision = SimpleNamespace(model_name="m/1", output_kind=None)
    assert ModelsLink().get_link(decision, ti_key=instance) == "/behind/a-proxy/plugin/hops/models/m%2F1?dag=a+dag"
    assert LineageLink().get_link(decision, ti_key=instance).endswith("/lineage?dag=a+dag&model=m%2F1")


def test_each_operator_of_a_stage_links_to_its_page_and_to_the_lineage() -> None:
    from airflow_hops import operators
    from airflow_hops.operators.base import HopsOperator

    expected = {
        "Data": {"PrepareOperator", "PrepareImagesOperator", "StatisticsOperator", "TransformOperator"},
        "Schema": {"SchemaOperator", "ValidateExamplesOperator"},
        "Runs": {"HorovodTrainOperator", "SearchOperator", "TorchTrainOperator", "TrainOperator"},
        "TensorBoard": {"HorovodTrainOperator", "SearchOperator", "TorchTrainOperator", "TrainOperator"},
        "Models": {
            "BacktestOperator",
            "EvaluateOperator",
            "InfraValidateOperator",
            "DeployModelOperator",
            "RolloutOperator",
            "PerformanceOperator",
        },
        "Skew": {"SkewOperator", "RequestRetrainingOperator"},
    }
    expected["Data"] |= {"BatchPredictOperator"}
    expected["Models"] |= {name for name in operators.__all__ if name.endswith(("TrafficOperator", "ModelOperator"))}
    expected["Models"] -= {"ImportModelOperator"}  # its model is not deployed yet
    classes = {name: getattr(operators, name) for name in operators.__all__ if name.endswith("Operator")}
    assert len(classes) > 12
    for name, operator in classes.items():
        results = {link.name for link in operator.operator_extra_links}
        pages = {page for page, of in expected.items() if name in of}
        # A back-test leaves a report, and no artifact.
        assert results == {*pages, *(["Lineage"] if name != "BacktestOperator" else [])}, name
        assert issubclass(operator, HopsOperator) or name in ("BacktestOperator", "RequestRetrainingOperator")
