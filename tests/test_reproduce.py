"""Runs that are recorded, and run again by ``airflow hops reproduce``: real trainings, with code of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.contract.artifacts import Artifact, cache_key
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.store import ArtifactStore
from airflow_hops.store.run_records import read_code, read_record

pytestmark = pytest.mark.runtime
STEPS = str(Path(__file__).parent / "steps")
ENTRY = "airflow_hops.runtime.train:run"

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
    found: Artifact = shared_run_step(
        "transformed_examples:write",
        params={"rows": {"train": [301], "eval": [201]}},
        kind="transformed_examples",
        code_paths=(STEPS,),
        launcher=warm_launcher,
        run_id="reproduced",
    )
    return found


@pytest.fixture(scope="module")
def train(shared_run_step: Any, warm_launcher: Any, code: Path, examples: Artifact) -> Callable[..., Artifact]:
    """Trains in a process of its own, and records that."""

    def run(**params: Any) -> Artifact:
        options = {"strategy": "single", "np": 1, "deterministic": True, "env": {"API_TOKEN": "abc123"}}
        given = {"train": "shop.model:train", "params": params, **options}
        inputs, paths = {"examples": examples}, (str(code),)
        model: Artifact = shared_run_step(
            ENTRY, params=given, inputs=inputs, kind="model", code_paths=paths, launcher=warm_launcher
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


def test_a_training_is_reproduced_bit_for_bit_with_the_code_that_it_had(
    reproduce: Any, model: Artifact, code: Path, shared_run_step: Any
) -> None:
    store: ArtifactStore = shared_run_step.store
    key = cache_key(store.manifest(model.uri).cache_key_parts)
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
    made = store.artifacts(store.uri("_reproduced"))
    assert len(made) == 1
    assert store.manifest(model.uri).fingerprint == model.fingerprint, "the original is left as it is"
    (code / "shop" / "layers.py").write_text("UNITS = 4\n")


def test_a_training_that_is_not_deterministic_differs(reproduce: Any, train: Any) -> None:
    status, lines, said = reproduce(train(dice=True).uri)
    assert status == 1, said
    assert lines["curves"]["verdict"] == lines["metric train_loss"]["verdict"] == "differs"
    assert lines["weights"]["reproduced"].startswith("largest difference")


def test_what_cannot_be_run_is_said_before_anything_runs(
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


def test_a_run_without_a_record_is_run_with_what_there_is_only_on_request(
    reproduce: Any, model: Artifact, shared_run_step: Any, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: ArtifactStore = shared_run_step.store
    key = cache_key(store.manifest(model.uri).cache_key_parts)
    uri = f"{store.uri('_runs', 'tests', key)}.json"
    text = store.read_text(uri)
    store.remove_text(uri)
    status, _, said = reproduce(model.uri)
    assert (status, "the store has no record of this run" in said, "--incomplete" in said) == (2, True, True)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(code))
    status, lines, said = reproduce(model.uri, "--incomplete")
    store.write_text(uri, text)
    assert (status, lines["libraries"]["verdict"], lines["weights"]["verdict"]) == (0, "not compared", "same"), said
    assert "Not known of this run, and taken as it is now: code" in said
