"""The pipelines of ``dags/`` for several classes and for numbers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from airflow.dag_processing.dagbag import DagBag
from served_models import Pipeline
from step_runner import REPOSITORY
from waiting import wait_for

from airflow_hops.extensions.explain import ExplainOperator
from airflow_hops.hooks.model_server import ModelServerHook


@pytest.fixture
def connected(pipeline: Pipeline, boosted_runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Connects DAGs to store, MLflow, Spark, and the session's model server."""
    extra = {**pipeline.server.services, "tracking_uri": pipeline.tracking_uri, "store": pipeline.store.root}
    connection = {"conn_type": "hops", "host": "127.0.0.1", "port": int(extra.pop("serving_port")), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setenv("AIRFLOW__HOPS__RUNTIME", str(boosted_runtime))
    return pipeline


@pytest.fixture
def returned(run_dag: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Runs a DAG of ``dags/``; returns what each task returned."""

    def run(dag_id: str, **conf: Any) -> dict[str, Any]:
        done = run_dag(dag_id, conf, "dags", boosted=dag_id == "fuel_training")
        states = {ti.task_id: str(ti.state) for ti in done.get_task_instances()}
        assert set(states.values()) == {"success"}, states
        return {task_id: done.get_task_instance(task_id).xcom_pull(task_ids=task_id) for task_id in states}

    return run


def test_penguins_pipeline_explains_its_model() -> None:
    """test_tutorial.py runs it."""
    dag = DagBag(REPOSITORY / "dags" / "penguins_training.py").dags["penguins_training"]
    explain = dag.get_task("explain")
    assert isinstance(explain, ExplainOperator) and explain.model_name == "penguins"
    assert explain.upstream_task_ids == {"prepare", "train"}


class Cars:
    """The cars of the fuel pipeline as those who ask about them send them."""

    def __init__(self) -> None:
        from fuel.raw import cars_file

        self.all = [json.loads(line) for line in Path(cars_file()).read_text().splitlines()]

    def since(self, year: int) -> list[dict[str, Any]]:
        return [car for car in self.all if car["Year"] >= str(year) and car["Miles_per_Gallon"] and car["Horsepower"]]

    @staticmethod
    def rows(cars: list[dict[str, Any]]) -> list[dict[str, Any]]:
        numbers = ("Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration")
        years = (int(np.datetime64(car["Year"], "s").astype(int)) for car in cars)
        return [
            {"origin": car["Origin"], "built_at": built_at, **{name.lower(): float(car[name]) for name in numbers}}
            for car, built_at in zip(cars, years, strict=True)
        ]


@contextmanager
def asked_all_the_while(fuel: Pipeline, rows: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Sends requests of one row for as long as the block runs; gives the statuses of the answers."""
    statuses: list[int] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            row = rows[len(statuses) % len(rows)]
            statuses.append(fuel.server.call("/v1/models/fuel:predict", {"instances": [row]})[0])
            # Only a canary needs many: the cores are for the pipeline until there is one.
            end.wait(0.01 if fuel.server.traffic("fuel").keys() - {1} else 0.5)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        end.set()
        thread.join()


@pytest.mark.runtime
@pytest.mark.spark
@pytest.mark.scheduled(part="frameworks")
def test_fuel_drift_retrains_a_model_that_is_promoted(
    connected: Pipeline, returned: Callable[..., dict[str, Any]]
) -> None:
    fuel = replace(connected, name="fuel")
    first = returned("fuel_training")
    properties = first["train"]["properties"]
    assert properties["problem"] == "regression" and "classes" not in properties
    assert (properties["format"], properties["framework"]) == ("onnx", "lightgbm")
    assert first["rollout"]["properties"]["decision"] == "champion"

    cars = Cars()
    newer = cars.since(1979)
    asked = {name: [row[name] for row in Cars.rows(newer)] for name in Cars.rows(newer)[0]}
    hook = ModelServerHook("hops_default")
    (by_rest,) = hook.address.rest_client().predict("fuel", asked).outputs.values()  # an only output has no name
    by_grpc = hook.predict("fuel", asked).outputs["prediction"]
    np.testing.assert_allclose(by_rest, by_grpc, rtol=1e-6)
    gallons = np.array([car["Miles_per_Gallon"] for car in newer])
    error = np.abs(by_grpc - gallons).mean()

    fuel.server.flush()
    monitored = returned("fuel_monitoring")
    skew = monitored["skew"]["properties"]
    assert (skew["verdict"], skew["problem"]) == ("drift", "regression")
    assert {"displacement", "origin"} <= set(skew["drifted"])

    with asked_all_the_while(fuel, Cars.rows(newer)) as statuses:
        second = returned("fuel_training", window_end="1983-01-01")
    assert set(statuses) == {200}
    assert second["evaluate"]["properties"]["blessed"] is True
    assert second["evaluate"]["metrics"]["eval_gain"] > 0
    assert second["rollout"]["properties"]["decision"] == "promoted"
    wait_for(lambda: fuel.server.traffic("fuel") == {2: 100}, "all to the promoted")
    new_error = np.abs(hook.predict("fuel", asked).outputs["prediction"] - gallons).mean()
    assert new_error < error / 2, "it knows them by now"
