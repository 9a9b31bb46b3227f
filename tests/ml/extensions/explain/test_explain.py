"""The stages: models of each format and problem, the champion, backgrounds, and what is refused."""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.models.model_records import write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.explain.core.explanation import Explanation
from airflow_hops.extensions.explain.ml import explain, reasons
from airflow_hops.extensions.explain.ml.shapley import Explainer
from airflow_hops.extensions.explain.ml.tree_models import NotTrees, TreeModel
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.statistics import stage as statistics
from airflow_hops.testing.stages import StageContract
from tests.ml.echo_models import write_echo_model, write_function
from tests.ml.extensions.explain.random_trees import random_forest

ROWS = 1200
CLASSES = ("low", "middle", "high")
random = np.random.default_rng(11)
SITE = np.array(["north", "south", "east"], object)[random.integers(0, 3, ROWS)]
HOUR = random.integers(0, 24, ROWS)
DISTANCE = random.normal(5, 1, ROWS).astype(np.float32)
NOISE = random.normal(0, 1, ROWS).astype(np.float32)
PRICE = np.where(SITE == "north", 4.0, 0.0) + 0.2 * HOUR + random.normal(0, 0.3, ROWS)
TABLE = pd.DataFrame({"site": SITE, "hour": HOUR, "distance": DISTANCE, "noise": NOISE})


def labels_of(problem: str) -> Any:
    if problem == "regression":
        return PRICE
    return np.digitize(PRICE, [2.0, 5.0]) if problem == "multiclass" else (PRICE > 4).astype(int)


def write_examples(store: ArtifactStore, problem: str = "regression", run: str = "run", **columns: Any) -> Artifact:
    """A table of splits train and eval, with a label of the problem; further columns, or None to leave one out."""
    table = TABLE.assign(label=labels_of(problem), id=[f"row-{n}" for n in range(ROWS)])
    table = table.assign(**{name: values for name, values in columns.items() if values is not None})
    table = table.drop(columns=[name for name, values in columns.items() if values is None])
    classes = CLASSES if problem == "multiclass" else None
    properties = ExamplesProperties(label="label", key="id", splits=("train", "eval"), problem=problem, classes=classes)
    with store.create(store.uri("tests", run, f"prepare_{problem}", "examples"), "examples", Producer()) as writer:
        for split, part in (("train", table[:600]), ("eval", table[600:])):
            (writer.path / split).mkdir()
            rows = pa.Table.from_pandas(part, preserve_index=False)
            pq.write_table(rows, writer.path / split / "part-0.parquet", row_group_size=250)
        return writer.commit(rows={"eval": RowCounts(600, 600)}, properties=properties.to_dict())


@functools.cache
def exported(problem: str, features: str) -> tuple[str, dict[str, bytes]]:
    """Boosted trees as skops, a forest and a logistic regression as ONNX: the format and its files."""
    used = features.split()
    encode = ColumnTransformer([("text", OneHotEncoder(handle_unknown="ignore"), ["site"])], remainder="passthrough")
    estimator: Any = {
        "regression": HistGradientBoostingRegressor(max_iter=15, learning_rate=0.3, random_state=0),
        "multiclass": RandomForestClassifier(30, max_depth=6, random_state=0),
        "binary": LogisticRegression(max_iter=1000),
    }[problem]
    model = make_pipeline(encode, estimator).fit(TABLE[used][:600], labels_of(problem)[:600])
    target = Target("label", problem, CLASSES if problem == "multiclass" else None)
    with tempfile.TemporaryDirectory() as folder:
        written = export_model(model, Path(folder), framework="sklearn", target=target, sample=TABLE[used][600:700])
        files = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.*")}
    return written.format, files


def write_model(
    store: ArtifactStore,
    problem: str = "regression",
    name: str = "model",
    features: str = "site hour distance noise",
    **trained_on: Any,
) -> Artifact:
    format, files = exported(problem, features)
    with store.create(store.uri("tests", "run", name, "model"), "model", Producer()) as writer:
        for path, content in files.items():
            (writer.path / path).parent.mkdir(exist_ok=True)
            (writer.path / path).write_bytes(content)
        classes = CLASSES if problem == "multiclass" else None
        properties = ModelProperties(label="label", problem=problem, classes=classes, format=format, **trained_on)
        return writer.commit(properties=properties.to_dict())


