"""The evaluate stage: figures that are exact, a champion on the same rows, and a blessing with its reasons."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.evaluation import Difference
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.models.model_records import write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.evaluate import stage
from airflow_hops.ml.evaluate.blessing import BlessingRule, bless
from airflow_hops.ml.metrics.binary_metrics import binary_metrics
from airflow_hops.ml.metrics.judging import Judge
from tests import flights_examples


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


Evaluate = Callable[..., Artifact]


@pytest.fixture(scope="module")
def evaluate(run_shared_stage: Any, shared_store: ArtifactStore, flights_prepared: Artifact) -> Evaluate:
    """Runs the stage; a failure leaves no artifact."""

    def run(model: Artifact, examples: Artifact | None = None, **params: Any) -> Artifact:
        run_id = f"evaluation-{next(numbers)}"
        inputs = {"model": model, "examples": examples or flights_prepared}
        params = {"model_name": "none", "minimum": {"auc": 0.55}, **params}
        try:
            artifact: Artifact = run_shared_stage(stage.run, kind="evaluation", inputs=inputs, run_id=run_id, **params)
        except HopsError:
            assert not shared_store.exists(shared_store.address(Producer("tests", run_id, "evaluation"), "evaluation"))
            raise
        return artifact

    numbers = count()
    return run


@pytest.fixture(scope="module")
def champion(shared_store: ArtifactStore) -> Callable[[Artifact, str], str]:
    """Makes a model the champion under a name."""

    def make(model: Artifact, name: str) -> str:
        version = ServedVersion.of(model, 1, "", 100)
        write_record(shared_store, name, ModelRecord(champion=version))
        return name

    return make


def _report(store: ArtifactStore, evaluation: Artifact) -> Any:
    return json.loads((store.local(evaluation) / "evaluation.json").read_text())


def test_first_model_is_scored_overall_and_by_slice(
    evaluate: Any, shared_store: ArtifactStore, flights_model: Artifact, flights_prepared: Artifact
) -> None:
    evaluation = evaluate(flights_model, slices=["carrier", "origin"])
    report = _report(shared_store, evaluation)
    assert evaluation.properties["blessed"] is report["blessed"] is True
    assert evaluation.properties["champion"] is None
    assert evaluation.rows == {
        split: RowCounts(counts.rows_out, counts.rows_out)
        for split, counts in flights_prepared.rows.items()
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
def test_champion_is_scored_on_the_same_rows_and_decides(
    evaluate: Any, champion: Any, shared_store: ArtifactStore, flights_model: Artifact, make_flights_model: Any
) -> None:
    guess = make_flights_model(steps=0)
    better = evaluate(flights_model, model_name=champion(guess, "guesses"))
    assert better.properties["blessed"] is True
    assert better.properties["champion"]["fingerprint"] == guess.fingerprint
    inputs = shared_store.manifest(better.uri).inputs
    assert [each.fingerprint for each in inputs["champion"]] == [guess.fingerprint]
    split = _report(shared_store, better)["splits"]["eval"]
    assert split["candidate"]["rows"] == split["champion"]["rows"]
    assert split["gain"]["difference"] == pytest.approx(split["candidate"]["auc"] - split["champion"]["auc"])
    assert split["gain"]["low"] > 0
    worse = evaluate(guess, model_name=champion(flights_model, "learnt"), minimum={})
    assert worse.properties["blessed"] is False
    assert any("may be worse by more than 0.01: not allowed" in reason for reason in worse.properties["reasons"])
    same = evaluate(flights_model, model_name="learnt")
    assert same.properties["blessed"] is False
    assert same.properties["reasons"] == ["the model is the champion already (version 1)"]
    assert shared_store.manifest(same.uri).inputs.keys() == {"model", "examples"}


@pytest.mark.parametrize("properties", [{}, {"synchronized": "yes"}])
def test_model_without_proof_of_equal_ranks_is_never_blessed(
    evaluate: Any, shared_store: ArtifactStore, flights_model: Artifact, properties: dict[str, Any]
) -> None:
    uri = shared_store.uri("tests", f"synchronized-{properties.get('synchronized')}", "train", "model")
    with shared_store.create(uri, "model", Producer()) as writer:
        shutil.copytree(shared_store.local(flights_model) / "saved_model", writer.path / "saved_model")
        model = writer.commit(properties=properties)
    # What comes with the artifact's address does not count: the store's own record does.
    evaluation = evaluate(replace(model, properties={"synchronized": True}))
    assert evaluation.properties["blessed"] is False
    assert evaluation.properties["reasons"][0].startswith("the model's property 'synchronized' is not true")
    assert any("auc" in reason for reason in evaluation.properties["reasons"][1:]), "the other reasons stay"


@pytest.mark.slow
def test_retrained_champion_is_read_from_the_served_copy(
    evaluate: Any, shared_store: ArtifactStore, flights_model: Artifact, make_flights_model: Any, tmp_path: Path
) -> None:
    """Clearing the task that trained the champion puts another model at its artifact's address."""
    guess = make_flights_model(steps=0)

    def train(saved_model: Path) -> Artifact:
        with shared_store.create(shared_store.uri("tests", "january", "train", "model"), "model", Producer()) as writer:
            shutil.copytree(saved_model, writer.path / "saved_model")
            return writer.commit(properties=guess.properties)

    first = train(shared_store.local(guess) / "saved_model")
    served = shutil.copytree(shared_store.local(first) / "saved_model", tmp_path / "models" / "1")
    version = ServedVersion.of(first, 1, str(served), 100)
    write_record(shared_store, "retrained", ModelRecord(champion=version))
    again = train(shared_store.local(flights_model) / "saved_model")
    assert again.uri == first.uri
    evaluation = evaluate(again, model_name="retrained")
    assert evaluation.metrics["eval_gain"] > 0.05
    assert evaluation.properties["blessed"] is True
    shutil.rmtree(served)
    with pytest.raises(BadInput, match="another model is stored there now"):
        evaluate(again, model_name="retrained")


