"""Trainings that continue from the champion, and champions that a training cannot continue from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import skops.io
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform
from airflow_hops.ml.models.champion import Champion, keep_trained
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.rank import Rank
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.shares import ExamplesSource
from airflow_hops.ml.training.stage.continuing import champion_of, check_inputs
from tests.ml.training.trainings import Trainings
from tests.ml.world import World


def weights(trainings: Trainings, model: Artifact) -> Path:
    return trainings.store.local(model) / "trained" / "weights.npz"


@pytest.fixture(scope="module")
def first(trainings: Trainings, two_files: Artifact) -> Artifact:
    """A Keras model from scratch."""
    return trainings("continue_functions:fit", two_files, np=1, continue_from="late")


@pytest.fixture(scope="module")
def first_estimator(trainings: Trainings, two_files: Artifact) -> Artifact:
    """An estimator from scratch."""
    return trainings("continue_functions:learn_more", two_files, np=1, strategy="single", continue_from="late")


def test_keras_continues_on_ranks_as_by_hand(trainings: Trainings, two_files: Artifact, first: Artifact) -> None:
    assert "continued_from" not in first.properties
    options: dict[str, Any] = {"np": 2, "deterministic": True, "continue_from": "late"}
    second = trainings("continue_functions:fit", two_files, **options, champion_version=3, champion=first)
    by_hand = trainings("continue_functions:fit", two_files, **options, weights=str(weights(trainings, first)))
    with (
        np.load(weights(trainings, first)) as start,
        np.load(weights(trainings, second)) as one,
        np.load(weights(trainings, by_hand)) as other,
    ):
        assert one.files == other.files and len(one.files) == 5
        assert all((one[name] == other[name]).all() for name in one.files)
        assert not all((one[name] == start[name]).all() for name in one.files)
    came_from = {"model_name": "late", "version": 3, "fingerprint": first.fingerprint}
    assert ModelProperties.of(second).continued_from == came_from
    manifest = trainings.store.manifest(second.uri)
    assert [each.fingerprint for each in manifest.inputs["champion"]] == [first.fingerprint]
    assert json.loads((trainings.store.local(second) / "training.json").read_text())["continued_from"] == came_from


def test_estimator_continues_as_by_hand_and_from_scratch_claims_nothing(
    trainings: Trainings, two_files: Artifact, first_estimator: Artifact
) -> None:
    options: dict[str, Any] = {"np": 1, "strategy": "single", "continue_from": "late", "champion_version": 1}
    first = first_estimator
    second = trainings("continue_functions:learn_more", two_files, **options, champion=first)
    rows = pq.read_table(trainings.store.local(two_files) / "train")
    matrix = np.column_stack([np.stack(rows["numeric"].to_numpy()), rows["kind_id"].to_numpy()]).astype("float32")
    by_hand, continued = (skops.io.load(trainings.store.local(m) / "trained/model.skops") for m in (first, second))
    assert not (by_hand.coef_ == continued.coef_).any()
    by_hand.partial_fit(matrix, rows["late"].to_numpy())
    assert by_hand.coef_.tolist() == continued.coef_.tolist()
    other = trainings("continue_functions:ignore", two_files, **options, champion=first)
    assert "continued_from" in second.properties and "continued_from" not in other.properties
    assert any("the function has not loaded version 1 of model 'late'" in line for line in trainings.lines)
    assert "('2013-01-01T00:00:00+00:00', '2013-04-01T00:00:00+00:00')" in trainings.lines


def test_champion_needs_continue_from(tmp_path: Path) -> None:
    session = Session(Rank(), TrainingOptions(train="a:b"), ExamplesSource(), tmp_path)
    with pytest.raises(BadInput, match=r"context\.champion needs continue_from"):
        _ = TrainContext(session).champion


def test_other_inputs_of_the_continued_model_are_refused() -> None:
    champion = Champion("late", 1, "", inputs=["a", "b"])
    summary = {"continued_from": {}, "model": {"inputs": ["b", "a"]}}
    with pytest.raises(BadInput, match=r"takes \['b', 'a'\], and version 1 of model 'late', .* \['a', 'b'\]"):
        check_inputs(champion, summary)
    check_inputs(champion, {**summary, "model": {"inputs": ["a", "b"]}})
    check_inputs(champion, {"model": {"inputs": ["b", "a"]}})


def write_examples(
    world: World,
    *,
    scale: float = 2.0,
    output: str = "x",
    figures: Mapping[str, Any] = {},
    columns: Mapping[str, str] | None = None,
    **properties: Any,
) -> Artifact:
    """Writes examples, with what a case changes: transformed ones, or of columns."""
    facts = {"label": "late", "key": "id", "problem": "binary", **properties}
    if columns is not None:
        return world.artifact("examples", lambda folder: (folder / "rows").write_text(""), columns=columns, **facts)
    constants = Constants(statistics_pb2.DatasetFeatureStatistics())
    traced = trace_transform(lambda f, _: {output: f["a"] / scale}, {"a": "float32"}, constants)
    specs = FeatureSpecs({"a": "float32"}, "late", "id", None, traced.outputs)

    def write(folder: Path) -> None:
        traced.save(folder / "transform_graph")
        (folder / "features.json").write_text(specs.to_json())
        (folder / "constants.json").write_text(json.dumps(figures))

    facts |= {"features": ["a"], "outputs": {name: each.to_dict() for name, each in traced.outputs.items()}}
    return world.artifact("transformed_examples", write, **facts)


def write_model(world: World, examples: Artifact, name: str = "trained/state.pt") -> Artifact:
    """Writes a model of examples that holds one file."""

    def write(folder: Path) -> None:
        (folder / name).parent.mkdir()
        (folder / name).write_text("champion")

    facts = {each: examples.properties[each] for each in ("label", "key", "problem")}
    facts |= {"framework": "torch", "inputs": ["a", "b"]}
    return world.artifact("model", write, made_from={"examples": (examples,)}, **facts)


COLUMNS = {"a": "float", "b": "int64", "c": "string"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "the same": ({}, {}, ""),
    "label": ({}, {"label": "on_time"}, "its label 'late': ['binary', None], and here None"),
    "key": ({}, {"key": None}, "its key: id, and here None"),
    "outputs": ({}, {"output": "y"}, "its output 'x': [0, {'dtype': 'float32'"),
    "constants": (
        {"figures": {"a": {"mean": 1.0}}},
        {"figures": {"a": {"mean": 2.0}}},
        "its constants of 'a': {'mean': 1.0}, and here {'mean': 2.0}; give TransformOperator the same continue_from",
    ),
    "graph": ({}, {"scale": 3.0}, "its graph of the preprocessing function: "),
    "more columns": ({"columns": COLUMNS}, {"columns": {"c": "int64", "a": "float", "d": "int64", "b": "int64"}}, ""),
    "type": ({"columns": COLUMNS}, {"columns": {**COLUMNS, "b": "double"}}, "its type of 'b': int64, and here double"),
    "kind": ({}, {"columns": COLUMNS}, "its kind of the examples: transformed_examples, and here examples"),
}


@pytest.mark.parametrize("case", CASES)
def test_champion_fits_or_is_refused_by_name(case: str, world: World) -> None:
    old, new, expected = CASES[case]
    model = write_model(world, write_examples(world, **old))
    champion = find(world, model, write_examples(world, **new))
    assert expected in champion.problem and bool(expected) == bool(champion.problem)
    if expected:
        with pytest.raises(
            BadInput, match=r"cannot continue from version 4 of model 'late': .* Let the function catch"
        ):
            champion.load()
    else:
        assert (champion.folder / "state.pt").read_text() == "champion" and champion.is_continued


def test_champion_without_its_model_is_refused(world: World) -> None:
    examples = write_examples(world)
    served_only = find(world, write_model(world, examples, "onnx/state.pt"), examples)
    assert "it was trained without continue_from" in served_only.problem
    model = write_model(world, examples)
    world.store.remove_folder(model.uri)
    assert "no artifact found" in find(world, model, examples).problem


def find(world: World, model: Artifact, examples: Artifact) -> Champion:
    options = TrainingOptions(train="a:b", continue_from="late", champion_version=4)
    manifest = world.store.manifest(examples.uri)
    champion = champion_of(world.context(champion=model), options, manifest, world.store.local(examples))
    assert champion is not None
    return champion


def _network(activation: str = "relu", swapped: bool = False, rate: float = 0.1, dtype: str | None = None) -> Any:
    """Returns a Keras model of two inputs; all have weights of the same shapes."""
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    values = keras.layers.Concatenate()([b, a] if swapped else [a, b])
    values = keras.layers.Dropout(rate)(keras.layers.Dense(3, activation=activation, dtype=dtype)(values))
    return keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(values))


class _Subclassed(keras.Model):  # type: ignore[misc]
    """A network in code, whose class has no settings."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(3, activation=activation)

    def call(self, values: Any) -> Any:
        return self.hidden(values)