def write_echo(
    store: ArtifactStore, output: str, columns: list[str], name: str = "echo", **properties: Any
) -> Artifact:
    with store.create(store.uri("tests", "run", name, "model"), "model", Producer()) as writer:
        write_echo_model(writer.path / "saved_model", output, columns)
        return writer.commit(properties=ModelProperties(label="label", **properties).to_dict())


def write_graph(store: ArtifactStore, name: str, serve: Callable[..., Any], **shapes: list[int | None]) -> Artifact:
    """A SavedModel that predicts a regression with a function of inputs of these shapes."""
    inputs = {name: (tf.float32, shape) for name, shape in shapes.items()}
    with store.create(store.uri("tests", "run", name, "model"), "model", Producer()) as writer:
        write_function(writer.path / "saved_model", lambda *values: {"prediction": serve(*values)}, **inputs)
        return writer.commit(properties=ModelProperties(label="label", problem="regression").to_dict())


class Bench:
    def __init__(self, store: ArtifactStore, run_stage: Callable[..., Any]) -> None:
        self.store, self.run_stage = store, run_stage

    def explain(self, model: Artifact, examples: Artifact, background: Any = None, **params: Any) -> Explanation:
        inputs = {"model": model, "examples": examples, **({"background": background} if background else {})}
        small = {"background_rows": 20, "repeats": 2, "explained": 3, **params}
        self.artifact = self.run_stage(explain.run, kind="explanation", inputs=inputs, **small)
        return Explanation.from_dict(json.loads((self.store.local(self.artifact) / "explanation.json").read_text()))

    def reasons(self, model: Artifact, examples: Artifact, **params: Any) -> Any:
        inputs = {"model": model, "examples": examples}
        self.artifact = self.run_stage(reasons.run, kind="reasons", inputs=inputs, background_rows=10, **params)
        return pq.read_table(self.store.local(self.artifact) / "eval").to_pandas()


@pytest.fixture
def bench(store: ArtifactStore, run_stage: Callable[..., Any]) -> Bench:
    return Bench(store, run_stage)


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["regression", "binary", "multiclass"])
def test_model_of_each_problem_is_explained_by_raw_features(bench: Bench, problem: str) -> None:
    report = bench.explain(write_model(bench.store, problem), write_examples(bench.store, problem))
    by_name = {each.feature: each for each in report.importance}
    rises = [each.candidate[0] for each in report.importance if each.candidate]
    assert rises == sorted(rises, reverse=True)
    assert set(by_name) == {"site", "hour", "distance", "noise"}
    assert {name for name, each in by_name.items() if each.is_beyond_chance} == {"site", "hour"}
    assert report.candidate_loss < report.constant_loss / 2 and report.champion is None
    assert bench.artifact.properties["leading"] == [each.feature for each in report.importance[:2]]
    site, hour = ({each.feature: each for each in report.dependence}[name] for name in ("site", "hour"))
    assert not site.is_number and sum(point.share for point in site.points) == pytest.approx(1)
    assert [point.value for point in hour.points][:2] == [0, 1 if len(hour.points) > 20 else hour.points[1].value]
    highest = -1 if problem == "multiclass" else 0
    assert {point.value: point.candidate[highest] for point in site.points}["north"] == max(
        point.candidate[highest] for point in site.points
    )
    assert report.dependence_classes == (CLASSES if problem == "multiclass" else None)
    for row in report.explained:
        assert row.key.startswith("row-") and (row.class_name in CLASSES) == (problem == "multiclass")
        assert row.base + sum(each.contribution for each in row.reasons) + row.rest == pytest.approx(
            row.prediction, abs=1e-6
        )
    assert report.predictions <= report.rows * 4 * 3 + 600 * 3 + 6 * 21 * 500 + 4 * (2**4 * 20)
    if problem == "binary":
        again = bench.explain(write_model(bench.store, problem, "again"), write_examples(bench.store, problem, "again"))
        assert again.importance == report.importance and again.explained == report.explained


