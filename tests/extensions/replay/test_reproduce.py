"""Runs that are recorded, and run again by ``airflow hops reproduce``: real trainings, with code of their own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import Artifact, BadInput, Producer
from airflow_hops.core.contract.model_record import ModelRecord
from airflow_hops.core.contract.protocol import StepResult
from airflow_hops.core.contract.run_record import RunRecord, UserCode, record_key
from airflow_hops.core.contract.training_record import TrainingRecord
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import write_record as write_model_record
from airflow_hops.core.store.run_records import read_code, read_record, write_record
from airflow_hops.core.store.training_records import write_training
from airflow_hops.extensions.experiments import SearchOperator
from airflow_hops.extensions.experiments.core.search import TrialRecord
from airflow_hops.extensions.experiments.core.studies import study_folder
from airflow_hops.extensions.replay.hooks.reproduction import RecordedRun, find_run, step_again
from airflow_hops.extensions.replay.hooks.run_comparison import (
    compare_metrics,
    compare_notebooks,
    compare_trial,
    compare_values,
)
from airflow_hops.hooks.runtime import RuntimeHook

pytestmark = pytest.mark.runtime
ENTRY = "airflow_hops.ml.stages.train:run"

MODEL = """
import os
import keras
from shop.layers import UNITS

def train(context):
    assert os.environ["API_TOKEN"] == "abc123"
    inputs = {name: keras.Input(spec.shape, name=name) for name, spec in context.feature_outputs.items()}
    hidden = keras.layers.Dense(UNITS, "relu")(inputs["numeric"])
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    if context.params.get("dice"):
        keras.utils.set_random_seed(int.from_bytes(os.urandom(2)))
        model.layers[1].kernel.assign(keras.random.normal(model.layers[1].kernel.shape))
    context.fit(model, epochs=2, batch_size=100)
    return model
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dags")
    (folder / "shop").mkdir()
    (folder / "shop" / "model.py").write_text(MODEL)
    (folder / "shop" / "layers.py").write_text("UNITS = 4\n")
    return folder


@pytest.fixture(scope="module")
def examples(shared_run_step: Any, warm_launcher: Any) -> Artifact:
    result: Artifact = shared_run_step.transformed_examples(warm_launcher, 301, 201, run_id="reproduced")
    return result


@pytest.fixture(scope="module")
def train(shared_run_step: Any, warm_launcher: Any, code: Path, examples: Artifact) -> Callable[..., Artifact]:
    """Trains in a process of its own, and records that."""

    def run(**params: Any) -> Artifact:
        env = {"API_TOKEN": "abc123", "CUDA_VISIBLE_DEVICES": f"GPU-of-{os.getpid()}"}  # no other test leases it
        options = {"strategy": "single", "np": 1, "deterministic": True, "env": env}
        values = {"train": "shop.model:train", "params": params, **options}
        inputs, paths = {"examples": examples}, (str(code),)
        model: Artifact = shared_run_step(
            ENTRY, params=values, inputs=inputs, kind="model", code_paths=paths, launcher=warm_launcher
        )
        return model

    return run


@pytest.fixture(scope="module")
def model(train: Callable[..., Artifact]) -> Artifact:
    return train()


