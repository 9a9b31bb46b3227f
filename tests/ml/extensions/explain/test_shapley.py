"""Shapley values and permutation importance, against what is known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from airflow_hops.extensions.explain.ml.explain import grid, partial_dependence
from airflow_hops.extensions.explain.ml.importance import carrying, constant_loss, permutation_importance, row_loss
from airflow_hops.extensions.explain.ml.shapley import Explainer, predictions_per_row


@pytest.fixture
def random() -> Any:
    return np.random.default_rng(3)


def columns(matrix: Any) -> dict[str, Any]:
    return {f"x{number}": matrix[:, number] for number in range(matrix.shape[1])}


def matrix_of(arrays: Any) -> Any:
    return np.stack(list(arrays.values()), axis=1)


@pytest.mark.parametrize("features", [1, 5, 30])
def test_linear_contribution_is_coefficient_times_distance_from_mean(random: Any, features: int) -> None:
    weights = random.normal(0, 3, features)
    rows, background = random.normal(5, 2, (4, features)), random.normal(0, 1, (50, features))
    explainer = Explainer(lambda arrays: matrix_of(arrays) @ weights + 7, columns(background))
    assert explainer.is_exact == (features <= 8)
    for row in rows:
        contributions = explainer.explain(columns(row[None]))[0]
        assert contributions.values == pytest.approx(weights * (row - background.mean(axis=0)), abs=1e-9)
        assert contributions.errors == pytest.approx(np.zeros(features), abs=1e-9)
        assert contributions.base + contributions.values.sum() == pytest.approx(contributions.prediction, abs=1e-9)


def test_errors_cover_the_exact_values(random: Any) -> None:
    """The function has interactions; two more unused features make it too wide to be computed."""
    background, row = random.normal(0, 1, (20, 9)), random.normal(0, 1, (1, 9))

    def predict(arrays: Any) -> Any:
        x = matrix_of(arrays)
        return x[:, 0] * x[:, 1] * x[:, 2] + x[:, 3] * x[:, 4] + x[:, 5]

    exact = Explainer(predict, columns(background[:, :7])).explain(columns(row[:, :7]))[0].values
    covered = []
    for seed in range(30):
        contributions = Explainer(predict, columns(background), pairs=3, seed=seed).explain(columns(row))[0]
        covered.append(np.abs(contributions.values[:5] - exact[:5]) <= contributions.errors[:5] + 1e-9)
        assert contributions.values[5:] == pytest.approx([*exact[5:], 0, 0], abs=1e-9)
    assert 0.85 <= np.mean(covered) <= 1.0


def test_duplicated_features_share_and_unused_ones_have_nothing(random: Any) -> None:
    for width in (4, 12):
        x = np.repeat(random.normal(0, 1, (31, 1)), width, axis=1)
        x[:, 3:] = random.normal(0, 1, (31, width - 3))
        explainer = Explainer(
            lambda arrays: np.tanh(arrays["x0"] + arrays["x1"] + arrays["x2"]), columns(x[1:]), pairs=20
        )
        contributions = explainer.explain(columns(x[:1]))[0]
        assert (
            np.abs(contributions.values[:3] - (contributions.prediction - contributions.base) / 3)
            <= 2 * contributions.errors[:3] + 1e-9
        ).all()
        assert contributions.errors.max() < 0.05 * abs(contributions.prediction - contributions.base)
        assert contributions.values[3:] == pytest.approx(np.zeros(width - 3), abs=1e-12)


def test_likeliest_class_and_categories_are_explained() -> None:
    def predict(arrays: Any) -> Any:
        odds = np.where(arrays["site"] == b"north", 0.8, 0.1) * np.ones(len(arrays["hour"]))
        return np.stack([1 - odds, odds], axis=1)

    background = {"site": np.array([b"south", b"north", b"", b"south"], object), "hour": np.arange(4.0)}
    explainer = Explainer(predict, background)
    contributions = explainer.explain({"site": np.array([b"north"], object), "hour": np.array([9.0])})[0]
    assert (contributions.output, contributions.prediction) == (1, 0.8)
    assert contributions.base == pytest.approx(0.275)
    assert contributions.values == pytest.approx([0.525, 0.0])


@pytest.mark.parametrize("features", [1, 4, 15])
def test_explaining_a_row_makes_the_announced_predictions(features: int) -> None:
    made: list[int] = []

    def predict(arrays: Any) -> Any:
        made.append(len(arrays["x0"]))
        return arrays["x0"]

    explainer = Explainer(predict, columns(np.ones((10, features))), pairs=3)
    explainer.explain(columns(np.zeros((1, features))))
    assert sum(made) == predictions_per_row(features, 10, 3) + 10, "and once those of the background"
    assert explainer.predictions_per_row == predictions_per_row(features, 10, 3)


@pytest.mark.slow
def test_shuffled_labels_give_no_importance_at_200_features(random: Any) -> None:
    x, y = random.normal(0, 1, (1000, 200)), random.integers(0, 2, 1000)
    real = (x[:, 17] + random.normal(0, 0.5, 1000) > 0).astype(int)
    for labels, expected in ((y, []), (real, ["x17"])):
        model = LogisticRegression(C=0.01).fit(x[:500], labels[:500])
        importance = permutation_importance(
            lambda arrays, model=model: model.predict_proba(matrix_of(arrays))[:, 1],
            columns(x[500:]),
            row_loss("binary", labels[500:])[1],
            features=list(columns(x)),
            repeats=3,
        )
        assert [name for name, (_, is_beyond_chance) in importance.items() if is_beyond_chance] == expected


def linear_importance(x: Any, **options: Any) -> Any:
    y = 3 * x[:, 0] + x[:, 1]
    loss = row_loss("regression", y)[1]
    arguments = {"features": ["x0", "x1"], "repeats": 4, **options}
    return permutation_importance(lambda a: 3 * a["x0"] + a["x1"], columns(x), loss, **arguments)


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
def test_importance_interval_covers_the_known_rise(random: Any, weighted: bool) -> None:
    """Shuffling adds twice the variance that the feature gives to the predictions."""
    covered = []
    for _ in range(60):
        x, weights = random.normal(0, 1, (500, 2)), random.uniform(0.5, 1.5, 500) if weighted else None
        importance = linear_importance(x, weights=weights)
        for name, expected in (("x0", 18.0), ("x1", 2.0)):
            (_, low, high), is_beyond_chance = importance[name]
            covered.append(low <= expected <= high)
            assert is_beyond_chance
    assert 0.9 <= np.mean(covered) <= 1.0


def test_importance_is_decided_by_seed_and_feature(random: Any) -> None:
    x = random.normal(0, 1, (300, 2))
    importance = linear_importance(x)
    assert importance == linear_importance(x) != linear_importance(x, seed=1)
    assert linear_importance(x, features=["x1"])["x1"][0] == importance["x1"][0]
    weighted = linear_importance(x, weights=np.full(len(x), 5.0))
    assert weighted["x0"][0] == pytest.approx(importance["x0"][0])


def test_losses_are_squared_errors() -> None:
    labels, p = np.array([2, 0, 1]), np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]])
    expected = np.square(p - np.eye(3)[labels]).sum(axis=1)
    assert row_loss("multiclass", labels)[1](p) == pytest.approx(expected)
    assert constant_loss("multiclass", labels, None, 3) == pytest.approx(2 / 3)
    assert constant_loss("binary", np.array([0, 1]), np.array([1.0, 3.0]), None) == pytest.approx(0.1875)


def test_feature_that_carries_the_model_is_found(random: Any) -> None:
    x = random.normal(0, 1, (500, 4))
    y = 10 * x[:, 0] + x[:, 1]
    for share, expected in ((1.0, "x0"), (0.05, None)):
        weights = np.array([10 * share, 1, 0, 0])
        target = x @ weights if share < 1 else y
        importance = permutation_importance(
            lambda arrays, weights=weights: matrix_of(arrays) @ weights,
            columns(x),
            row_loss("regression", target)[1],
            features=list(columns(x)),
            repeats=2,
        )
        carries = carrying(importance, 0.0, constant_loss("regression", target, None, None))
        assert (carries and carries[0]) == expected
    assert carrying(importance, 9.0, 10.0) is None, "a model that is no better than a constant"


def test_dependence_follows_the_function_with_its_density(random: Any) -> None:
    values, shares = grid(np.array([1.0, 1.0, 2.0, np.nan]))
    assert shares == [0.5, 0.25, 0.25] and values[:2] == [1.0, 2.0] and np.isnan(values[2])
    assert len(grid(random.normal(0, 1, 1000))[0]) == 20
    assert sum(grid(random.exponential(1, 1000))[1]) == pytest.approx(1)
    assert grid(np.array([b"a", b"", b"a"], object)) == ([b"a", b""], pytest.approx([2 / 3, 1 / 3]))

    arrays = {"x": random.normal(0, 1, 400), "z": random.normal(2, 1, 400)}
    dependence = partial_dependence(
        "x", arrays["x"], {"candidate": (lambda a: (a["x"] ** 2 + a["z"])[:, None], arrays)}
    )
    assert dependence.is_number and len(dependence.points) == 20
    for point in dependence.points:
        assert point.candidate[0] == pytest.approx(point.value**2 + arrays["z"].mean())
        assert point.champion is None
