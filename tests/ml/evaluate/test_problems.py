"""Evaluation of each problem: figures as scikit-learn has them, classes by name, weights, metrics of one's own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from echo_models import write_function
from sklearn import metrics as sklearn

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.evaluate import stage
from airflow_hops.ml.metrics.binary_metrics import binary_metrics
from airflow_hops.ml.metrics.class_metrics import class_metrics
from airflow_hops.ml.metrics.judging import Judge
from airflow_hops.ml.metrics.leakage import TELLS, score_alone
from airflow_hops.ml.metrics.metrics import Sample, calibration, resampled_difference, wilson
from airflow_hops.ml.metrics.regression_metrics import regression_metrics
from airflow_hops.ml.metrics.scoring import ScoredModel
from tests.ml.world import World

ROWS = 600
random = np.random.default_rng(5)
WEIGHTS = random.uniform(0.2, 3.0, ROWS)
NUMBERS = random.normal(100.0, 30.0, ROWS)
GUESSES = NUMBERS + random.normal(2.0, 10.0, ROWS)
CLASSES = random.integers(0, 3, ROWS)
SHARES = random.dirichlet([1, 1, 1], ROWS) * 0.6 + 0.4 * np.eye(3)[CLASSES]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["even", "weighted"])
def test_metrics_match_scikit_learn(weights: Any) -> None:
    weighted = {"sample_weight": weights}
    result = regression_metrics(NUMBERS, GUESSES, weights)
    assert result.rmse == pytest.approx(sklearn.mean_squared_error(NUMBERS, GUESSES, **weighted) ** 0.5)
    assert result.mae == pytest.approx(sklearn.mean_absolute_error(NUMBERS, GUESSES, **weighted))
    assert result.r2 == pytest.approx(sklearn.r2_score(NUMBERS, GUESSES, **weighted))
    assert result.median_absolute_error == pytest.approx(sklearn.median_absolute_error(NUMBERS, GUESSES, **weighted))
    chosen, several = SHARES.argmax(axis=1), class_metrics(CLASSES, SHARES, "abc", weights)
    assert several.auc == pytest.approx(sklearn.roc_auc_score(CLASSES, SHARES, multi_class="ovr", **weighted))
    by_class = [sklearn.roc_auc_score(number == CLASSES, SHARES[:, number], **weighted) for number in range(3)]
    assert several.worst_auc == pytest.approx(min(by_class))
    worst = several.classes[int(np.argmin(by_class))]
    assert several.intervals["worst_auc"][1] == worst.auc_high
    assert several.macro_f1 == pytest.approx(sklearn.f1_score(CLASSES, chosen, average="macro", **weighted))
    assert several.weighted_f1 == pytest.approx(sklearn.f1_score(CLASSES, chosen, average="weighted", **weighted))
    assert several.balanced_accuracy == pytest.approx(sklearn.balanced_accuracy_score(CLASSES, chosen, **weighted))
    assert several.log_loss == pytest.approx(sklearn.log_loss(CLASSES, SHARES, **weighted))
    figures = [(each.precision, each.recall, each.f1) for each in several.classes]
    assert np.transpose(figures) == pytest.approx(
        np.stack(sklearn.precision_recall_fscore_support(CLASSES, chosen, **weighted)[:3])
    )
    labels, p = (CLASSES == 1).astype(int), SHARES[:, 1]
    two = binary_metrics(labels, p, weights)
    if weights is None:
        assert two.intervals["accuracy"] == wilson(two.accuracy or 0.0, len(labels))
    assert (two.rows, two.positives) == (ROWS, labels.sum())
    assert two.mean_prediction == pytest.approx(np.average(p, weights=weights))
    assert two.mean_label == pytest.approx(np.average(labels, weights=weights))
    tied = np.round(p, 1)
    for scores, result in ((p, two), (tied, binary_metrics(labels, tied, weights))):
        assert result.auc == pytest.approx(sklearn.roc_auc_score(labels, scores, **weighted), abs=1e-12)
        assert result.average_precision == pytest.approx(sklearn.average_precision_score(labels, scores, **weighted))
        low, high = result.intervals["average_precision"]
        assert low < result.average_precision < high
    assert two.log_loss == pytest.approx(sklearn.log_loss(labels, p, **weighted))
    assert two.brier == pytest.approx(sklearn.brier_score_loss(labels, p, **weighted))
    assert two.accuracy == pytest.approx(sklearn.accuracy_score(labels, p >= 0.5, **weighted))


def test_residuals_of_constant_labels() -> None:
    result = regression_metrics(np.arange(101.0), np.zeros(101))
    assert result.residual_quantiles == {"5": 5.0, "25": 25.0, "50": 50.0, "75": 75.0, "95": 95.0}
    same = regression_metrics(np.full(4, 2.0), np.array([1.0, 2.0, 3.0, 2.0]))
    assert same.r2 is None and same.reason == "all 4 labels are 2; R² needs labels that differ"
    assert Judge("regression", "r2").gain(np.full(4, 2.0), np.ones(4), np.zeros(4), None) is None
    assert regression_metrics(np.full(3, 0.1), np.zeros(3)).r2 is None  # the mean of the labels is not 0.1
    assert regression_metrics(np.zeros(0), np.zeros(0)).reason == "no rows"
    perfect = regression_metrics(NUMBERS, NUMBERS)
    assert (perfect.rmse, perfect.r2, perfect.intervals["rmse"]) == (0.0, 1.0, (0.0, 0.0))


def test_calibration_bins_have_equal_rows_and_keep_ties_together() -> None:
    bins = calibration(np.arange(1000.0), np.arange(1000.0) * 2, None)
    assert [each["rows"] for each in bins] == [100] * 10
    assert [each["observed"] for each in bins] == [2 * each["predicted"] for each in bins]
    tied = calibration(np.array([0.1] * 90 + [0.9] * 10), np.arange(100.0), None)
    assert [(each["rows"], each["predicted"]) for each in tied] == [(90, pytest.approx(0.1)), (10, pytest.approx(0.9))]
    weighted = calibration(np.array([0.5, 0.5]), np.array([0.0, 1.0]), np.array([1.0, 3.0]))
    assert weighted[0]["observed"] == 0.75
    assert calibration(np.zeros(0), np.zeros(0), None) == ()


def _scores(generator: Any, rows: int) -> Any:
    labels = (generator.random(rows) < 0.3).astype(int)
    signal = generator.normal(labels * 0.8)
    return labels, *(1 / (1 + np.exp(1.2 - signal - generator.normal(0, s, rows))) for s in (0.8, 1.2))


def _amounts(generator: Any, rows: int) -> Any:
    labels = generator.gamma(2.0, 3.0, rows)
    return labels, *(labels + generator.normal(0.0, scale, rows) for scale in (1.0, 1.1))


@pytest.mark.parametrize(
    ("metric", "weighted"),
    [
        *((metric, False) for metric in ("auc", "log_loss", "brier", "accuracy", "rmse", "r2")),
        ("mae", True),
        ("r2", True),
    ],
)
def test_gain_intervals_have_95_percent_coverage(metric: str, weighted: bool) -> None:
    is_regression = metric in ("rmse", "mae", "r2")

    def sample(seed: int, rows: int) -> Any:
        generator = np.random.default_rng(seed)
        drawn = (_amounts if is_regression else _scores)(generator, rows)
        return *drawn, generator.uniform(0.5, 2.0, rows) if weighted else None

    judge = Judge("regression" if is_regression else "binary", metric)
    truth = judge.gain(*sample(0, 400_000))
    assert truth is not None and truth.difference > 0
    results = [judge.gain(*sample(seed, 1000)) for seed in range(1, 301)]
    covered = np.mean([gain is not None and gain.low <= truth.difference <= gain.high for gain in results])
    assert 0.92 <= covered <= 0.98


def test_bootstrap_intervals_match_analytic_ones() -> None:
    other = GUESSES + random.normal(0.0, 4.0, ROWS)
    computed = Judge("regression", "mae").gain(NUMBERS, GUESSES, other, WEIGHTS)
    drawn = resampled_difference(
        "mae",
        lambda y, p, w: float(np.average(np.abs(y - p), weights=w)),
        NUMBERS, GUESSES, other, Sample(WEIGHTS), -1.0,
    )  # fmt: skip
    assert computed is not None and drawn.difference == pytest.approx(computed.difference)
    assert drawn.high - drawn.low == pytest.approx(computed.high - computed.low, rel=0.2)
    uniform = np.full_like(SHARES, 1 / 3)
    gains = {
        m: Judge("multiclass", m).gain(CLASSES, SHARES, uniform, None)
        for m in ("auc", "worst_auc", "macro_f1", "balanced_accuracy")
    }
    assert all(gain is not None and 0 < gain.low < gain.difference < gain.high for gain in gains.values())
    assert gains["auc"].difference == pytest.approx(class_metrics(CLASSES, SHARES).auc - 0.5)


def test_random_average_precision_equals_share_of_positives() -> None:
    labels = (np.arange(4000) % 200 == 0).astype(int)
    assert binary_metrics(labels, np.full(4000, 0.3)).average_precision == pytest.approx(0.005)
    for weight in (1e-6, 1e-150):
        rare = binary_metrics(np.array([1, 0]), np.array([0.1, 0.9]), np.array([weight, 1.0]))
        assert rare.average_precision == pytest.approx(weight) and rare.intervals["average_precision"] == (0.0, 1.0)
    for of_one_class in (np.zeros(5, int), np.ones(5, int)):
        assert binary_metrics(of_one_class, np.linspace(0, 1, 5)).average_precision is None
    better = np.clip(labels * 0.5 + random.uniform(0, 0.6, 4000), 0, 1)
    gain = Judge("binary", "average_precision").gain(labels, better, np.full(4000, 0.3), None)
    assert gain is not None and 0 < gain.low < gain.difference < gain.high


class Bench:
    """Evaluates models of columns of a table."""

    def __init__(self, world: World) -> None:
        self.world = world

    def examples(self, columns: dict[str, Any], newest: dict[str, Any] | None = None, **properties: Any) -> Artifact:
        """Writes the split `eval`, and the split `newest` if it is given."""
        return self.world.examples({"eval": columns, **({} if newest is None else {"newest": newest})}, **properties)

    def model(self, output: str, columns: list[str], more: dict[str, str] | None = None, **properties: Any) -> Artifact:
        return self.world.echo(output, columns, more, label="label", synchronized=True, **properties)

    def deploy(self, *model: Any, **properties: Any) -> None:
        """Makes a model the champion."""
        self.world.deploy(self.model(*model, **properties))

    def evaluate(self, model: Artifact, examples: Artifact, **params: Any) -> tuple[Artifact, Any]:
        result = self.world.run(stage, model=model, examples=examples, **{"model_name": "served", **params})
        return result, self.world.read(result, "evaluation.json")


@pytest.fixture
def bench(world: World) -> Bench:
    return Bench(world)


def test_too_good_result_warns_with_the_feature(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    labels = np.arange(400) % 2
    honest, leaking = random.uniform(0.2, 0.8, 400), np.where(labels == 1, 0.9, 0.1) + random.uniform(0, 0.09, 400)
    columns = {"label": labels, "honest": honest, "refund": leaking}
    examples = bench.examples(columns)
    result, report = bench.evaluate(bench.model("probability", ["refund"]), examples)
    assert report["blessed"] is True
    warning = report["reasons"][0]
    assert warning.startswith("warning: eval: auc 1.0000 is too good to be true of most tasks; 'refund' alone predicts")
    assert result.properties["reasons"][0] == warning
    assert [record.levelname for record in caplog.records if record.message == warning] == ["WARNING"]
    _, report = bench.evaluate(bench.model("probability", ["honest"]), examples, minimum={})
    assert not [reason for reason in report["reasons"] if reason.startswith("warning")]


@pytest.mark.parametrize(
    ("odd", "dtype"), [(np.inf, pa.float32()), (-np.inf, pa.float64()), (np.nan, pa.float64()), (None, pa.float32())]
)
def test_a_feature_with_a_value_that_is_no_number_may_tell_the_label(odd: float | None, dtype: pa.DataType) -> None:
    label = np.arange(400) % 2
    times = [odd, *(1.7e9 + 1000 * label[1:] + np.arange(1, 400))]
    columns = (pa.chunked_array([pa.array(values, kind)]) for values, kind in ((times, dtype), (label, pa.int64())))
    assert (score_alone(*columns, "binary") or 0) >= TELLS


@pytest.mark.parametrize("problem", ["binary", "regression"])
def test_perfect_result_on_few_rows_warns_of_a_copy_alone(bench: Bench, problem: str) -> None:
    output = {"binary": "probability", "regression": "prediction"}[problem]
    for rows in (20, 60):
        label = random.integers(0, 2, rows) if problem == "binary" else random.normal(100.0, 30.0, rows)
        sum_of_two = {"half": label / 2 - (noise := random.normal(0, 0.2, rows)), "rest": noise + label / 2}
        for columns, features in (({"copy": label + 0.0}, ["copy"]), ({"sure": label + 0.0, **sum_of_two}, ["sure"])):
            examples = bench.examples({"label": label, **columns}, problem=problem)
            _, report = bench.evaluate(bench.model(output, features), examples)
            assert report["reasons"][0].startswith("warning: eval: "), report["reasons"]
            assert f"{features[0]!r} alone predicts the label" in report["reasons"][0]


def test_a_regression_is_judged_in_the_units_of_its_label(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangar_costs.py").write_text(
        "import numpy as np\n\n\ndef cost(labels, predictions, weights):\n"
        "    late = np.maximum(labels - predictions, 0)\n    return np.average(late, weights=weights)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    far = GUESSES + random.normal(0.0, 20.0, ROWS)
    site = np.where(np.arange(ROWS) % 3 == 0, "north", "south")
    columns = {"label": NUMBERS, "near": GUESSES, "far": far, "site": site, "heavy": WEIGHTS}
    examples = bench.examples(columns, problem="regression", weight="heavy")
    bench.deploy("prediction", ["far"], problem="regression")
    candidate = bench.model("prediction", ["near"], problem="regression")
    metrics = {"cost": ["hangar_costs:cost", "lower"]}
    result, report = bench.evaluate(
        candidate, examples, slices=["site"], metrics=metrics, minimum={"cost": 20, "r2": 0}
    )
    assert result.properties["blessed"] is True, report["reasons"]
    assert (report["rule"]["metric"], report["problem"], report["label"]) == ("rmse", "regression", "label")
    assert report["rule"]["higher_is_better"]["cost"] is False
    overall = report["splits"]["eval"]
    expected = np.sqrt(np.average(np.square(NUMBERS - np.float32(GUESSES)), weights=WEIGHTS))
    assert overall["candidate"]["rmse"] == pytest.approx(expected) == result.metrics["eval_rmse"]
    assert overall["gain"]["difference"] == pytest.approx(overall["champion"]["rmse"] - overall["candidate"]["rmse"])
    assert overall["candidate"]["rmse_low"] < expected < overall["candidate"]["rmse_high"]
    assert overall["candidate"]["cost"] == result.metrics["eval_cost"] < overall["champion"]["cost"]
    assert len(overall["candidate"]["calibration"]) == 10
    assert [entry["rows"] for entry in overall["slices"]["site"]] == [400, 200]
    # What may be lost is a hundredth of the champion's figure, in whatever unit that is.
    margin = f"not worse by more than {overall['champion']['rmse'] / 100:g}"
    assert any(margin in reason for reason in report["reasons"]), report["reasons"]
    assert "eval: r2 0.8" in " ".join(report["reasons"])
    by_cost, report = bench.evaluate(candidate, examples, metrics=metrics, metric="cost")
    assert by_cost.properties["blessed"] is True and report["splits"]["eval"]["gain"]["low"] > 0
    sys.modules.pop("hangar_costs")


def test_classes_are_compared_by_name(bench: Bench) -> None:
    """The candidate has a class that the champion never saw, and both have orders of their own."""
    names = ["a", "b", "c"]
    p = {name: SHARES[:, number] for number, name in enumerate(names)}
    pair = SHARES[:, :2] / SHARES[:, :2].sum(axis=1, keepdims=True)
    columns = {"label": CLASSES, **p, "a_or": 0.7 * pair[:, 0] + 0.15, "or_b": 0.7 * pair[:, 1] + 0.15}
    examples = bench.examples(columns, problem="multiclass", classes=tuple(names))
    bench.deploy("probabilities", ["or_b", "a_or"], problem="multiclass", classes=("b", "a"))
    candidate = bench.model("probabilities", ["c", "a", "b"], problem="multiclass", classes=("c", "a", "b"))
    _, report = bench.evaluate(candidate, examples, min_improvement=None, max_regression=1.0)
    overall = report["splits"]["eval"]
    assert overall["candidate"]["log_loss"] == pytest.approx(sklearn.log_loss(CLASSES, SHARES), rel=1e-5)
    assert [result["name"] for result in overall["candidate"]["classes"]] == ["c", "a", "b"]
    known = CLASSES < 2
    assert overall["champion"]["rows"] == known.sum() < overall["candidate"]["rows"] == ROWS
    theirs = np.stack([columns["a_or"], columns["or_b"]], axis=1)[known]
    mine = -np.log(SHARES[known, CLASSES[known]])
    assert overall["gain"]["difference"] == pytest.approx(
        np.mean(-np.log(theirs[np.arange(len(theirs)), CLASSES[known]]) - mine), rel=1e-5
    )
    words = f"eval: {(~known).sum()} rows of 'c', which the champion does not know, are not compared"
    assert words in report["reasons"]


def test_second_class_name_is_positive(bench: Bench) -> None:
    labels, p = (CLASSES == 1).astype(int), SHARES[:, 1]
    examples = bench.examples({"label": labels, "p": p, "q": 1 - p}, problem="binary", classes=("no", "yes"))
    bench.deploy("probability", ["q"], problem="binary", classes=("yes", "no"))
    candidate = bench.model("probability", ["p"], problem="binary", classes=("no", "yes"))
    report = bench.evaluate(candidate, examples)[1]
    assert any(
        "gives the probability of 'yes', and the champion that of 'no'" in reason for reason in report["reasons"]
    )
    figures = report["splits"]["eval"]
    assert figures["candidate"]["auc"] == pytest.approx(sklearn.roc_auc_score(labels, p))
    assert figures["gain"]["difference"] == pytest.approx(0.0, abs=1e-6)


BINARY = {"problem": "binary", "classes": None}
SEVERAL = {"problem": "multiclass", "classes": ("a", "b", "c")}
MORE = {"minutes": {"problem": "regression"}}
LATE = (CLASSES == 1).astype(int)


@pytest.fixture
def parcels(bench: Bench) -> Artifact:
    """Examples of two labels: late, and the minutes."""
    columns = {"label": LATE, "minutes": NUMBERS, "p": SHARES[:, 1], "guess": GUESSES, "off": GUESSES + 9, "w": WEIGHTS}
    return bench.examples(columns, problem="binary", weight="w", more_labels=MORE)


def test_first_label_decides_and_further_label_has_metrics(bench: Bench, parcels: Artifact) -> None:
    reports = {"problem": "binary", "more_labels": MORE}
    bench.deploy("probability", ["p"], {"minutes_prediction": "guess"}, **reports)
    candidate = bench.model("probability", ["p"], {"minutes_prediction": "off"}, **reports)
    result, report = bench.evaluate(candidate, parcels, min_improvement=None, minimum={"minutes/rmse": 20})
    minutes = report["more_labels"]["minutes"]
    assert (minutes["problem"], minutes["rule"]["metric"], minutes["rule"]["minimum"]) == (
        "regression", "rmse", {"rmse": 20},
    )  # fmt: skip
    figures = minutes["splits"]["eval"]
    for column, role in ((GUESSES + 9, "candidate"), (GUESSES, "champion")):
        expected = sklearn.mean_squared_error(NUMBERS, column, sample_weight=WEIGHTS) ** 0.5
        assert figures[role]["rmse"] == pytest.approx(expected)
    assert figures["gain"]["high"] < 0 and report["blessed"], "worse minutes than the champion's decide nothing"
    assert result.metrics["eval_minutes/rmse"] == figures["candidate"]["rmse"]
    assert result.metrics["champion_eval_minutes/rmse"] == figures["champion"]["rmse"]
    assert report["rule"]["minimum"] == {"auc": 0.6}
    result, report = bench.evaluate(candidate, parcels, min_improvement=None, minimum={"minutes/rmse": 1})
    assert not report["blessed"] and any(
        re.match(r"minutes: eval: rmse [\d.]+ is above 1", reason) for reason in report["reasons"]
    )


def test_missing_output_for_a_further_label_is_reported(bench: Bench, parcels: Artifact) -> None:
    reports = {"problem": "binary", "more_labels": MORE}
    bench.deploy("probability", ["p"], problem="binary")
    candidate = bench.model("probability", ["p"], {"minutes_prediction": "guess"}, **reports)
    report = bench.evaluate(candidate, parcels, min_improvement=None)[1]
    assert report["more_labels"]["minutes"]["splits"]["eval"]["champion"] is None
    assert "minutes: not compared, as the champion does not predict it" in report["reasons"]
    bare = bench.model("probability", ["p"], problem="binary")
    report = bench.evaluate(bare, parcels, min_improvement=None)[1]
    assert "more_labels" not in report
    assert "minutes: not evaluated, as the model does not predict it" in report["reasons"]
    with pytest.raises(BadInput, match=r"minutes: the model has no output for it .* and minimum asks for rmse"):
        bench.evaluate(bare, parcels, minimum={"minutes/rmse": 1})


def test_champion_with_another_problem_is_reported_not_shown(bench: Bench, parcels: Artifact) -> None:
    for output, theirs, words in (
        ("minutes_probability", {"problem": "binary"}, "the model's problem is 'regression', the champion's"),
        ("minutes_probabilities", SEVERAL, "output 'minutes_probabilities' has shape [None]; expected [batch, "),
    ):
        declared: dict[str, Any] = {"problem": "binary", "more_labels": {"minutes": theirs}}
        bench.deploy("probability", ["p"], {output: "guess"}, **declared)
        candidate = bench.model("probability", ["p"], {"minutes_prediction": "guess"}, more_labels=MORE)
        report = bench.evaluate(candidate, parcels, min_improvement=None, minimum={"minutes/rmse": 20})[1]
        assert report["blessed"] and report["splits"]["eval"]["champion"]
        figures = report["more_labels"]["minutes"]["splits"]["eval"]
        assert figures["champion"] is None and figures["candidate"]["rmse"] < 20
        (remark,) = (reason for reason in report["reasons"] if reason.startswith("minutes: not compared"))
        assert remark.startswith("minutes: not compared with the champion: ") and words in remark


def test_constant_further_label_is_reported_without_conditions(bench: Bench) -> None:
    columns = {"label": LATE, "minutes": np.full(ROWS, 7.0), "p": SHARES[:, 1], "guess": GUESSES}
    examples = bench.examples(columns, problem="binary", more_labels=MORE)
    candidate = bench.model("probability", ["p"], {"minutes_prediction": "guess"}, more_labels=MORE)
    report = bench.evaluate(candidate, examples)[1]
    assert report["blessed"] and "more_labels" not in report
    expected = "minutes: not evaluated: split 'eval': label 'minutes' is 7 in all 600 rows; an evaluation needs"
    assert any(reason.startswith(expected) for reason in report["reasons"])
    with pytest.raises(BadInput, match="further label 'minutes': split 'eval': label 'minutes' is 7 in all 600 rows"):
        bench.evaluate(candidate, examples, minimum={"minutes/rmse": 20})


def test_condition_on_unknown_label_or_metric_is_refused(bench: Bench, parcels: Artifact) -> None:
    candidate = bench.model("probability", ["p"], {"minutes_prediction": "guess"}, more_labels=MORE)
    for name, words in (
        ("minuts/rmse", "minimum names 'minuts/rmse', but the further labels of the examples are 'minutes'"),
        ("minutes/auc", "further label 'minutes': metric for the problem 'regression' is 'auc', expected"),
    ):
        with pytest.raises(BadInput, match=words):
            bench.evaluate(candidate, parcels, minimum={name: 1})


ABD, ABCD = ({"classes": tuple(names)} for names in ("abd", "abcd"))
SHARED, ONE = ("probabilities", SEVERAL), ("probability", {})
FAILING = {"metrics": {"cost": ["numpy:hypot", "lower"]}}
CONTRADICTIONS: dict[str, tuple[Any, Any, Any, dict[str, Any], str]] = {
    "problem": (BINARY, ("prediction", {}), None, {}, "the model's output 'prediction' has the problem 'regression'"),
    "class": (SEVERAL, ("probabilities", ABD), None, {}, r"\d+ of 600 rows are of class 'c', which the model does not"),
    "lost": (SEVERAL, SHARED, ("probabilities", ABCD), {}, "the champion knows 'd', and the model does not; its class"),
    "champion": (SEVERAL, SHARED, ONE, {}, "the model's problem is 'multiclass', the champion's 'binary'; they cannot"),
    "metric": (SEVERAL, SHARED, None, {"metric": "rmse"}, "problem 'multiclass' is 'rmse', expected one of log_loss, "),
    "failing": (SEVERAL, SHARED, None, FAILING, r"metrics: 'cost' failed on 600 rows \((TypeError|ValueError)"),
    "weight": ({**SEVERAL, "weight": "zero"}, SHARED, None, {}, "weight 'zero' is 0.0 in a row, expected a finite num"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictory_arguments_are_named(bench: Bench, case: str) -> None:
    examples, candidate, champion, params, words = CONTRADICTIONS[case]
    columns = {"label": np.minimum(CLASSES, 1) if examples is BINARY else CLASSES, "zero": np.zeros(ROWS)}
    columns |= {name: np.full(ROWS, share) for name, share in {"p": 0.25, "q": 0.25, "r": 0.5, "s": 0.0}.items()}

    def model_of(output: str, properties: dict[str, Any]) -> tuple[str, list[str]]:
        return output, list("pqrs")[: len(properties.get("classes", "abc")) if output == "probabilities" else 1]

    if champion:
        bench.deploy(*model_of(*champion), **champion[1])
    model = bench.model(*model_of(*candidate), **candidate[1])
    with pytest.raises(BadInput, match=words):
        bench.evaluate(model, bench.examples(columns, **examples), **params)


def test_model_with_wrong_output_shape_is_refused(tmp_path: Path) -> None:
    columns = {
        "open": lambda p: {"probabilities": tf.repeat(p[:, None], tf.size(p), axis=1)},
        "twice": lambda p: {"probability": tf.stack([p, 1 - p], axis=1)},
    }
    for name, function in columns.items():
        write_function(tmp_path / name, function, p=tf.float32)
    with pytest.raises(BadInput, match=r"open: output 'probabilities' has shape \[None, None\]; expected \[batch, cl"):
        ScoredModel(tmp_path / "open")
    with pytest.raises(BadInput, match=r"twice: 'probability' has shape \[6\] for 3 rows, expected \[3\]"):
        ScoredModel(tmp_path / "twice").predict({"p": np.zeros(3, np.float32)})


def test_regression_labels_must_be_finite_and_differ(bench: Bench) -> None:
    model = bench.model("prediction", ["p"], problem="regression")
    cases = (
        (np.full(9, 3.0), "label 'label' is 3 in all 9 rows; an evaluation needs labels that differ"),
        (np.array([1.0, np.nan]), "label 'label' is nan in a row, expected a finite number"),
    )
    for label, words in cases:
        with pytest.raises(BadInput, match=words):
            bench.evaluate(model, bench.examples({"label": label, "p": label * 0}, problem="regression"))


def test_candidate_with_another_input_type_is_named(bench: Bench) -> None:
    columns = {"label": LATE, "p": SHARES[:, 1]}
    bench.deploy("probability", ["p"], problem="binary")
    serve = lambda p: {"probability": tf.cast(p, tf.float32)}  # noqa: E731
    facts = {"label": "label", "synchronized": True, "problem": "binary"}
    candidate = bench.world.served_function(serve, {"p": tf.float64}, **facts)
    report = bench.evaluate(candidate, bench.examples(columns, problem="binary"))[1]
    expected = "the model takes 'p' as double [?] and not float [?], unlike the champion: it cannot be its canary"
    assert expected in report["reasons"]


COPIES: dict[str, Any] = {
    "text": lambda label: pa.array(np.where(label, "ja", "nein")),
    "large text": lambda label: pa.array(np.where(label, "ja", "nein")).cast(pa.large_string()),
    "dictionary": lambda label: pa.array(np.where(label, "ja", "nein")).dictionary_encode(),
    "missing": lambda label: pa.array(np.where(label, 1.0, None)),
    "nan": lambda label: pa.array(np.where(label, np.nan, 2.0)),
    "boolean": lambda label: pa.array(label == 1),
}


@pytest.mark.parametrize("rows", [16, 60, 400])
@pytest.mark.parametrize("copy", COPIES)
def test_copy_of_the_label_is_named_in_any_type(tmp_path: Path, copy: str, rows: int) -> None:
    label = np.arange(rows) % 2
    table = pa.table({"label": label, "copy": COPIES[copy](label), "noise": random.normal(size=rows)})
    pq.write_table(table, tmp_path / "part-0.parquet")
    metrics, files = binary_metrics(label, label * 0.8 + 0.1), {"eval": [tmp_path / "part-0.parquet"]}
    (warning,) = stage.warn_if_too_good("binary", "eval", metrics, files, "label", ["copy", "noise"])
    assert "; 'copy' alone predicts the label" in warning


CHANGES: dict[str, Any] = {
    "dropped": lambda column: None,
    "text": lambda column: pa.array([f"{value:.2f}" for value in column]),
    "vectors": lambda column: pa.array([[value, value] for value in column], pa.list_(pa.float32(), 2)),
    "nan": lambda column: column * np.nan,
    "integer": lambda column: pa.array(np.round(column).astype(int)),
    "double": lambda column: pa.array(column.astype(np.float64)),
    "moved": lambda column: column,
}


@pytest.mark.parametrize("change", CHANGES)
def test_champion_that_cannot_read_the_rows_is_named(bench: Bench, change: str) -> None:
    bench.deploy("probability", ["note"], problem="binary")
    candidate = bench.model("probability", ["p"], problem="binary")
    p = np.clip(LATE * 0.8 + 0.1, 0, 1).astype(np.float32)
    note = CHANGES[change](SHARES[:, 1].astype(np.float32))
    columns = {"p": p, "label": LATE, **({} if note is None else {"note": note})}
    result, report = bench.evaluate(candidate, bench.examples(columns, problem="binary"))
    readable = change in ("integer", "double", "moved")
    split = report["splits"]["eval"]
    assert split["candidate"]["auc"] == 1.0 and result.metrics["eval_auc"] == 1.0
    assert (split["champion"] is not None) == (split["gain"] is not None) == readable == report["blessed"]
    if not readable:
        reason = report["reasons"][0]
        assert reason.startswith("eval: not compared with the champion: the champion cannot score its rows: ")
        assert ("'note'" in reason or "NaN" in reason) and "Replace champion on the page Models" in reason
        assert len(reason) < 500


@pytest.mark.parametrize("problem", ["binary", "regression"])
def test_empty_split_is_named(bench: Bench, problem: str) -> None:
    label = LATE if problem == "binary" else NUMBERS
    columns = {"label": label, "p": SHARES[:, 1]}
    none = {name: values[:0] for name, values in columns.items()}
    model = bench.model("probability" if problem == "binary" else "prediction", ["p"], problem=problem)
    for first, second, name in ((columns, none, "newest"), (none, columns, "eval")):
        with pytest.raises(BadInput, match=f"split '{name}': no rows to evaluate on"):
            bench.evaluate(model, bench.examples(first, second, problem=problem))


def test_copies_of_rows_count_once(bench: Bench) -> None:
    p, q = (np.clip(SHARES[:, 1] + random.normal(0, 0.1, ROWS), 0.01, 0.99) for _ in "pq")
    gains = []
    for times in (1, 20):
        rows = np.repeat(np.arange(60), times)
        bench.deploy("probability", ["q"], problem="binary")
        candidate = bench.model("probability", ["p"], problem="binary")
        examples = bench.examples({"label": LATE[rows], "p": p[rows], "q": q[rows]}, problem="binary")
        gain = bench.evaluate(candidate, examples)[1]["splits"]["eval"]["gain"]
        gains.append([gain["difference"], gain["low"], gain["high"]])
    assert gains[1] == pytest.approx(gains[0])
