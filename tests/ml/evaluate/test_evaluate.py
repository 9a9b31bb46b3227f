"""The evaluate stage: figures that are exact, a champion on the same rows, and a blessing with its reasons."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import Difference
from airflow_hops.ml.evaluate import stage
from airflow_hops.ml.evaluate.blessing import BlessingRule, bless
from airflow_hops.ml.metrics.binary_metrics import binary_metrics
from airflow_hops.ml.metrics.judging import Judge
from tests.ml.world import Flights


def test_single_class_has_no_auc_and_a_reason() -> None:
    result = binary_metrics(np.zeros(5, int), np.full(5, 0.2))
    assert result.auc is None and result.reason == "all 5 labels are 0; the AUC needs both classes"
    assert result.accuracy == 1.0
    assert Judge("binary", "auc").gain(np.zeros(5, int), np.full(5, 0.2), np.full(5, 0.3), None) is None
    assert binary_metrics(np.zeros(0, int), np.zeros(0)).reason == "no rows"


def _gain(difference: float, half: float) -> Difference:
    return Difference("auc", difference, difference - half, difference + half)


METRICS = binary_metrics(np.array([0, 1] * 50), np.array([0.3, 0.6] * 50))
POOR = binary_metrics(np.array([0, 1] * 50), np.array([0.6, 0.3] * 50))
NO_CLASSES = binary_metrics(np.zeros(9, int), np.full(9, 0.1))


@pytest.mark.parametrize(
    ("gains", "blessed", "words"),
    [
        ({"eval": _gain(0.02, 0.01), "newest": _gain(0.0, 0.005)}, True, "beyond chance, on at least one split"),
        ({"eval": _gain(0.02, 0.04), "newest": _gain(0.005, 0.01)}, False, "may be worse by more than 0.01"),
        ({"eval": _gain(0.02, 0.01), "newest": _gain(-0.01, 0.005)}, False, "newest: auc -0.0100 (95% interval -0.01"),
        ({"eval": _gain(0.001, 0.005), "newest": _gain(0.0, 0.005)}, False, "on no split better than the champion"),
        ({"eval": _gain(0.02, 0.01), "newest": None}, True, "newest: not compared with the champion: all 9 labels"),
    ],
)  # fmt: skip
def test_a_candidate_must_not_be_worse_anywhere_and_be_better_somewhere(gains: Any, blessed: bool, words: str) -> None:
    candidate = {"eval": METRICS, "newest": NO_CLASSES if gains["newest"] is None else METRICS}
    result, reasons = bless(BlessingRule(), candidate, gains)
    assert result is blessed
    assert any(words in reason for reason in reasons), reasons


def test_gain_of_a_loss_is_called_a_gain() -> None:
    """An amount above 0 is better for each metric, so a loss must not seem to have grown by it."""
    gains = {"eval": Difference("log_loss", 0.02, 0.01, 0.03)}
    _, reasons = bless(BlessingRule("log_loss"), {"eval": METRICS}, gains)
    assert any(reason.startswith("eval: gain in log_loss +0.0200 (95% interval +0.0100 to") for reason in reasons)


def test_a_first_model_must_reach_the_minimum_on_every_split() -> None:
    rule = BlessingRule(minimum={"auc": 0.6, "log_loss": 0.6})
    assert bless(rule, {"eval": METRICS}, None)[0]
    blessed, reasons = bless(rule, {"eval": METRICS, "newest": POOR}, None)
    assert not blessed
    assert "newest: auc 0.0000 is below 0.6" in reasons and "newest: log_loss 1.0601 is above 0.6" in reasons
    assert "there is no champion to compare with" in reasons
    blessed, reasons = bless(rule, {"newest": NO_CLASSES}, None)
    assert not blessed and any("minimum asks for auc, which is defined on no split" in reason for reason in reasons)
    blessed, reasons = bless(rule, {"eval": METRICS, "newest": NO_CLASSES}, None)
    assert blessed and any("newest: auc cannot be judged: all 9 labels are 0" in reason for reason in reasons)


@pytest.mark.parametrize("min_improvement", [None, 0.0])
def test_candidate_not_compared_on_any_split_is_refused(min_improvement: float | None) -> None:
    rule = BlessingRule(minimum={"accuracy": 0.5}, min_improvement=min_improvement)
    blessed, reasons = bless(rule, {"eval": NO_CLASSES}, {"eval": None}, {"eval": NO_CLASSES})
    assert not blessed
    assert reasons[0].startswith("compared with the champion by auc on no split")


def test_margins_may_differ_by_split_and_be_zero() -> None:
    gains = {"eval": _gain(-0.01, 0.005), "newest": _gain(0.0, 0.005)}
    metrics = {"eval": METRICS, "newest": METRICS}
    assert bless(BlessingRule(max_regression={"eval": 0.02, "newest": 0.01}, min_improvement=None), metrics, gains)[0]
    assert not bless(BlessingRule(max_regression={"newest": 0.01}, min_improvement=None), metrics, gains)[0]


def test_contradictory_rule_is_refused() -> None:
    with pytest.raises(
        BadInput, match="metric is 'f1', expected one of auc, average_precision, accuracy, log_loss, br"
    ):
        BlessingRule(metric="f1")


class Evaluate:
    """Runs the stage on models of flights."""

    def __init__(self, flights: Flights) -> None:
        self.flights = flights

    def __call__(self, model: Artifact, examples: Artifact | None = None, **params: Any) -> Artifact:
        params = {"model_name": "none", "minimum": {"auc": 0.55}, **params}
        artifact: Artifact = self.flights.run(stage, model=model, examples=examples or self.flights.prepared, **params)
        return artifact

    def against(self, champion: Artifact, name: str, model: Artifact, **params: Any) -> Artifact:
        """Evaluates a model with another as the champion of a name."""
        self.flights.deploy(champion, name)
        return self(model, model_name=name, **params)


@pytest.fixture(scope="module")
def evaluate(flights: Flights) -> Evaluate:
    return Evaluate(flights)


def test_first_model_is_scored_overall_and_by_slice(evaluate: Evaluate, flights: Flights) -> None:
    evaluation = evaluate(flights.learnt(), slices=["carrier", "origin"])
    report = flights.read(evaluation, "evaluation.json")
    assert evaluation.properties["blessed"] is report["blessed"] is True
    assert evaluation.properties["champion"] is None
    assert evaluation.rows == {
        split: RowCounts(counts.rows_out, counts.rows_out)
        for split, counts in flights.prepared.rows.items()
        if split != "train"
    }
    overall = report["splits"]["eval"]["candidate"]
    assert 0.55 < overall["auc"] == evaluation.metrics["eval_auc"] < 0.9
    assert overall["auc_low"] < overall["auc"] < overall["auc_high"]
    for column in ("carrier", "origin"):
        slices = report["splits"]["eval"]["slices"][column]
        assert sum(entry["rows"] for entry in slices) == overall["rows"]
        assert [entry["rows"] for entry in slices] == sorted((e["rows"] for e in slices), reverse=True)
    assert {entry["value"] for entry in slices} == {"EWR", "JFK", "LGA"}
    single = [e["candidate"] for e in report["splits"]["newest"]["slices"]["carrier"] if e["candidate"]["auc"] is None]
    assert all("the AUC needs both classes" in entry["reason"] for entry in single)


@pytest.mark.slow
def test_champion_is_scored_on_the_same_rows_and_decides(evaluate: Evaluate, flights: Flights) -> None:
    guess, learnt = flights.learnt(0), flights.learnt()
    better = evaluate.against(guess, "guesses", learnt)
    assert better.properties["blessed"] is True
    assert better.properties["champion"]["fingerprint"] == guess.fingerprint
    inputs = flights.store.manifest(better.uri).inputs
    assert [each.fingerprint for each in inputs["champion"]] == [guess.fingerprint]
    split = flights.read(better, "evaluation.json")["splits"]["eval"]
    assert split["candidate"]["rows"] == split["champion"]["rows"]
    assert split["gain"]["difference"] == pytest.approx(split["candidate"]["auc"] - split["champion"]["auc"])
    assert split["gain"]["low"] > 0
    worse = evaluate.against(learnt, "learnt", guess, minimum={})
    assert worse.properties["blessed"] is False
    assert any("may be worse by more than 0.01: not allowed" in reason for reason in worse.properties["reasons"])
    same = evaluate(learnt, model_name="learnt")
    assert same.properties["blessed"] is False
    assert same.properties["reasons"] == ["the model is the champion already (version 1)"]
    assert flights.store.manifest(same.uri).inputs.keys() == {"model", "examples"}


@pytest.mark.parametrize("properties", [{}, {"synchronized": "yes"}])
def test_model_without_proof_of_equal_ranks_is_never_blessed(
    evaluate: Evaluate, flights: Flights, properties: dict[str, Any]
) -> None:
    saved_model = flights.store.local(flights.learnt()) / "saved_model"
    model = flights.model(lambda folder: shutil.copytree(saved_model, folder), **properties)
    # What comes with the artifact's address does not count: the store's own record does.
    evaluation = evaluate(replace(model, properties={"synchronized": True}))
    assert evaluation.properties["blessed"] is False
    assert evaluation.properties["reasons"][0].startswith("the model's property 'synchronized' is not true")
    assert any("auc" in reason for reason in evaluation.properties["reasons"][1:]), "the other reasons stay"


@pytest.mark.slow
def test_retrained_champion_is_read_from_the_served_copy(evaluate: Evaluate, flights: Flights, tmp_path: Path) -> None:
    """Clearing the task that trained the champion puts another model at its artifact's address."""

    def train(model: Artifact) -> Artifact:
        saved_model = flights.store.local(model) / "saved_model"
        copy = lambda folder: shutil.copytree(saved_model, folder)  # noqa: E731
        return flights.model(copy, run_id="january", **flights.learnt(0).properties)

    first = train(flights.learnt(0))
    served = shutil.copytree(flights.store.local(first) / "saved_model", tmp_path / "models" / "1")
    flights.deploy(first, "retrained", path=str(served))
    again = train(flights.learnt())
    assert again.uri == first.uri
    evaluation = evaluate(again, model_name="retrained")
    assert evaluation.metrics["eval_gain"] > 0.05
    assert evaluation.properties["blessed"] is True
    shutil.rmtree(served)
    with pytest.raises(BadInput, match="another model is stored there now"):
        evaluate(again, model_name="retrained")


