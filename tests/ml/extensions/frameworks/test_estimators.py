"""Trainings of one process: what estimators of any framework are given, and how they become models that serve."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.frameworks.ml.estimators import estimator_rows
from airflow_hops.ml.evaluate import stage as evaluate
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.models.frameworks import framework_of
from airflow_hops.ml.training.tables import SplitTable, raw_specs, read_table
from tests import flights_examples
from tests.ml.extensions.frameworks.exported import ask
from tests.ml.training.trainings import Trainings

COLOURS = ("black", "red", "white")


def hens(rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows with strings, integers, missing numbers, three breeds, a yield in eggs, and weights."""
    random = np.random.default_rng(seed)
    breed = random.integers(0, 3, rows)
    length = random.normal(30 + 4 * breed, 2)
    length[::17] = np.nan
    return pd.DataFrame(
        {
            "hen": [f"hen-{seed}-{number}" for number in range(rows)],
            "colour": np.array(COLOURS, object)[(breed + (random.random(rows) < 0.1)) % 3],
            "weight_g": random.integers(1000, 2000, rows) + 300 * breed,
            "length_mm": np.where(np.isnan(length), 30.0, length),
            "breed": breed.astype("int64"),
            "eggs": random.normal(200 - 30 * breed, 5),
            "importance": random.uniform(0.5, 2, rows),
        }
    )


@pytest.fixture(scope="module")
def breeds(shared_store: ArtifactStore) -> Artifact:
    splits = {"train": hens(300).drop(columns="eggs"), "eval": hens(90, 1).drop(columns="eggs")}
    facts = {"problem": "multiclass", "classes": ["bantam", "leghorn", "sussex"], "weight": "importance"}
    return write(shared_store, splits, run_id="breeds", label="breed", **facts)


def write(store: ArtifactStore, splits: dict[str, pd.DataFrame], *, run_id: str, **properties: Any) -> Artifact:
    return flights_examples.write_examples(store, dict(splits), run_id=run_id, key="hen", time=None, **properties)


def test_pipeline_on_raw_features_becomes_onnx(
    trainings: Trainings, breeds: Artifact, run_shared_stage: Callable[..., Artifact]
) -> None:
    model = trainings("estimator_functions:classify_rows", breeds, strategy="single", np=1, C=3.0)
    folder = trainings.store.local(model)
    properties = ModelProperties.of(model)
    assert (properties.format, properties.framework, properties.problem) == ("onnx", "sklearn", "multiclass")
    assert properties.classes == ("bantam", "leghorn", "sussex") and properties.target.label == "breed"
    assert properties.synchronized and properties.ranks == 1
    assert set(properties.inputs or ()) == set(properties.features or ()) == {"colour", "weight_g", "length_mm"}
    assert properties.library_versions is not None and "scikit-learn" in properties.library_versions
    assert model.rows["train"].rows_out == 300
    record = json.loads((folder / "training.json").read_text())
    assert record["strategy"] == "single" and 0 <= record["model"]["largest_difference"] < 1e-3
    assert any(line.startswith("step 1 accuracy=") for line in trainings.lines)
    # What serves gives what was trained.
    rows = hens(90, 1)
    asked = rows[["colour", "weight_g", "length_mm"]].astype({"length_mm": "float32"})
    result = ask(folder / "onnx", asked)
    assert result["probabilities"].shape == (90, 3)
    assert (result["probabilities"].argmax(axis=1) == rows["breed"]).mean() > 0.8
    assert set(result["class"].tolist()) <= {b"bantam", b"leghorn", b"sussex"}
    inputs = {"model": model, "examples": breeds}
    evaluated = run_shared_stage(evaluate.run, kind="evaluation", inputs=inputs, model_name="hens")
    assert evaluated.properties["blessed"], evaluated.properties["reasons"]