@pytest.mark.slow
def test_champion_is_explained_on_the_same_rows(bench: Bench) -> None:
    """The background is a sample of the statistics."""
    old = write_model(bench.store, "regression", "old", features="site distance noise")
    write_record(bench.store, "served", ModelRecord(champion=ServedVersion.of(old, 4, "", 100)))
    new = write_model(bench.store, "regression", "new")
    examples = write_examples(bench.store)
    sampled = bench.run_stage(statistics.run, kind="statistics", inputs={"examples": examples}, sample_rows=200)
    report = bench.explain(new, examples, background=sampled, model_name="served")
    assert report.champion is not None and report.champion.version == 4 and report.background_rows == 20
    assert report.explained[0].base == pytest.approx(PRICE.mean(), abs=1.5)
    by_name = {each.feature: each for each in report.importance}
    assert by_name["hour"].champion is None and by_name["hour"].is_beyond_chance
    assert by_name["site"].champion is not None and by_name["site"].champion[1] > 0
    assert report.champion_loss is not None and report.champion_loss > report.candidate_loss
    depended = {each.feature: each.points[0].champion for each in report.dependence}
    assert depended["hour"] is None and depended["site"] is not None
    assert bench.explain(old, examples, model_name="served").champion is None


def test_classes_of_the_champion_are_compared_by_name(bench: Bench) -> None:
    labels = labels_of("multiclass")
    shares = 0.7 * np.eye(3)[labels] + 0.1
    columns = {name: shares[:, number].astype(np.float32) for number, name in enumerate(CLASSES)}
    pair = (shares[:, :2] / shares[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    examples = write_examples(bench.store, "multiclass", **columns, p_low=pair[:, 0], p_middle=pair[:, 1])
    old = write_echo(
        bench.store, "probabilities", ["p_middle", "p_low"], problem="multiclass", classes=("middle", "low")
    )
    write_record(bench.store, "served", ModelRecord(champion=ServedVersion.of(old, 1, "", 100)))
    new = write_echo(bench.store, "probabilities", list(CLASSES), "mine", problem="multiclass", classes=CLASSES)
    report = bench.explain(new, examples, model_name="served")
    by_name = {each.feature: each for each in report.importance}
    mine = np.square(shares - np.eye(3)[labels]).sum(axis=1)[600:].mean()
    assert report.candidate_loss == pytest.approx(mine, rel=1e-4)
    known = labels[600:] < 2
    theirs = np.square(pair[600:][known] - np.eye(3)[labels[600:][known]][:, :2]).sum(axis=1).mean()
    assert report.champion_loss == pytest.approx(theirs, rel=1e-4)
    assert by_name["p_low"].champion is not None and by_name["p_low"].candidate is None


def test_leak_and_class_without_rows_are_warnings(bench: Bench) -> None:
    table = {"copy": PRICE.astype(np.float32) + 0.01 * NOISE}
    model = write_echo(bench.store, "prediction", ["copy"], problem="regression")
    two = write_graph(bench.store, "two", lambda copy, noise: copy + 0.05 * noise, copy=[None], noise=[None])
    examples = write_examples(bench.store, **table)
    (warning,) = bench.explain(two, examples).warnings
    assert warning.startswith("'copy' carries the model: it has 100% of all importance")
    assert bench.artifact.properties["warnings"] == [warning]
    assert bench.explain(model, examples).warnings == (), "of one feature, it says nothing"

    labels = labels_of("multiclass") % 2
    examples = write_examples(bench.store, "multiclass", run="without", label=labels)
    (warning,) = bench.explain(write_model(bench.store, "multiclass"), examples).warnings
    assert warning.startswith("split 'eval' has no rows of class 'high'")


def test_reasons_of_each_row_add_up(bench: Bench) -> None:
    model, examples = write_model(bench.store, "multiclass"), write_examples(bench.store, "multiclass")
    table = bench.reasons(model, examples, splits=["eval"], reasons=2, columns=["id", "hour"])
    assert list(table.columns) == [
        "id", "hour", "prediction", "class", "base", "reason_1", "value_1", "contribution_1", "error_1", "reason_2",
        "value_2", "contribution_2", "error_2", "rest",
    ]  # fmt: skip
    assert table["id"].tolist() == [f"row-{number}" for number in range(600, ROWS)], "in the order of the rows"
    total = table["base"] + table["contribution_1"] + table["contribution_2"] + table["rest"]
    assert total.to_numpy() == pytest.approx(table["prediction"].to_numpy(), abs=1e-6)
    assert (table["contribution_1"].abs() >= table["contribution_2"].abs()).all()
    assert set(table["class"]) <= set(CLASSES)
    assert (table["reason_1"] == "site").mean() + (table["reason_1"] == "hour").mean() > 0.95
    of_hour = table[table["reason_1"] == "hour"]
    assert (of_hour["value_1"] == of_hour["hour"].astype(str)).all()
    assert bench.artifact.rows["eval"].rows_out == 600 and bench.artifact.properties["is_exact"]
    assert bench.artifact.metrics["largest_gap"] < 1e-6
    write_record(bench.store, "served", ModelRecord(champion=ServedVersion.of(model, 1, "", 100)))
    served = bench.reasons(model, examples, splits=["eval"], reasons=2, columns=["id", "hour"], model_name="served")
    assert served.equals(table)
    for columns in ([], ["id", "id"]):
        other = bench.reasons(model, examples, splits=["eval"], reasons=2, columns=columns)
        assert other.equals(table[[*dict.fromkeys(columns), *table.columns[2:]]])


TREES: Any = {
    "forest": ("multiclass", RandomForestClassifier(5, max_depth=5, random_state=0), False),
    "regressor": ("regression", GradientBoostingRegressor(n_estimators=9, max_depth=4, random_state=0), False),
    "boosted": ("binary", GradientBoostingClassifier(n_estimators=9, random_state=0), True),
    "classes": ("multiclass", GradientBoostingClassifier(n_estimators=9, random_state=0), True),
    "missing": ("binary", HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=8, random_state=0), True),
}


def served_trees(folder: Path, name: str, *steps: Any) -> tuple[ScoredModel, dict[str, Any], dict[str, Any], bool]:
    """A served ONNX graph of trees of one-hot texts and numbers, rows of its inputs, and a background."""
    problem, estimator, log_odds = TREES[name]
    table = TABLE.assign(hour=TABLE["hour"].astype(np.float32))
    if name == "missing":
        table["noise"] = table["noise"].where(np.arange(ROWS) % 3 > 0)
    encode = ColumnTransformer(
        [("text", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["site"])], remainder="passthrough"
    )
    model = make_pipeline(encode, *steps, estimator).fit(table[:600], labels_of(problem)[:600])
    target = Target("label", problem, CLASSES if problem == "multiclass" else None)
    written = export_model(model, folder, framework="sklearn", target=target, sample=table[600:700])
    served = ScoredModel(folder / written.format)
    arrays = {each: table[each].to_numpy() for each in served.inputs}
    arrays["site"] = np.array([each.encode() for each in arrays["site"]], object)
    return (
        served,
        *({each: values[part] for each, values in arrays.items()} for part in (slice(700, 712), slice(30))),
        log_odds,
    )


@pytest.mark.parametrize("name", TREES)
def test_trees_of_a_served_graph_have_exact_values(tmp_path: Path, name: str) -> None:
    served, rows, background, log_odds = served_trees(tmp_path / "model", name)
    predictions = {
        way: served.predict(arrays_of_way).reshape(len(arrays_of_way["hour"]), -1)
        for way, arrays_of_way in (("x", rows), ("z", background))
    }
    trees = TreeModel(served, tmp_path, background, predictions["z"], log_odds)
    outputs = predictions["x"].argmax(axis=1)
    values, predicted, base = trees.explain(rows, predictions["x"], outputs)
    assert base + values.sum(axis=1) == pytest.approx(predicted, abs=1e-9)

    def predict(arrays: Any) -> Any:
        p = served.predict(arrays).astype(float)
        if not log_odds:
            return p
        return np.log(p / (1 - p)) if p.ndim == 1 else np.log(p) - np.log(p).mean(axis=1, keepdims=True)

    by_coalitions = Explainer(predict, background).explain(rows)
    scale = max(np.abs(each.values).max() for each in by_coalitions)
    assert values == pytest.approx(np.stack([each.values for each in by_coalitions]), abs=2e-6 * scale)
    if log_odds:
        with pytest.raises(NotTrees, match="the predictions are not a sum over the trees"):
            TreeModel(served, tmp_path, background, predictions["z"], log_odds=False)


@pytest.mark.parametrize("seeds", [(60, 90), pytest.param((0, 500), marks=pytest.mark.scheduled(part="campaigns"))])
def test_trees_behind_rare_crosses_have_exact_values_or_none(tmp_path: Path, seeds: tuple[int, int]) -> None:
    wrong, exact = [], 0
    for seed in range(*seeds):
        served, rows, background = random_forest(tmp_path / f"m{seed}", seed, crosses=seed % 3)
        predicted, of_background = (served.predict(batch)[:, None] for batch in (rows, background))
        try:
            trees = TreeModel(served, tmp_path / f"t{seed}", background, of_background, log_odds=False)
            values, _, _ = trees.explain(rows, predicted, np.zeros(len(predicted), int))
        except NotTrees:
            assert seed % 3, "without crosses, columns are made of one feature"
            continue
        exact += seed % 3 == 0
        coalitions = Explainer(lambda arrays, model=served: model.predict(arrays).astype(float), background).explain(
            rows
        )
        expected = np.stack([each.values for each in coalitions])
        if not np.allclose(values, expected, atol=1e-5 * np.abs(expected).max()):
            wrong.append(seed)
    assert (wrong, exact) == ([], len([seed for seed in range(*seeds) if seed % 3 == 0]))


def test_columns_made_of_several_features_have_no_exact_values(tmp_path: Path) -> None:
    served, _, background, _ = served_trees(tmp_path / "model", "regressor", PCA(3))
    with pytest.raises(NotTrees, match="a column of the trees is made of several raw features"):
        TreeModel(served, tmp_path, background, served.predict(background)[:, None], log_odds=False)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"pairs": 1}, "pairs is 1, expected a whole number, 2 or more"),
        ({"split": "test"}, "no Parquet files of split 'test'; there are the splits eval, train"),
        (
            {"max_predictions": 999},
            r"predictions are needed \(600 rows × 4 features × 2 repeats .*max_predictions is 999",
        ),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_options_are_refused(bench: Bench, params: Mapping[str, Any], words: str) -> None:
    with pytest.raises((BadInput, TypeError), match=words):
        bench.explain(write_model(bench.store, "binary"), write_examples(bench.store, "binary"), **params)