def _built(activation: str) -> Any:
    model = _Subclassed(activation)
    model(np.zeros((1, 2), "float32"))
    return model


@pytest.mark.parametrize(
    ("trained", "own", "words"),
    [
        (_network(), _network("tanh"), r'its layer 4 is Dense .*"activation": "relu".*built model Dense .*"tanh"'),
        (_network(), _network(swapped=True), "its layer 7 is connections"),
        (_network(), keras.Sequential([keras.Input((4,)), *map(keras.layers.Dense, (3, 1))]), "its layer 1 is InputL"),
        (_built("relu"), _built("tanh"), 'its layer 1 is Dense .*"activation": "relu"'),
    ],
    ids=["activation", "order", "layers", "subclassed"],
)
def test_other_architecture_of_equal_shapes_is_refused(trained: Any, own: Any, words: str, tmp_path: Path) -> None:
    keep_trained(trained, None, tmp_path)
    champion = Champion("late", 1, "", path=tmp_path / "trained")
    with pytest.raises(BadInput, match=words):
        champion.load(own)
    assert (
        champion.load(keras.models.clone_model(trained) if hasattr(trained, "inputs") else _built("relu")) is not None
    )
    assert champion.is_continued
    (tmp_path / "trained" / "architecture.json").unlink()  # as before it was stored
    champion.load(own)