def test_trees_behind_transform_serve_raw_features(trainings: Trainings, examples: Artifact) -> None:
    model = trainings("estimator_functions:classify_outputs", examples, strategy="single", np=1)
    folder = trainings.store.local(model)
    assert (folder / "onnx" / "transform_graph" / "saved_model.pb").is_file()
    properties = ModelProperties.of(model)
    assert (properties.problem, properties.features) == ("binary", ("a", "b", "kind"))
    assert properties.statistics == "file:///store/statistics"


def test_a_keras_model_of_one_process_needs_no_horovod(trainings: Trainings, examples: Artifact) -> None:
    model = trainings("estimator_functions:learn_keras", examples, strategy="single", np=1)
    properties = ModelProperties.of(model)
    assert (properties.folder, properties.framework, properties.synchronized) == ("saved_model", "keras", True)
    assert (trainings.store.local(model) / "saved_model" / "saved_model.pb").is_file()


def test_keras_model_that_gives_logits_is_refused(trainings: Trainings, examples: Artifact) -> None:
    message = r"'eval': the model's probability is -?\d\S* to \d\S*, outside \[0, 1\] in \d+ of \d+ rows, .*Sigmoid"
    with pytest.raises(BadInput, match=message):
        trainings("estimator_functions:learn_logits", examples, strategy="single", np=1)


def test_retry_resumes_from_saved_files(trainings: Trainings, shared_store: ArtifactStore) -> None:
    splits = {"train": hens(100).drop(columns="breed"), "eval": hens(60, 1).drop(columns="breed")}
    eggs = write(shared_store, splits, run_id="eggs", label="eggs", problem="regression")
    how = {"strategy": "single", "np": 1, "run_id": "retried"}
    with pytest.raises(HopsError, match=r"something fails for once[\s\S]*checkpoint .* is kept"):
        trainings("estimator_functions:regress", eggs, fails=True, **how)
    model = trainings("estimator_functions:regress", eggs, fails=True, **how)
    assert "resumed after 5 trees" in trainings.lines
    assert ModelProperties.of(model).inputs == ("length_mm", "weight_g"), "in the order in which the model takes them"
    assert ModelProperties.of(model).problem == "regression"


def test_training_that_returns_no_model_fails_without_retry(trainings: Trainings, breeds: Artifact) -> None:
    message = r"returned numpy.ndarray, expected a keras.Model, or a model .* of a registered frame"
    with pytest.raises(BadInput, match=message):
        trainings("estimator_functions:return_labels", breeds, strategy="single", np=1)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., SplitTable]:
    """Reads a table of the test's own as the split that is trained on."""

    def read_rows(table: pa.Table, target: Target, columns: list[str] | None = None, **share: int) -> SplitTable:
        folder = tmp_path / "train"
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / "part-0.parquet")
        specs = raw_specs(str(folder), [target.label, target.weight])
        return read_table(str(folder), "train", target, {n: specs[n] for n in columns or specs}, **share)

    return read_rows