def test_existing_splits_are_evaluated(evaluate: Evaluate, flights: Flights, caplog: pytest.LogCaptureFixture) -> None:
    rows = flights.months(1, 1)
    examples = flights.examples({"train": rows.iloc[::50], "eval": rows.iloc[1::50]})
    with caplog.at_level(logging.INFO):
        assert list(evaluate(flights.learnt(), examples).rows) == ["eval"]
    assert "Evaluating on the splits eval" in caplog.messages


TEXTS = {"stops": [[1.0, 2.0]] * 30, "photo": [b"\xff"] * 30}
UNUSABLE: list[tuple[Callable[[pd.DataFrame], dict[str, Any]] | None, dict[str, Any], str]] = [
    (None, {"splits": ["eval", "test"]}, "no Parquet files of split 'test'; there are the splits eval, newest, train"),
    (None, {"splits": []}, "splits is empty"),
    (None, {"slices": ["month"]}, "there is no column 'month'; it has "),
    (None, {"metric": "f1"}, "metric for the problem 'binary' is 'f1', expected one of auc, average_precision, accu"),
    (None, {"max_regression": {"evla": 0.1}}, "split of max_regression is 'evla', expected one of eval, newest; did"),
    (None, {"minimum": {"recall": 0.5}}, "metric for the problem 'binary' is 'recall'"),
    (lambda rows: {"train": rows}, {}, r"no split to evaluate on; it has train. Set eval_percent"),
    (lambda rows: {"eval": rows.assign(late=0)}, {}, "split 'eval': label 'late' is 0 in all 30 rows; an evaluation"),
    (lambda rows: {"eval": rows.assign(late=7)}, {}, "split 'eval': label 'late' is 7 in a row, expected 0 or 1"),
    (lambda rows: {"eval": rows.drop(columns="distance")}, {}, "no column 'distance', which the candidate model's sig"),
    (lambda rows: {"eval": rows.assign(**TEXTS)}, {"slices": ["carrier", "stops"]},
     "column 'stops' of slices is list<.*expected one number, text or time in each"),
    (lambda rows: {"eval": rows.assign(**TEXTS)}, {"slices": ["photo"]}, "column 'photo' of slices is no text"),
]  # fmt: skip
"""Examples of some flights if they are not the usual ones, arguments, and words of the refusal."""


def test_unusable_arguments_and_examples_are_named(evaluate: Evaluate, flights: Flights) -> None:
    for make, params, words in UNUSABLE:
        examples = flights.examples(make(flights.months(1, 1).head(30))) if make else None
        with pytest.raises(BadInput, match=words):
            evaluate(flights.learnt(), examples, **params)


def test_a_model_that_answers_nan_fails(evaluate: Evaluate, flights: Flights) -> None:
    with pytest.raises(BadInput, match=r"the candidate model's probability is NaN or infinite in \d+ of \d+ rows"):
        evaluate(flights.learnt(1, "nan"))


@pytest.mark.slow
def test_candidate_with_logits_fails_and_champion_with_logits_is_named(evaluate: Evaluate, flights: Flights) -> None:
    logits = flights.learnt(20, "logits")
    with pytest.raises(BadInput, match=r"the candidate model's probability is -\S+ to \S+, outside \[0, 1\] in \d+ of"):
        evaluate(logits)
    evaluation = evaluate.against(logits, "logits", flights.learnt())
    assert any("champion model's probability is" in reason for reason in evaluation.properties["reasons"])