def test_existing_splits_are_evaluated(
    evaluate: Any,
    shared_store: ArtifactStore,
    flights_model: Artifact,
    flights_raw: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = flights_examples.months(flights_raw, 1, 1)
    splits = {"train": rows.iloc[::50], "eval": rows.iloc[1::50]}
    examples = flights_examples.write_examples(shared_store, splits, run_id="evaluate-no-newest")
    with caplog.at_level(logging.INFO):
        assert list(evaluate(flights_model, examples).rows) == ["eval"]
    assert "Evaluating on the splits eval" in caplog.messages
    alone = flights_examples.write_examples(shared_store, {"train": rows.iloc[::50]}, run_id="evaluate-train-alone")
    with pytest.raises(BadInput, match=r"no split to evaluate on; it has train. Set eval_percent"):
        evaluate(flights_model, alone)


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"splits": ["eval", "test"]}, "no Parquet files of split 'test'; there are the splits eval, newest, train"),
    ({"splits": []}, "splits is empty"),
    ({"slices": ["month"]}, "there is no column 'month'; it has "),
    ({"metric": "f1"}, "metric for the problem 'binary' is 'f1', expected one of auc, average_precision, accuracy, "),
    (
        {"max_regression": {"evla": 0.1}},
        "split of max_regression is 'evla', expected one of eval, newest; did you mean",
    ),
    ({"minimum": {"recall": 0.5}}, "metric for the problem 'binary' is 'recall'"),
]


def test_invalid_arguments_are_named(evaluate: Any, flights_model: Artifact) -> None:
    for params, words in INVALID:
        with pytest.raises(BadInput, match=words):
            evaluate(flights_model, **params)


def test_slices_are_of_columns_with_texts(
    evaluate: Any, shared_store: ArtifactStore, flights_model: Artifact, flights_raw: Path
) -> None:
    rows = flights_examples.months(flights_raw, 1, 1).iloc[::50]
    stops, photo = [[1.0, 2.0]] * len(rows), [b"\xff"] * len(rows)
    splits = dict.fromkeys(("train", "eval"), rows.assign(stops=stops, photo=photo))
    examples = flights_examples.write_examples(shared_store, splits, run_id="evaluate-lists")
    for name, words in (("stops", "is list<.*expected one number, text or time in each"), ("photo", "is no text")):
        with pytest.raises(BadInput, match=rf"column '{name}' of slices {words}"):
            evaluate(flights_model, examples, slices=["carrier", name])


UNUSABLE = {
    "one class": "split 'eval': label 'late' is 0 in all 30 rows; an evaluation needs both classes",
    "label": "split 'eval': label 'late' is 7 in a row, expected 0 or 1",
    "column": "there is no column 'distance', which the candidate model's signature has as float32",
    "empty": "split 'eval': no rows to evaluate on",
}


def test_unusable_examples_are_named(
    evaluate: Any, shared_store: ArtifactStore, flights_model: Artifact, flights_raw: Path
) -> None:
    first = flights_examples.months(flights_raw, 1, 1).head(30)
    for change, words in UNUSABLE.items():
        rows = first.drop(columns="distance") if change == "column" else first.copy()
        rows["late"] = {"one class": 0, "label": 7}.get(change, rows["late"])
        table = flights_examples.to_arrow(rows)
        splits = {"eval": table.slice(0, 0) if change == "empty" else table}
        examples = flights_examples.write_examples(shared_store, splits, run_id=f"evaluate-{change.replace(' ', '-')}")
        with pytest.raises(BadInput, match=words):
            evaluate(flights_model, examples, splits=["eval"])


def test_a_model_that_answers_nan_fails(evaluate: Any, make_flights_model: Any) -> None:
    with pytest.raises(BadInput, match=r"the candidate model's probability is NaN or infinite in \d+ of \d+ rows"):
        evaluate(make_flights_model(steps=1, flaw="nan"))


@pytest.mark.slow
def test_candidate_with_logits_fails_and_champion_with_logits_is_named(
    evaluate: Any, flights_model: Artifact, make_flights_model: Any, champion: Any
) -> None:
    logits = make_flights_model(steps=20, flaw="logits")
    with pytest.raises(BadInput, match=r"the candidate model's probability is -\S+ to \S+, outside \[0, 1\] in \d+ of"):
        evaluate(logits)
    evaluation = evaluate(flights_model, model_name=champion(logits, "logits"))
    assert any("champion model's probability is" in reason for reason in evaluation.properties["reasons"])