def test_table_rows_match_each_frameworks_form(read: Callable[..., SplitTable]) -> None:
    table = pa.table(
        {
            "name": pa.array(["a", None, "c", "a"]).dictionary_encode(),
            "count": pa.array([1, 2, 3, 4], pa.int32()),
            "ratio": pa.array([0.5, None, 1.5, 2.5]),
            "place": pa.FixedSizeListArray.from_arrays(pa.array(range(8), pa.float32()), 2),
            "late": pa.array([0, 1, 0, 1]),
            "share": pa.array([1.0, 2.0, 3.0, 4.0]),
        }
    )
    target = Target("late", weight="share")
    rows = read(table, target)
    assert rows.arrow().num_rows == len(rows) == 4
    assert (rows.labels.dtype, rows.labels.tolist()) == (np.int64, [0, 1, 0, 1])
    assert rows.weights is not None and rows.weights.tolist() == [1, 2, 3, 4]
    frame = read(table, target, ["ratio", "name"]).frame()
    assert list(frame) == ["ratio", "name"] and frame["name"].tolist() == ["a", "", "c", "a"]
    assert frame["ratio"].dtype == np.float32 and np.isnan(frame["ratio"][1])
    numbers = read(table, target, ["place", "count"])
    assert numbers.names == ["place_0", "place_1", "count"]
    assert numbers.matrix().dtype == np.float32
    assert numbers.matrix().tolist() == [[0, 1, 1], [2, 3, 2], [4, 5, 3], [6, 7, 4]]
    second = read(table, target, ["count"], rank=1, size=2)
    assert second.matrix().ravel().tolist() == [3, 4] and second.labels.tolist() == [0, 1]
    folder = Path(rows.where)
    pq.write_table(table.slice(0, 2).set_column(1, "count", pa.array([8.0, 9.0])), folder / "part-1.parquet")
    specs = {name: rows.specs[name] for name in ("count", "name")}
    again = read_table(str(folder), "train", target, specs).frame()
    assert (again["count"].tolist(), again["name"].tolist()) == ([1, 2, 3, 4, 8, 9], ["a", "", "c", "a", "a", ""])
    pq.write_table(table.set_column(1, "count", pa.array(["x"] * 4)), folder / "part-1.parquet")
    with pytest.raises(BadInput, match=r"part-1.parquet: column 'count' is string, but int32 in the first file"):
        read_table(str(folder), "train", target, specs)
    assert rows.frame()["place_1"].tolist() == [1, 3, 5, 7]
    with pytest.raises(BadInput, match=r"'name' holds strings.*use frame\(\)"):
        rows.matrix()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=4), st.integers(1, 99))