def test_inputs_that_do_not_fit_are_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    model, examples = write_model(bench.store), write_examples(bench.store)
    without = write_examples(bench.store, run="without", hour=None)
    with pytest.raises(BadInput, match="there is no column 'hour', which the model's signature has as int64"):
        bench.explain(model, without)
    with pytest.raises(BadInput, match="there is no column 'hour', which the model's signature has as int64"):
        bench.explain(model, examples, background=without)
    sampled = bench.run_stage(statistics.run, kind="statistics", inputs={"examples": without}, sample_rows=100)
    with pytest.raises(BadInput, match=r"background .*split 'train': sample\.parquet has no column 'hour'"):
        bench.explain(model, examples, background=sampled)
    with pytest.raises(BadInput, match=r"columns name 'nothing', which .* does not have; it has site, hour"):
        bench.reasons(model, examples, columns=["id", "nothing"])
    with pytest.raises(BadInput, match="columns name 'rest', which is a column of the reasons too"):
        bench.reasons(model, write_examples(bench.store, run="taken", rest=NOISE), columns=["rest"])
    unknown = write_examples(bench.store, "multiclass", run="unknown", label=labels_of("multiclass") + 1)
    with pytest.raises(BadInput, match=re.escape("label 'label' is 3 in")):
        bench.explain(write_model(bench.store, "multiclass"), unknown)


def test_model_of_vectors_alone_is_refused(bench: Bench) -> None:
    model = write_graph(bench.store, "vectors", lambda vector: tf.reduce_sum(vector, axis=1), vector=[None, 2])
    examples = write_examples(bench.store, vector=[np.array([1.0, 2.0], np.float32)] * ROWS)
    for stage in (bench.explain, bench.reasons):
        with pytest.raises(BadInput, match=r"its inputs are 'vector' \(float32\[2\]\), vectors or bytes"):
            stage(model, examples)


class TestExplainContract(StageContract):
    name = "explain"
    output_kind = "explanation"

    @pytest.fixture
    def params(self) -> Mapping[str, Any]:
        return {"background_rows": 5, "repeats": 1, "explained": 1}

    @pytest.fixture
    def inputs(self, store: ArtifactStore) -> Mapping[str, tuple[Artifact, ...]]:
        return {"model": (write_model(store),), "examples": (write_examples(store),)}


class TestReasonsContract(TestExplainContract):
    name = "reasons"
    output_kind = "reasons"

    @pytest.fixture
    def params(self) -> Mapping[str, Any]:
        return {"background_rows": 2}
