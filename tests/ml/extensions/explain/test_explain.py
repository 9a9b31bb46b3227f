"""The stages: models of each format and problem, the champion, backgrounds, and what is refused."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.explain.core.explanation import Explanation
from airflow_hops.extensions.explain.ml import explain, reasons
from airflow_hops.extensions.explain.ml.shapley import Explainer
from airflow_hops.extensions.explain.ml.tree_models import NotTrees, TreeModel
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.statistics import stage as statistics
from airflow_hops.testing.stages import StageContract
from tests.ml.extensions.explain.random_trees import random_forest
from tests.ml.world import World

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


class Bench(World):
    """A world with models of the table, and their explanations."""

    def table(self, problem: str = "regression", **columns: Any) -> Artifact:
        """Writes splits train and eval with a label of the problem; further columns, or None to leave one out."""
        table = TABLE.assign(label=labels_of(problem), id=[f"row-{n}" for n in range(ROWS)])
        table = table.assign(**{name: values for name, values in columns.items() if values is not None})
        table = table.drop(columns=[name for name, values in columns.items() if values is None])
        classes = {"classes": CLASSES} if problem == "multiclass" else {}
        splits = {"train": table[:600], "eval": [table[600:850], table[850:]]}
        return self.examples(splits, key="id", problem=problem, **classes)

    def trained(
        self, problem: str = "regression", features: str = "site hour distance noise", **trained_on: Any
    ) -> Artifact:
        format, files = exported(problem, features)

        def write(folder: Path) -> None:
            for path, content in files.items():
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_bytes(content)

        classes = CLASSES if problem == "multiclass" else None
        properties = ModelProperties(label="label", problem=problem, classes=classes, format=format, **trained_on)
        return self.artifact("model", write, **properties.to_dict())

    def graph(self, serve: Callable[..., Any], **shapes: list[int | None]) -> Artifact:
        """A SavedModel that predicts a regression with a function of inputs of these shapes."""
        inputs = {name: (tf.float32, shape) for name, shape in shapes.items()}
        predict = lambda *values: {"prediction": serve(*values)}  # noqa: E731
        return self.served_function(predict, inputs, label="label", problem="regression")

    def explain(self, model: Artifact, examples: Artifact, background: Any = None, **params: Any) -> Explanation:
        more = {"background": background} if background else {}
        small = {"background_rows": 20, "repeats": 2, "explained": 3, **params}
        self.made = self.run(explain, kind="explanation", model=model, examples=examples, **more, **small)
        return Explanation.from_dict(self.read(self.made, "explanation.json"))

    def reasons(self, model: Artifact, examples: Artifact, **params: Any) -> Any:
        self.made = self.run(reasons, kind="reasons", model=model, examples=examples, background_rows=10, **params)
        return self.rows(self.made, "eval").to_pandas()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["regression", "binary", "multiclass"])
def test_model_of_each_problem_is_explained_by_raw_features(bench: Bench, problem: str) -> None:
    report = bench.explain(bench.trained(problem), bench.table(problem))
    by_name = {each.feature: each for each in report.importance}
    rises = [each.candidate[0] for each in report.importance if each.candidate]
    assert rises == sorted(rises, reverse=True)
    assert set(by_name) == {"site", "hour", "distance", "noise"}
    assert {name for name, each in by_name.items() if each.is_beyond_chance} == {"site", "hour"}
    assert report.candidate_loss < report.constant_loss / 2 and report.champion is None
    assert bench.made.properties["leading"] == [each.feature for each in report.importance[:2]]
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
        again = bench.explain(bench.trained(problem), bench.table(problem))
        assert again.importance == report.importance and again.explained == report.explained


@pytest.mark.slow
def test_champion_is_explained_on_the_same_rows(bench: Bench) -> None:
    """The background is a sample of the statistics."""
    old = bench.trained(features="site distance noise")
    bench.deploy(old, version=4)
    new = bench.trained()
    examples = bench.table()
    sampled = bench.run(statistics, examples=examples, sample_rows=200)
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
    facts = {"label": "label", "problem": "multiclass"}
    examples = bench.table("multiclass", **columns, p_low=pair[:, 0], p_middle=pair[:, 1])
    old = bench.echo("probabilities", ["p_middle", "p_low"], **facts, classes=("middle", "low"))
    bench.deploy(old)
    new = bench.echo("probabilities", CLASSES, **facts, classes=CLASSES)
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
    model = bench.echo("prediction", ["copy"], label="label", problem="regression")
    two = bench.graph(lambda copy, noise: copy + 0.05 * noise, copy=[None], noise=[None])
    examples = bench.table(**table)
    (warning,) = bench.explain(two, examples).warnings
    assert warning.startswith("'copy' carries the model: it has 100% of all importance")
    assert bench.made.properties["warnings"] == [warning]
    assert bench.explain(model, examples).warnings == (), "of one feature, it says nothing"

    labels = labels_of("multiclass") % 2
    examples = bench.table("multiclass", label=labels)
    (warning,) = bench.explain(bench.trained("multiclass"), examples).warnings
    assert warning.startswith("split 'eval' has no rows of class 'high'")


def test_reasons_of_each_row_add_up(bench: Bench) -> None:
    model, examples = bench.trained("multiclass"), bench.table("multiclass")
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
    assert bench.made.rows["eval"].rows_out == 600 and bench.made.properties["is_exact"]
    assert bench.made.metrics["largest_gap"] < 1e-6
    bench.deploy(model)
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
        bench.explain(bench.trained("binary"), bench.table("binary"), **params)


def test_inputs_that_do_not_fit_are_refused_by_name(bench: Bench) -> None:
    model, examples, without = bench.trained(), bench.table(), bench.table(hour=None)
    sampled = bench.run(statistics, examples=without, sample_rows=100)
    unknown = bench.table("multiclass", label=labels_of("multiclass") + 1)
    absent = "there is no column 'hour', which the model's signature has as int64"
    for stage, inputs, params, message in (
        (bench.explain, (model, without), {}, absent),
        (bench.explain, (model, examples), {"background": without}, absent),
        (
            bench.explain, (model, examples), {"background": sampled},
            r"background .*split 'train': sample\.parquet has no column 'hour'",
        ),
        (
            bench.reasons, (model, examples), {"columns": ["id", "nothing"]},
            r"columns name 'nothing', which .* does not have; it has site, hour",
        ),
        (
            bench.reasons, (model, bench.table(rest=NOISE)), {"columns": ["rest"]},
            "columns name 'rest', which is a column of the reasons too",
        ),
        (bench.explain, (bench.trained("multiclass"), unknown), {}, "label 'label' is 3 in"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            stage(*inputs, **params)  # type: ignore[operator]


def test_model_of_vectors_alone_is_refused(bench: Bench) -> None:
    model = bench.graph(lambda vector: tf.reduce_sum(vector, axis=1), vector=[None, 2])
    examples = bench.table(vector=[np.array([1.0, 2.0], np.float32)] * ROWS)
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
    def inputs(self, store: ArtifactStore, tmp_path: Path) -> Mapping[str, tuple[Artifact, ...]]:
        bench = Bench(tmp_path, store)
        return {"model": (bench.trained(),), "examples": (bench.table(),)}


class TestReasonsContract(TestExplainContract):
    name = "reasons"
    output_kind = "reasons"

    @pytest.fixture
    def params(self) -> Mapping[str, Any]:
        return {"background_rows": 2}