def test_shares_are_slices_of_all_rows(files: list[tuple[int, int]], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows: list[int] = []
        for part, (count, group_rows) in enumerate(files):
            own = range(len(rows), len(rows) + count)
            columns = {"n": pa.array(own, pa.int64() if part else pa.int32()), "y": pa.array(own, pa.float64())}
            columns["v"] = pa.array([[row, 0.5] for row in own], pa.list_(pa.float32()))
            columns["s"] = pa.array(map(str, own), pa.string()).dictionary_encode()
            pq.write_table(pa.table(columns), f"{folder}/part-{part}.parquet", row_group_size=group_rows)
            rows += own
        specs = {"s": OutputSpec("string"), "v": OutputSpec("float32", 2), "n": OutputSpec("int64")}
        for rank in range(size):
            share = read_table(folder, "eval", Target("y", "regression"), specs, rank=rank, size=size)
            own = rows[len(rows) * rank // size : len(rows) * (rank + 1) // size]
            assert share.labels.tolist() == share.columns["n"].to_pylist() == own
            assert share.columns["v"].to_pylist() == [[row, 0.5] for row in own]
            assert share.columns["s"].to_pylist() == list(map(str, own))
            assert share.columns.schema.field("n").type == pa.int32()


def test_rank_holds_its_share_alone(read: Callable[..., SplitTable]) -> None:
    table = pa.table({f"f{number}": np.random.default_rng(number).normal(size=400_000) for number in range(5)})
    table = table.append_column("y", table["f0"])
    held_bytes = pa.total_allocated_bytes()
    share = read(table, Target("y", "regression"), rank=2, size=4)
    assert len(share) == 100_000 and pa.total_allocated_bytes() - held_bytes < (1 / 4 + 0.15) * table.nbytes


def test_vectors_have_length_of_first_file(tmp_path: Path) -> None:
    target, kind, folder = Target("y", "regression"), pa.list_(pa.float32()), tmp_path / "train"
    folder.mkdir()

    def write(part: int, vectors: list[Any]) -> None:
        table = pa.table({"v": pa.array(vectors, kind), "v_0": [1.0, 2.0], "y": [float(part), 1.5]})
        pq.write_table(table, folder / f"part-{part}.parquet")

    write(0, [None, None])
    with pytest.raises(BadInput, match="column 'v' has only vectors that are missing or empty"):
        raw_specs(str(folder), ["y"])
    write(1, [None, [3.0, 4.0]])
    specs = raw_specs(str(folder), ["y"])
    rows = read_table(str(folder), "train", target, specs)
    assert {name: spec.width for name, spec in specs.items()} == {"v": 2, "v_0": None}
    np.testing.assert_array_equal(rows.matrix()[2:], [[np.nan, np.nan, 1], [3, 4, 2]])
    with pytest.raises(BadInput, match="a number of a vector and another feature are both called 'v_0'; rename"):
        rows.frame()
    assert list(read_table(str(folder), "train", target, {"v": specs["v"]}).frame()) == ["v_0", "v_1"]


@pytest.mark.parametrize(
    ("column", "target", "message"),
    [
        ([0.5, float("nan")], Target("y", "regression"), r"label 'y' is nan in row 1, and not a number in 1 of 2 rows"),
        ([0.5, None], Target("y", "regression"), "label 'y' is missing in 1 of 2 rows"),
        ([2.5, 2.5], Target("y", "regression"), "label 'y' is 2.5 in every row"),
        ([1, 1], Target("y"), "label 'y' is '0' in no row"),
        ([0, 3], Target("y", "multiclass", ("a", "b", "c")), "'y' is 3 in a row, expected a class's number, 0 to 2"),
        ([0, 2], Target("y", "multiclass", ("a", "b", "c")), "label 'y' is 'b' in no row"),
        (["a", "b"], Target("y"), "label 'y' is string, expected numbers"),
        ([0, 1], Target("y", weight="x"), "weight 'x' is 0 in a row, expected a number above 0"),
    ],
)  # fmt: skip
def test_unusable_label_is_named(read: Any, column: list[Any], target: Target, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read(pa.table({"x": [1.0, 0.0], "z": [1, 2], "y": column}), target)


def test_estimator_gets_features_in_its_order(read: Callable[..., SplitTable]) -> None:
    table = pa.table({"a b": [1.0, 2.0, 3.0], "c": [3.0, 1.0, 2.0], "y": [1.0, 2.0, 4.0]})
    rows = read(table, Target("y", "regression"))
    turned = LinearRegression().fit(rows.frame()[["c", "a b"]], rows.labels)
    sample, order = estimator_rows(turned, rows)
    assert list(sample) == list(order) == ["c", "a b"]
    sample, order = estimator_rows(LinearRegression().fit(rows.matrix(), rows.labels), rows)
    assert isinstance(sample, np.ndarray) and list(order) == ["a b", "c"]
    numbered = read(table.rename_columns(["f1", "f0", "y"]), Target("y", "regression"))
    _, order = estimator_rows(LinearRegression().fit(numbered.frame()[["f0", "f1"]], numbered.labels), numbered)
    assert list(order) == ["f0", "f1"], "features that are called as libraries call columns without a name"

    made = LinearRegression().fit(rows.frame().assign(ratio=1.0), rows.labels)
    with pytest.raises(BadInput, match=r"was trained on 'ratio', which requests .* will lack.*features.* are a b, c"):
        estimator_rows(made, rows)
    with pytest.raises(BadInput, match=r"was trained on 1 columns, but the features are 2: a b, c"):
        estimator_rows(LinearRegression().fit(rows.matrix()[:, :1], rows.labels), rows)

    class Booster:
        """As LightGBM names the features of what it has trained."""

        def feature_name(self) -> list[str]:
            return ["c", "a_b"]

        def predict(self, rows: Any) -> Any:
            return rows

    sample, order = estimator_rows(Booster(), rows)
    assert list(order) == ["c", "a b"] and sample.tolist() == [[3, 1], [1, 2], [2, 3]]
    table = pa.table({"v": [[1.0, 2.0], [0.0, 1.0]], "c": [1.0, 2.0], "y": [1.0, 2.0]})
    vectors = read(table, Target("y", "regression"))
    part = LinearRegression().fit(vectors.frame()[["v_1"]], vectors.labels)
    with pytest.raises(BadInput, match=r"1 columns of frame\(\), not all 3.*train it on matrix\(\) of context.table"):
        estimator_rows(part, vectors)
    assert framework_of(turned) == "sklearn"
    assert framework_of(rows) is framework_of(OutputSpec("int64")) is None
