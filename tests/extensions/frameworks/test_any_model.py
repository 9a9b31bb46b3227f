"""The pipelines of ``dags/`` for several classes and for numbers: real data, from a raw file to an answered request."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_models import Pipeline
from waiting import wait_for

from airflow_hops.core.contract.artifacts import Artifact, Producer
from airflow_hops.hooks.model_server import ModelServerHook

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
STEPS = str(Path(__file__).parent)


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


def test_scikit_learn_pipeline_classifies_penguins(
    connected: Pipeline, returned: Callable[..., dict[str, Any]]
) -> None:
    done = returned("penguins_training")
    properties = done["train"]["properties"]
    species = ["Adelie", "Chinstrap", "Gentoo"]
    assert (properties["problem"], properties["classes"]) == ("multiclass", species)
    assert (properties["format"], properties["framework"]) == ("onnx", "sklearn")
    assert done["evaluate"]["metrics"]["eval_accuracy"] > 0.95
    assert done["deploy"]["properties"]["mode"] == "champion"
    assert {"bill_length_mm", "bill_depth_mm"} <= {*done["explain"]["properties"]["leading"]}

    # Two real ones, and what was measured of one whose sex nobody knows.
    penguins = {
        "island": ["Torgersen", "Biscoe", "Dream"],
        "sex": ["male", "female", ""],
        "bill_length_mm": [39.1, 46.1, 46.5],
        "bill_depth_mm": [18.7, 13.2, 17.9],
        "flipper_length_mm": [181.0, 211.0, 192.0],
        "body_mass_g": [3750.0, 4500.0, 3500.0],
    }
    hook = ModelServerHook("hops_default")
    by_rest, by_grpc = (hook.predict("penguins", penguins, api=api).outputs for api in ("rest", "grpc"))
    for answered in (by_rest, by_grpc):
        assert [text.decode() if isinstance(text, bytes) else text for text in answered["class"]] == [
            "Adelie", "Gentoo", "Chinstrap",
        ]  # fmt: skip
    np.testing.assert_allclose(by_rest["probabilities"], by_grpc["probabilities"], atol=1e-6)
    np.testing.assert_allclose(by_grpc["probabilities"].sum(axis=1), 1, atol=1e-5)


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
            {"origin": car["Origin"], "built_at": at, **{name.lower(): float(car[name]) for name in numbers}}
            for car, at in zip(cars, years, strict=True)
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


def worse(fuel: Pipeline, model: dict[str, Any], by: float) -> Artifact:
    """A model that predicts so much more than another."""
    trained = Artifact.from_dict(model)
    uri = fuel.store.uri("fuel_training", "worse", "train", "model")
    with fuel.store.create(uri, "model", Producer("fuel_training", "worse", "train")) as writer:
        shutil.copytree(fuel.store.local(trained) / "onnx", writer.path / "onnx")
        fuel.runner(
            "worse_model:worsen",
            params={"model": str(writer.path / "onnx" / "model.onnx"), "by": by},
            code_paths=(STEPS,),
            launcher=fuel.launcher,
        )
        shutil.copy(fuel.store.local(trained) / "training.json", writer.path)
        return writer.commit(properties=trained.properties)


@pytest.mark.scheduled(part="frameworks")
def test_fuel_drift_retrains_and_worse_model_is_rolled_back(
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
    (by_rest,) = hook.predict("fuel", asked, api="rest").outputs.values()  # which names no output that is the only one
    by_grpc = hook.predict("fuel", asked).outputs["prediction"]
    np.testing.assert_allclose(by_rest, by_grpc, rtol=1e-6)
    gallons = np.array([car["Miles_per_Gallon"] for car in newer])
    before = np.abs(by_grpc - gallons).mean()

    fuel.server.post("/v1/capture:flush", {})
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
    after = np.abs(hook.predict("fuel", asked).outputs["prediction"] - gallons).mean()
    assert after < before / 2, "it knows them by now"

    deployment = fuel.deploy(worse(fuel, second["train"], 10.0), canary_percent=50, dag_id="fuel_training")
    assert deployment.properties["traffic"] == {"2": 50, "3": 50}
    labels = []
    for version in (2, 3):
        path, request_id = f"/v1/models/fuel/versions/{version}:predict", f"fuel-{version}"
        fuel.server.post(path, {"instances": Cars.rows(newer)}, {"x-request-id": request_id})
        labels += [
            {"model": "fuel", "request_id": request_id, "row": row, "label": {"miles_per_gallon": float(known)}}
            for row, known in enumerate(gallons)
        ]
    fuel.server.post("/v1/feedback", labels)
    rollout = fuel.rollout(deployment, min_requests=1, dag_id="fuel_training")
    assert rollout.properties["decision"] == "rolled_back"
    (reason,) = rollout.properties["reasons"]
    assert reason.startswith("labels: mean absolute error of 'prediction' is ")
    wait_for(lambda: fuel.server.traffic("fuel") == {2: 100}, "all to the champion")
