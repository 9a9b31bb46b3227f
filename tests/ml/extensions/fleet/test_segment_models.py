"""Models of segments: against scikit-learn, for rows that do not suffice, and which of them stay in later runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shops
from sklearn.linear_model import LogisticRegression, Ridge

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml.columns import TrainingRows
from airflow_hops.extensions.fleet.ml.learners import learner_of
from airflow_hops.ml.models.loaded_models import model_folder

Train = Callable[..., Artifact]
SIZES = [(f"shop {number:02}", int(12 * 1.7 ** (number % 10))) for number in range(20)]


@pytest.mark.parametrize(
    ("problem", "model"),
    [("binary", "linear"), ("multiclass", "linear"), ("multiclass", "trees"), ("multiclass", "segment_models:forest")],
)
def test_segments_without_a_class_are_pooled(
    store: ArtifactStore, train: Train, opened: Any, problem: str, model: str
) -> None:
    classes = range(3 if problem == "multiclass" else 2)
    splits = shops.tables(SIZES[5:9], problem=problem)
    lacking = {}
    for missing in classes:
        rows = shops.rows_of(f"without {missing}", 200, problem=problem)
        labels = np.resize([each for each in classes if each != missing], 200)
        lacking[missing] = shops.replaced(rows, "label", pa.array(labels))
    splits["train"] = pa.concat_tables([splits["train"], *lacking.values()])
    fleet = train(splits, problem=problem, model=model)
    for missing, rows in lacking.items():
        entry = opened(fleet).entries[f"without {missing}"]
        assert (entry["state"], entry["failed"]) == ("pooled", False)
        assert entry["reason"] == f"no row is of class {missing}"
        assert np.isfinite(
            shops.answers(store, fleet, rows, {2: "probability", 3: "probabilities"}[len(classes)])
        ).all()


@pytest.mark.parametrize("model", ["trees", "segment_models:forest"])
def test_class_that_no_row_has_is_refused(train: Train, model: str) -> None:
    splits = shops.tables(SIZES[5:9], problem="binary")
    with pytest.raises(BadInput, match=r"no row of the pooled model's .* is of class 2 \(column 'label'\)"):
        train(splits, problem="multiclass", model=model)


@pytest.mark.parametrize("label", [1234.567, 1e6 + 0.1, -7.7e-5, 0.0])
def test_constant_labels_have_a_tree(store: ArtifactStore, train: Train, opened: Any, label: float) -> None:
    splits = shops.tables(SIZES[5:8])
    rows = shops.rows_of("constant", 200)
    rows = shops.replaced(rows, "label", pa.array(np.full(200, label)))
    splits["train"] = pa.concat_tables([splits["train"], rows])
    fleet = train(splits, model="trees")
    assert opened(fleet).entries["constant"]["state"] == "own"
    assert shops.answers(store, fleet, rows, "prediction") == pytest.approx(np.full(200, label), rel=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [("scores", "answers .*; expected probabilities"), ("pairs", r"answers \(.*, 2\); expected 1")],
)
def test_functions_models_that_answer_otherwise_are_refused(train: Train, model: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"segment_models:{model} returned a model .*{message}"):
        train(shops.tables(SIZES[5:7], problem="binary"), problem="binary", model=f"segment_models:{model}")


@pytest.mark.parametrize("problem", ["regression", "binary", "multiclass"])
def test_linear_models_are_those_of_scikit_learn(problem: Any) -> None:
    generator = np.random.default_rng(len(problem))
    matrix = generator.normal(size=(400, 4))
    scores = matrix @ generator.normal(size=(4, 3)) + [0.5, 0.0, -0.5] + generator.normal(size=(400, 3))
    labels = {"regression": scores[:, 0], "binary": scores[:, 0] > 0, "multiclass": scores.argmax(1)}[problem]
    weights = generator.uniform(0.5, 2.0, 400)
    rows = TrainingRows(matrix, labels.astype(float), weights, np.arange(400))
    learner = learner_of("linear", problem, 3 if problem == "multiclass" else 2, 0)
    estimator = Ridge(1.0) if problem == "regression" else LogisticRegression(C=1.0, tol=1e-8, max_iter=1000)
    estimator.fit(matrix, labels, sample_weight=weights)
    expected = estimator.predict(matrix) if problem == "regression" else estimator.predict_proba(matrix)
    expected = expected[:, 1] if problem == "binary" else expected
    # The sum over classes makes one intercept free, and L-BFGS ends within 1e-5 of the gradient.
    assert learner.answers(learner.fit(rows), matrix) == pytest.approx(
        expected, abs=1e-3 if problem == "multiclass" else 1e-6
    )


def test_segment_that_comes_back_is_trained(train: Train, opened: Any) -> None:
    every, most = SIZES[5:9], SIZES[5:8]
    first = train(shops.tables(every))
    other = shops.tables(most, seed=7)
    second = train(other, before=first)
    gone = every[-1][0]
    assert second.properties["fleet"]["encoding"] == "made"
    assert opened(second).entries[gone]["state"] == "pooled"
    again = {
        name: pa.concat_tables([other[name], table.filter(pc.equal(table["shop"], gone))])
        for name, table in shops.tables(every).items()
    }
    third = opened(train(again, before=second)).entries[gone]
    assert third["state"] == opened(first).entries[gone]["state"] != "pooled" and "no rows" not in third["reason"]


def test_missing_integer_trains_its_segment_alone(store: ArtifactStore, train: Train) -> None:
    splits = shops.tables(SIZES[4:9])
    whole = shops.write(store, splits)
    first = train(whole)
    rows = splits["train"]
    chosen = np.flatnonzero(rows["shop"].to_numpy() == "shop 06")[0]
    visits = pc.if_else(pa.array(np.arange(len(rows)) == chosen), None, rows["visits"])
    holed = shops.replaced(rows, "visits", visits)
    second = train({**splits, "train": holed}, before=first)
    assert (second.metrics["trained"], second.properties["fleet"]["encoding"]) == (1, "kept")
    third = train(whole, before=second)
    assert third.metrics["trained"] == 1


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_order_of_rows_does_not_matter(store: ArtifactStore, train: Train, model: str) -> None:
    splits = shops.tables(SIZES[3:9])
    written = []
    for seed in range(3):
        order = pa.array(np.random.default_rng(seed).permutation(len(splits["train"])))
        folder = model_folder(store, train({**splits, "train": splits["train"].take(order)}, model=model))
        written.append([(folder / name).read_bytes() for name in ("packs/000.bin", "fleet.json")])
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize(
    ("options", "problem", "message"),
    [
        ({"model": "trees"}, "regression", "model is 'trees', and 'linear' in the fleet before"),
        ({}, "binary", "problem is 'binary', and 'regression'"),
        ({"segment": "region"}, "regression", "segment is 'region', and 'shop'"),
        ({"columns": ["price"]}, "regression", r"columns is \['price'\]"),
    ],
)
def test_only_with_another_fleet_is_refused(train: Train, options: dict[str, Any], problem: str, message: str) -> None:
    columns = {"columns": ["price", "visits", "day"]}
    first = train(shops.tables(SIZES[5:8]), **columns)
    others = shops.tables(SIZES[5:8], problem=problem)
    with pytest.raises(BadInput, match=message):
        train(others, problem=problem, before=first, **{**columns, "only": ["shop 05"], **options})