@pytest.fixture
def reproduce(
    hops: Any, shared_run_step: Any, warm_launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, Any, str]]:
    """Runs the command in the store of the trainings; returns exit status, lines of the comparison, and messages."""
    connection = {"conn_type": "hops", "extra": {"store": shared_run_step.store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("API_TOKEN", "abc123")
    monkeypatch.setattr(RuntimeHook, "warm_start", lambda hook: warm_launcher.warm)

    def run(*arguments: str) -> tuple[int, Any, str]:
        status, out, said = hops("reproduce", *arguments, "--json")
        return status, {line["what"]: line for line in json.loads(out)["compared"]} if out else None, said

    return run


def test_training_is_reproduced_bit_for_bit_with_its_recorded_code(
    reproduce: Any, model: Artifact, code: Path, shared_run_step: Any
) -> None:
    store: ArtifactStore = shared_run_step.store
    key = record_key(store.manifest(model.uri).cache_key_parts, store.manifest(model.uri).inputs)
    record = read_record(store, "tests", key)
    assert record is not None
    assert set(read_code(store, record)) == {"0/shop/model.py", "0/shop/layers.py"}
    assert list(record.secrets) == ["env/API_TOKEN"]
    assert "abc123" not in json.dumps(record.to_dict())

    (code / "shop" / "layers.py").write_text("raise ValueError('changed since')\n")
    path = "/".join(model.uri.split("/")[-4:])
    status, lines, said = reproduce(path)
    assert (status, lines["weights"]["reproduced"]) == (0, "identical bits"), said
    assert {lines[each]["verdict"] for each in ("data", "code", "libraries", "Python", "airflow-hops")} == {"same"}
    assert {lines[each]["verdict"] for each in ("metric train_auc", "curves", "weights")} == {"same"}
    assert "Environment: " in said
    assert "epoch 2" in said
    made = store.artifacts(store.uri("@reproduced"))
    assert len(made) == 1
    assert store.manifest(model.uri).fingerprint == model.fingerprint, "the original is left as it is"
    (code / "shop" / "layers.py").write_text("UNITS = 4\n")


def test_data_step_is_reproduced_with_its_cost(
    reproduce: Any, examples: Artifact, model: Artifact, shared_run_step: Any
) -> None:
    status, lines, said = reproduce(examples.uri)
    assert (status, lines["files"]["verdict"]) == (0, "same"), said
    cost = shared_run_step.store.manifest(model.uri).cost
    assert cost["gpu_s"] > 0  # of the one that is assigned, whether it is there or not
    assert cost["core_s"] > shared_run_step.store.manifest(examples.uri).cost["core_s"] > 0


def test_nondeterministic_training_differs(reproduce: Any, train: Any) -> None:
    status, lines, said = reproduce(train(dice=True).uri)
    assert status == 1, said
    assert lines["curves"]["verdict"] == lines["metric train_loss"]["verdict"] == "differs"
    assert lines["weights"]["reproduced"].startswith("largest difference")


def test_unrunnable_steps_are_reported_before_any_runs(
    reproduce: Any, model: Artifact, examples: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_TOKEN")
    status, _, said = reproduce(model.uri)
    assert (status, "given env/API_TOKEN; set those of 'env' as variables" in said) == (2, True)
    monkeypatch.setenv("API_TOKEN", "abc123")
    file = next(Path(examples.uri.removeprefix("file://"), "train").glob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"?")
    status, _, said = reproduce(model.uri)
    assert (status, "input 'examples'" in said, file.name in said) == (2, True, True), said
    file.write_bytes(content)
    assert reproduce("no/such/run/model")[0] == 2


def test_run_without_record_is_reproduced_only_on_request(
    reproduce: Any, model: Artifact, shared_run_step: Any, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: ArtifactStore = shared_run_step.store
    key = record_key(store.manifest(model.uri).cache_key_parts, store.manifest(model.uri).inputs)
    uri = f"{store.internal('_runs', 'tests', key)}.json"
    text = store.read_text(uri)
    store.remove_text(uri)
    status, _, said = reproduce(model.uri)
    assert (status, "the store has no record of this run" in said, "--incomplete" in said) == (2, True, True)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(code))
    status, lines, said = reproduce(model.uri, "--incomplete")
    store.write_text(uri, text)
    assert (status, lines["libraries"]["verdict"], lines["weights"]["verdict"]) == (0, "not compared", "same"), said
    assert lines["predictions"]["verdict"] == "not compared", "asked, since the code may be another, but has no rows"
    assert "Not known of this run, and taken as it is now: code" in said


def test_measured_number_of_ranks_is_reused(
    model: Artifact, shared_run_step: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection = {"conn_type": "hops", "extra": {"store": shared_run_step.store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("API_TOKEN", "abc123")
    run = find_run(RuntimeHook(), model.uri)
    measured = replace(run, record=replace(run.record, params={**run.record.params, "np": "auto"}))
    assert step_again(RuntimeHook(), measured, tmp_path).params["np"] == 1


def test_trial_is_reproduced_from_the_search_record(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    training = {"train": "shop:train", "params": {"epochs": 2}, "np": 1, "tensorboard": True, "env": {"TOKEN": None}}
    record = RunRecord(
        dag_id="d",
        step="search",
        entry=SearchOperator.entry,
        params={"training": training, "study": "shared", "reuse": True, "metrics": ["auc"]},
        secrets=("training/env/TOKEN",),
        inputs={},
        parts={},
        package_version="0.1.0",
        python="3.11.7",
        packages={},
        started="",
    )
    write_record(store, "f" * 64, record, UserCode("", {}))
    folder = study_folder(store, "d", "search", "r")
    trials = [TrialRecord(0, "complete", {"lr": 0.1}, "", "k", "r", metrics={"auc": 0.7})]
    trials.append(TrialRecord(1, "failed", {"lr": 0.2}, "", "k", "r"))
    folder.write_trials([json.dumps(trial.to_dict()) for trial in trials], [0, 1])
    connection = {"conn_type": "hops", "extra": {"store": store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    tags = {"hops.dag_id": "d", "hops.study": "r", "hops.trial": "0"}
    task = {"dag_run_id": "r", "task_id": "search", "record": "f" * 64}
    trained = TrainingRecord("0" * 32, "trial", "FINISHED", 0, tags=tags, **task)
    write_training(store, "d", trained)

    run = find_run(RuntimeHook(), "0" * 32)
    assert (run.record.entry, run.metrics, run.returned_metric) == (ENTRY, {"auc": 0.7}, "auc")
    monkeypatch.setenv("TOKEN", "secret")
    assert step_again(RuntimeHook(), run, tmp_path).params["env"] == {"TOKEN": "secret"}
    search = step_again(RuntimeHook(), RecordedRun("search", replace(record, code=run.record.code)), tmp_path).params
    assert search["training"]["env"] == {"TOKEN": "secret"}
    assert run.record.params["params"] == {"epochs": 2, "lr": 0.1}
    assert (run.record.params["train"], run.record.params["tensorboard"]) == ("shop:train", False)
    write_training(store, "d", replace(trained, tags={**tags, "hops.trial": "1"}))
    with pytest.raises(BadInput, match="trial 1 of study 'r' is failed, expected a complete one"):
        find_run(RuntimeHook(), "0" * 32)


def test_replaced_model_is_not_compared_as_the_runs_model(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.create(uri := store.uri("d", "r", "train", "model"), "model", Producer("d", "r", "train")) as writer:
        writer.commit()
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": {"store": store.root}}))
    of_model = {"model": uri, "fingerprint": "e" * 64}
    write_model_record(store, "m", ModelRecord().after("deployed", 1, "the first", **of_model))
    with pytest.raises(BadInput, match="another model is stored there now"):
        find_run(RuntimeHook(), "m/1")
    tags = {"hops.dag_id": "d", "hops.model": uri, "hops.fingerprint": "e" * 64}
    write_training(store, "d", TrainingRecord("0" * 32, "r train", "FINISHED", 0, tags=tags))
    with pytest.raises(BadInput, match="known are: nothing but its figures"):
        find_run(RuntimeHook(), "0" * 32)
    for unknown, why in (("1" * 32, "no training in .* has this id"), ("m/2", "has no version 2 that was deployed")):
        with pytest.raises(BadInput, match=why):
            find_run(RuntimeHook(), unknown)


def test_numbers_are_compared_within_tolerance_and_times_ignored() -> None:
    before = {"auc": 0.7, "loss": 200.0, "gone": 1.0, "seconds": 3.0, "small": 2e-4, "zero": 0.0, "endless": math.inf}
    after = {"auc": 0.7005, "loss": 200.1, "new": math.nan, "seconds": 9.0, "small": 9e-4, "zero": 1e-9, "endless": 0.5}
    lines = compare_metrics(before, after, 1e-3)
    assert {line.what: line.verdict for line in lines} == {
        "metric auc": "within tolerance",
        "metric endless": "differs",
        "metric gone": "differs",
        "metric loss": "within tolerance",
        "metric new": "differs",
        "metric small": "differs",
        "metric zero": "within tolerance",
    }
    nan, one = {"auc": math.nan}, {"auc": 1.0}
    assert [line.verdict for line in compare_metrics(nan, one, 0.5)] == ["differs"]
    assert [line.verdict for line in compare_values({"auc": 0.7}, 0.7, 0.0)] == ["same"]
    assert [line.verdict for line in compare_values({"auc": 0.7}, {"metrics": {"auc": 0.8}}, 0.0)] == ["differs"]
    assert [line.verdict for line in compare_values({}, "a text", 0.0)] == ["not compared"]
    assert [line.verdict for line in compare_values({"auc": 0.7}, {"metrics": 3}, 0.0)] == ["not compared"]
    result = StepResult(value=0.7, is_artifact=False, seconds={})
    trial = compare_trial({"auc": 0.7, "loss": 2.0, "gone": 1.0}, {"loss": 2.0, "other": 9.0}, result, "auc", 0.0)
    assert [(line.what, line.verdict) for line in trial] == [
        ("metric auc", "same"),
        ("metric gone", "differs"),
        ("metric loss", "same"),
    ]


def test_notebooks_are_compared_by_cell_outputs(store: ArtifactStore) -> None:
    def notebook(run: str, *outputs: str) -> Artifact:
        cells = [
            {"cell_type": "code", "source": "x", "outputs": [{"text": o, "execution_count": run}]} for o in outputs
        ]
        producer = Producer("d", run, "n")
        with store.create(store.address(producer, "notebook"), "notebook", producer) as writer:
            (writer.path / "notebook.ipynb").write_text(json.dumps({"cells": cells}))
            return writer.commit(properties={"result": len(outputs)})

    first = notebook("1", "a", "b")
    assert {line.verdict for line in compare_notebooks(store, first, notebook("2", "a", "b"))} == {"same"}
    said = "1 differ, the first is code cell 2"
    (outputs, result) = compare_notebooks(store, first, notebook("3", "a", "c"))
    assert (outputs.verdict, outputs.reproduced, result.verdict) == ("differs", said, "same")
    assert {line.verdict for line in compare_notebooks(store, first, notebook("4", "a"))} == {"differs"}
