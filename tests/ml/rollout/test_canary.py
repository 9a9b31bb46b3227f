"""The statistics behind a rollout, against worked values, and against their own claims on simulated canaries."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from airflow_hops.core.artifacts.target import Problem
from airflow_hops.core.rollout.counts import Counts, Histogram, snapshot_of
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.core.rollout.progress import Progress
from airflow_hops.ml.rollout.answers import Captured, read_labelled
from airflow_hops.ml.rollout.comparisons import (
    binomial_at_least,
    compare_errors,
    compare_latency,
    compare_refusals,
    quantile_bound_rank,
)
from airflow_hops.ml.rollout.labels import (
    LabelledAnswers,
    compare_labels,
    permutation_greater,
    welch_greater,
)
from airflow_hops.ml.rollout.predictions import (
    Answers,
    chance_of_equal_answers,
    compare_predictions,
    distance_margin,
)

EDGES = 0.001 * 1.05 ** np.arange(400)
LIMITS = Limits()
GIVEN: dict[str, Any] = {"limits": LIMITS, "significance": 0.01}
_random = np.random.default_rng(0)
NORMAL, SHIFTED = _random.normal(0.3, 0.1, 500), _random.normal(0.5, 0.1, 500)

_STATE = _random.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, in whatever order the tests run."""
    _random.bit_generator.state = _STATE


def histogram(values: Any) -> Histogram:
    result, counts = np.unique(np.searchsorted(EDGES, values), return_counts=True)
    return Histogram.of([(EDGES[i - 1], EDGES[i], n) for i, n in zip(result, counts, strict=True)])


def counts(requests: int, errors: int, latencies: Any = (), refused: int = 0) -> Counts:
    return Counts(requests, errors, histogram(np.asarray(latencies)) if len(latencies) else Histogram(), refused)


def latencies(size: int, median: float, tail: float = 0.0) -> Any:
    values = median * np.exp(0.1 * _random.standard_normal(size))
    if tail:
        values[: size // 20] = tail
    return values


def test_tests_and_bounds_give_worked_values() -> None:
    assert [binomial_at_least(9, 10, 0.5), binomial_at_least(0, 10, 0.5)] == [pytest.approx(11 / 1024), 1.0]
    # Of 10 the 9th is the first that is below the median with a probability of at most 5% (11/1024); of 100 the 61st
    # (60 would be 0.0284). For the 99th percentile it takes 299 observations: 0.99^299 is the first below 5%.
    asked = ((10, 0.5, 0.05), (100, 0.5, 0.025), (298, 0.99, 0.05), (299, 0.99, 0.05))
    assert [quantile_bound_rank(size, q, alpha) for size, q, alpha in asked] == [9, 61, None, 299]
    assert distance_margin(1000, 500, 0.05) == pytest.approx(0.0468 + 0.0662, abs=1e-3)
    assert welch(NORMAL, NORMAL) == 0.5
    assert welch(SHIFTED, NORMAL) == pytest.approx(
        stats.ttest_ind(SHIFTED, NORMAL, equal_var=False, alternative="greater").pvalue, rel=1e-6
    )
    assert welch(SHIFTED, 2 * NORMAL) > 0.999
    assert [welch(NORMAL[:1], NORMAL), welch([0.3] * 9, [0.2] * 9), welch([0.2] * 9, [0.2] * 9)] == [1, 0, 1]
    # Of C(10, 5) = 252 assignments, one gives the five greatest values to the first; of C(9, 3) = 84, C(5, 3) = 10 give
    # it the 7 alone, and one only some other value.
    five, step = np.arange(5.0), np.zeros(5, int)
    assert permutation_greater(five + 10, step, five, step, 100_000) == pytest.approx(1 / 252, rel=0.15)
    once, again = np.full((3, 1), 7.0), np.array([[7.0], [7.0], [8.0], [8.0], [8.0], [9.0]])
    assert chance_of_equal_answers(once, np.arange(3), again, np.arange(6)) == pytest.approx(11 / 84)
    assert chance_of_equal_answers(once, np.zeros(3, int), again, np.arange(6)) == 1, "rows of one request"


def labelled(
    predictions: Any, labels: Any, problem: Problem | None = None, unknown: int = 0, requests: Any = None
) -> LabelledAnswers:
    """Rows of one step, by default each of a request of its own."""
    numbers = np.arange(len(labels)) if requests is None else requests
    return LabelledAnswers(predictions, labels, problem, unknown, numbers, np.zeros(len(labels), int))


def welch(first: Any, second: Any) -> float:
    return welch_greater(np.asarray(first), np.asarray(second))


def each(values: Any) -> Answers:
    """Predictions, each of a request of its own."""
    return Answers(np.asarray(values), np.arange(len(values)))


@pytest.mark.parametrize(
    ("canary", "stable", "verdict", "text"),
    [
        (counts(100, 5), counts(400, 0), "bad", "5 of 100 requests failed, 0 of 400"),
        (counts(100, 1), counts(400, 4), "ok", ""),
        (counts(20, 1), counts(80, 0), "doubt", ""),
        (counts(100, 5), counts(0, 0), "bad", ""),
        (counts(0, 0), counts(10, 0), "not_judged", "the canary was not asked"),
        (counts(1000, 200), counts(4000, 800), "ok", ""),
        # A client's mistake is no error of a version.
        (counts(20, 0, refused=1), counts(80, 0), "ok", ""),
        (counts(120, 5, refused=20), counts(500, 0, refused=100), "bad", "5 of 100 requests failed, 0 of 400"),
        (counts(20, 0, refused=20), counts(80, 0), "unknown", ""),
    ],
)
def test_errors_count_only_beyond_the_limit_and_beyond_chance(
    canary: Counts, stable: Counts, verdict: str, text: str
) -> None:
    result = compare_errors(canary, stable, **GIVEN)
    assert (result.verdict, result.text[: len(text)]) == (verdict, text)


def test_errors_are_reported_in_numbers_and_recorded() -> None:
    tasting_tea = compare_errors(counts(4, 3), counts(4, 1), **GIVEN)  # Fisher's lady: 3 of 4 right
    assert tasting_tea.numbers["p_value"] == pytest.approx(17 / 70)
    assert compare_errors(counts(20, 1), counts(80, 0), **GIVEN).numbers["increase"] == 0.05
    assert compare_errors(counts(20, 0, refused=1), counts(80, 0), **GIVEN).numbers["canary_requests"] == 19
    assert Counts.from_dict(json.loads(json.dumps(counts(120, 5, refused=20).to_dict()))).client_errors == 20


@pytest.mark.parametrize(
    ("canary", "stable", "verdict"),
    [
        pytest.param(counts(20, 0, refused=1), counts(80, 0), "ok", id="often chance, and nothing to wait for"),
        pytest.param(counts(20, 0, refused=20), counts(80, 0, refused=1), "bad", id="other inputs"),
        pytest.param(counts(100, 0, refused=30), counts(400, 0, refused=120), "ok", id="as many"),
        pytest.param(counts(20, 0, refused=20), counts(0, 0), "doubt", id="nobody can tell whose fault it is"),
        pytest.param(counts(20, 0, refused=1), counts(0, 0), "ok", id="one alone"),
        pytest.param(counts(0, 0), counts(10, 0), "not_judged", id="silent"),
    ],
)
def test_canary_refusing_valid_requests_is_bad(canary: Counts, stable: Counts, verdict: str) -> None:
    result = compare_refusals(canary, stable, **GIVEN)
    assert result.verdict == verdict
    if verdict == "bad":
        assert result.text.startswith(
            "20 of 20 requests refused because of errors in the requests, 1 of 80 at the stable"
        )


def test_latency_needs_ratio_tolerance_and_enough_requests() -> None:
    def compare(canary: Any, stable: Any) -> Any:
        return compare_latency(counts(len(canary), 0, canary), counts(len(stable), 0, stable), **GIVEN)

    slow, few = compare(latencies(100, 30.0), latencies(400, 10.0))
    assert slow.verdict == "bad"
    assert slow.numbers["ratio"] == pytest.approx(3.0, rel=0.1)
    assert few.verdict == "not_judged"
    assert "too few requests to judge, 100 and 400" in few.text
    small, _ = compare(latencies(100, 3.0), latencies(400, 1.0))
    assert small.verdict == "ok", "three times, but by 2 ms"
    middle, tail = compare(latencies(1000, 10.0, 300.0), latencies(4000, 10.0))
    assert (middle.verdict, tail.verdict) == ("ok", "bad")
    doubtful, _ = compare([1.0] * 6 + [60.0] * 8, latencies(400, 10.0))
    assert doubtful.verdict == "doubt", "8 of 14 beyond the limit may be chance"
    unknown, _ = compare([], latencies(400, 10.0))
    assert unknown.verdict == "not_judged"
    assert "no latencies of both versions" in unknown.text


def test_a_canary_just_within_the_limit_of_latency_is_seldom_ended() -> None:
    def is_ended() -> bool:
        stable, canary = latencies(300, 10.0), latencies(300, 20.0 * 0.98)
        return compare_latency(counts(300, 0, canary), counts(300, 0, stable), LIMITS, 0.1)[0].verdict == "bad"

    assert sum(is_ended() for _ in range(400)) <= 40


LEAVES = np.repeat([0.1, 0.4, 0.7], [190, 6, 4])
ROWS = np.repeat(np.arange(5), 10)
"""Numbers of five requests of ten rows."""


@pytest.mark.parametrize(
    ("canary", "stable", "verdict", "text"),
    [
        pytest.param(each(NORMAL), each(SHIFTED), "ok", "in 500 requests", id="shifted"),
        pytest.param(each([0.25] * 50), each(NORMAL), "bad", "0.25 in all 50 rows", id="constant"),
        pytest.param(each([0.1] * 40), each(LEAVES), "ok", "", id="the leaf of most rows"),
        pytest.param(each([0.1] * 100), each(LEAVES), "doubt", "(p = 0.016)", id="perhaps chance"),
        pytest.param(each([0.4] * 20), each(LEAVES), "bad", "0.4 in all 20 rows", id="the leaf of few rows"),
        pytest.param(Answers(np.full(50, 0.4), ROWS), each(LEAVES), "bad", "", id="of five requests"),
        pytest.param(Answers(np.full(50, 0.4), 0 * ROWS), each(LEAVES), "ok", "in 1 requests", id="of one request"),
        pytest.param(each([*NORMAL, np.nan]), each(NORMAL), "ok", "", id="NaN that may be chance"),
        pytest.param(each([*NORMAL, *[np.nan] * 30]), each(NORMAL), "bad", "in 30 of 530 requests", id="NaN"),
        pytest.param(each([*NORMAL, *[np.nan] * 30]), each([*NORMAL, *[np.nan] * 30]), "ok", "", id="NaN in both"),
        pytest.param(each([np.nan] * 50), each([]), "bad", "in 50 of 50 requests", id="NaN alone"),
        pytest.param(each([np.nan] * 50), each([np.nan] * 50), "not_judged", "0 captured rows of the canary", id="all"),
        pytest.param(each(NORMAL[:5]), each(NORMAL), "not_judged", "20 needed", id="few"),
        pytest.param(each([0.25] * 50), each([0.25] * 50), "ok", "", id="both constant"),
        pytest.param(each([0.25] * 50), each([]), "not_judged", "0 captured rows of the stable", id="no stable"),
    ],
)
def test_invalid_predictions_are_found_and_others_recorded(
    canary: Answers, stable: Answers, verdict: str, text: str
) -> None:
    result = compare_predictions(canary, stable, "probability", **GIVEN)
    assert result.verdict == verdict, result
    assert text in result.text
    if text == "in 500 requests":
        assert result.numbers["ks_p_value"] < 1e-50


def test_prediction_distance_counts_only_with_a_tolerance() -> None:
    tolerant = replace(LIMITS, max_prediction_distance=0.2)

    def verdict(canary: Any, stable: Any, requests: int = 500) -> str:
        canary = Answers(canary, np.arange(len(canary)) % requests)
        return compare_predictions(canary, each(stable), "probability", tolerant, 0.01).verdict

    assert verdict(NORMAL, SHIFTED) == "bad"
    assert verdict(NORMAL, SHIFTED, requests=3) == "doubt", "far, but of three requests"
    assert verdict(NORMAL[:5], NORMAL) == verdict(NORMAL, NORMAL[:5]) == "unknown", "too few to check the limit"
    assert verdict(NORMAL[:30], NORMAL[30:60] + 0.12) == "doubt", "far, but of 30 rows"
    assert verdict(NORMAL, NORMAL + 0.01) == "ok"


def test_labels_reveal_worse_predictions() -> None:
    labels = (_random.random(4000) < 0.3).astype(float)
    good = np.where(labels == 1, 0.6, 0.15) + _random.uniform(-0.1, 0.1, 4000)
    stable = labelled(good[2000:], labels[2000:])
    same, worse, few = (
        compare_labels(canary, stable, "late", **GIVEN)
        for canary in (
            labelled(good[:2000], labels[:2000]),
            labelled(1 - good[:2000], labels[:2000]),
            labelled(good[:40], labels[:40]),
        )
    )
    assert same.verdict == "ok"
    assert same.numbers["canary_auc"] > 0.9
    ones = labelled(good[:300], np.ones(300))
    assert compare_labels(ones, stable, "late", **GIVEN).numbers["canary_auc"] is None
    assert worse.verdict == "bad"
    assert worse.numbers["loss"] == "log loss"
    assert worse.numbers["canary_loss"] > same.numbers["canary_loss"]
    assert few.verdict == "not_judged"
    assert "40 labelled rows of the canary" in few.text
    delays = compare_labels(labelled(NORMAL + 1, NORMAL), labelled(NORMAL + 0.5, NORMAL), "delay", **GIVEN)
    assert delays.verdict == "bad"
    assert delays.numbers["loss"] == "mean absolute error"
    assert delays.numbers["canary_loss"] == pytest.approx(1.0)


def captured(**columns: Any) -> Captured:
    rows = len(next(iter(columns.values())))
    times = pa.array([1_000_000 * row for row in range(rows)], pa.timestamp("us", "UTC"))
    outputs = {name: each(np.asarray(values, float)) for name, values in columns.items()}
    named = {f"output.{name}": list(values) for name, values in columns.items()}
    return Captured(
        outputs,
        pa.table({"request_id": [f"r{n}" for n in range(rows)], "row": [0] * rows, "captured_at": times, **named}),
    )


def feedback(labels: list[Any], name: str = "value") -> pa.Table:
    """Labels of the requests in their order."""
    times = pa.array([0] * len(labels), pa.timestamp("us", "UTC"))
    ids = pa.array([f"r{n}" for n in range(len(labels))])
    row = pa.array([0] * len(labels), pa.int32())
    return pa.table({"request_id": ids, "row": row, "at": times, "received_at": times, f"label.{name}": labels})


SHARES = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]]


@pytest.mark.parametrize(
    ("labels", "classes", "known", "numbers", "unknown"),
    [
        (["b", "a", "c"], "abc", None, [1, 0, 2], 0),
        ([2, 0, 1], "abc", None, [2, 0, 1], 0),
        ([3, 1, 9], "123", None, [2, 0], 1),
        ([1.0, 2.0, 0.5], "abc", None, [1, 2], 1),
        (["b", "a", "c"], "abc", "ab", [1, 0], 1),
        (["b", "a", "x"], "cab", None, [2, 1], 1),
        ([True, False, False], None, None, [1, 0, 0], 0),
    ],
    ids=["names", "numbers", "names that are numbers", "floats", "not at the other", "nobody's", "truths"],
)
def test_delayed_label_gives_class_name_or_number(
    labels: list[Any], classes: str | None, known: str | None, numbers: list[int], unknown: int
) -> None:
    answers = captured(probabilities=SHARES)
    result = read_labelled(answers, feedback(labels), "species", classes, known)["probabilities"]
    assert (result.labels.tolist(), result.unknown, result.problem) == (numbers, unknown, "multiclass")
    assert result.predictions.shape == (len(numbers), 3)


def test_delayed_label_matches_its_outputs() -> None:
    answers = captured(prediction=[1.0, 2.0], spread=[0.1, 0.2])
    for name in ("price", "value"):
        labelled = read_labelled(answers, feedback([1.5, 4.0], name), "price")
        assert list(labelled) == ["prediction"] and labelled["prediction"].problem == "regression"
    assert (
        read_labelled(captured(probability=[0.5]), feedback(["yes"]), "late", ("no", "yes"))["probability"].labels == 1
    )
    report = read_labelled(answers, feedback(["dear", "2"]), "price")["prediction"]
    assert (report.labels.tolist(), report.unknown) == ([2.0], 1), "a text is no number, unless it says one"


@pytest.mark.parametrize("name", ["minutes", "minutes_prediction", "cause_class", "prediction"])
def test_delayed_further_label_does_not_count_for_the_first(name: str) -> None:
    further = ["minutes", "cause", "prediction"]
    answers = captured(probability=[0.5, 0.6])
    assert not read_labelled(answers, feedback([0, 1], name), "late", ("no", "yes"), further=further)
    # At a version whose first label it is, it counts.
    assert read_labelled(answers, feedback([0, 1], name), name, ("no", "yes"), further=further)
    both = feedback([0, 1], name).append_column("label.late", [["yes", "no"]])
    assert read_labelled(answers, both, "late", ("no", "yes"), further=further)["probability"].labels.tolist() == [1, 0]


def test_labels_reveal_worse_classification() -> None:
    labels = _random.integers(0, 3, 600)
    good = np.full((600, 3), 0.1) + 0.7 * np.eye(3)[labels]
    stable = labelled(good[300:], labels[300:], "multiclass")
    worse = compare_labels(labelled(good[:300, ::-1], labels[:300], "multiclass", 7), stable, "kind", **GIVEN)
    assert (worse.verdict, worse.numbers["loss"], worse.numbers["stable_accuracy"]) == ("bad", "log loss", 1.0)
    assert worse.numbers["stable_loss"] == pytest.approx(-np.log(0.8))
    assert "7 labels are not a class that both versions know, and are left out" in worse.text
    # All labels are 0 or 1 and all predictions in between: a regression all the same.
    zeros = labelled(np.full(300, 0.5), labels[:300] % 2, "regression")
    assert compare_labels(zeros, zeros, "prediction", **GIVEN).numbers["loss"] == "mean absolute error"


@pytest.mark.parametrize("problem", ["binary", "multiclass", "regression"])
def test_labels_reveal_worse_canary_despite_nan(problem: Any) -> None:
    labels = _random.integers(0, 2, 600)
    good = np.where(labels == 1, 0.9, 0.1)
    shape: Any = (lambda p: np.stack([1 - p, p], axis=1)) if problem == "multiclass" else lambda p: p
    stable = labelled(shape(np.append(good[300:-1], np.nan)), labels[300:], problem)
    worse = compare_labels(labelled(shape(1 - good[:300]), labels[:300], problem), stable, "late", **GIVEN)
    assert (worse.verdict, worse.numbers["stable_rows"]) == ("bad", 299)
    assert "left out because their prediction is NaN or infinite: 1" in worse.text
    json.dumps(worse.to_dict(), allow_nan=False)  # as the artifact is written
    nothing = compare_labels(labelled(np.empty(0), np.empty(0)), stable, "late", **GIVEN)
    assert "0 labelled rows of the canary, 299 of the stable version" in nothing.text


def test_class_predictions_are_compared_by_name() -> None:
    ours, theirs = _random.dirichlet([1, 1, 1], 500), _random.dirichlet([1, 1, 4], 500)
    tolerant = replace(LIMITS, max_prediction_distance=0.2)
    result = compare_predictions(each(ours), each(theirs), "probabilities", tolerant, 0.01, ["a", "b", "c"])
    assert result.verdict == "bad" and result.numbers["class"] == "c"
    assert result.numbers["stable_mean"] == pytest.approx(2 / 3, abs=0.05)
    turned = captured(probabilities=ours[:, [2, 0, 1]]).of_classes(("c", "a", "b"), ["a", "b"])
    assert (turned.outputs["probabilities"].values == ours[:, :2]).all()
    of_two = captured(probability=[0.9, 0.4]).of_classes(("late", "punctual"), ["punctual", "late"])
    assert of_two.outputs["probability"].values == pytest.approx([0.1, 0.6])
    same = compare_predictions(each(np.full((50, 3), 1 / 3)), each(theirs), "probabilities", LIMITS, 0.01)
    assert same.verdict == "bad" and "0.333333, 0.333333, 0.333333 in all 50 rows" in same.text
    other = compare_predictions(each(ours), each(theirs[:, :2]), "probabilities", LIMITS, 0.01)
    assert other.verdict == "not_judged" and "3 values a row, and 2 at the stable version" in other.text
    alone = compare_predictions(each(ours), each([]), "probabilities", LIMITS, 0.01)
    assert alone.verdict == "not_judged" and "0 captured rows of the stable version, 20 needed" in alone.text
    flat = compare_predictions(each(ours), each(theirs.reshape(-1)), "probabilities", LIMITS, 0.01)
    assert flat.verdict == "not_judged" and "3 values a row, and 1 at the stable version" in flat.text
    none, strict = each(np.empty((50, 0))), replace(LIMITS, max_prediction_distance=0.2)
    for canary, stable, text in (
        (none, none, "no class that both versions know"),
        (each(ours), each(theirs[:, :2]), "and 2"),
    ):
        unknown = compare_predictions(canary, stable, "probabilities", strict, 0.01, [])
        assert unknown.verdict == "unknown" and text in unknown.text, "the limit cannot be checked"


PLAN = RolloutPlan.of(
    [5, 25, 50, 100],
    0.0,
    min_requests=500,
    timeout_s=60.0,
    on_timeout="leave",
    approval=False,
    keep_versions=1,
    longest_wait_s=1.0,
)


POLLS = st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.integers(0, 5), st.booleans()), max_size=12)
"""Polls: whether the server has restarted, requests and errors since, and whether it knows the canary yet."""


@given(st.integers(0, 20), POLLS)
def test_each_request_that_a_poll_sees_is_counted_once(earlier: int, polls: list[tuple[bool, int, int, bool]]) -> None:
    """Whatever polls come between, and however often the server restarts."""

    def entry(requests: int, errors: int = 0) -> dict[str, Any]:
        figures = {"requests": requests, "errors": errors, "client_errors": 0, "latency_ms_histogram": []}
        return {**figures, "server_since": float(starts)}

    starts, total, polled, expected = 1, Counter(requests=earlier), Counter(requests=earlier), Counter[str]()
    seen = Progress.begin(PLAN, 5, {"2": snapshot_of(entry(earlier))})
    for restarted, requests, errors, known in polls:
        if restarted:
            starts, total, polled = starts + 1, Counter(), Counter()
        total += Counter(requests=requests, errors=errors)
        counted = {2: entry(total["requests"], total["errors"])} if known else {1: entry(7)}
        seen = Progress.from_dict(json.loads(json.dumps(seen.after(counted).to_dict())))
        if known:
            expected += total - polled
            polled = total.copy()
    canary = seen.counts(2)
    assert (canary.requests, canary.errors) == (expected["requests"], expected["errors"])


def test_latencies_of_a_period_are_the_difference_of_two_snapshots() -> None:
    first = histogram(latencies(100, 1.0))
    both = first.plus(histogram(latencies(50, 9.0)))
    assert both.plus(first, -1).total == 50
    assert Histogram.parse(both.text()) == both
    assert both.quantile_ms(0.5) == pytest.approx(1.0, rel=0.25)
    assert both.quantile_ms(0.99) == pytest.approx(11.0, rel=0.25)
    assert Histogram().quantile_ms(0.5) is None


def test_tests_of_a_rollout_share_its_significance() -> None:
    """Whatever shares people set in between, and however often it returns from 100% or is tested."""
    returns, inserted = [5, 25, 50, 100, 50, 100, 50], [5, 5, 7, 3, 60, 70, 100, 100, 5, 25]
    for shares in ([5, 25, 50, 100], returns, inserted, [50, 40] * 30):
        rollout, spent = Progress.begin(PLAN, shares[0], {}), []
        for share in [*shares[1:], 100]:
            at_end, *early = (rollout.significance(0.01, tests) for tests in (None, *range(1, 60)))
            spent += [] if rollout.is_alone else [at_end + sum(early)]
            assert at_end > 0 and early[:2] == pytest.approx([at_end / 2, at_end / 4])
            rollout = rollout.next_step(PLAN, share, 1)
        assert sum(spent) <= 0.01 * (1 + 1e-9)
    begun = Progress.begin(PLAN, 5, {})
    assert [begun.significance(0.01, None), begun.next_step(PLAN, 25, 1).significance(0.01, 1)] == pytest.approx(
        [0.01 / 8, 0.01 / 16]
    )
    results = [PLAN.after(5), PLAN.after(30), PLAN.after(100), PLAN.steps_from(20), PLAN.steps_from(100)]
    assert results == [25, 50, None, 3, 1]


def test_labels_are_compared_within_steps_and_by_request() -> None:
    """The same model is not worse if the canary has most requests at times when labels are hard to predict."""
    steps, others = np.repeat([0, 1, 2], [10, 500, 300]), np.repeat([0, 1, 3], [900, 500, 50])
    hard, theirs = np.where(steps == 1, 0.5, 0.05), np.where(others == 1, 0.5, 0.05)
    labels, other_labels = (_random.random(len(values)) < values for values in (hard, theirs))
    stable = labelled(theirs, other_labels.astype(float), "binary")
    ours = labelled(hard, labels.astype(float), "binary")
    assert compare_labels(ours, stable, "late", **GIVEN).verdict == "bad", "as if all were of one step"
    ours, stable = replace(ours, steps=steps), replace(stable, steps=others)
    result = compare_labels(ours, stable, "late", **GIVEN)
    assert result.verdict == "ok" and result.numbers["canary_rows"] == 510, "no labels of the stable version in step 2"
    worse = replace(ours, predictions=np.where(labels, 0.01, ours.predictions))
    assert compare_labels(worse, stable, "late", **GIVEN).verdict == "bad"
    one = replace(worse, requests=np.zeros(810, int), steps=np.ones(810, int))
    assert compare_labels(one, stable, "late", **GIVEN).verdict == "doubt", "all rows are of one request"
    dates = [datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (1, 3)]
    read = read_labelled(captured(probability=[0.5] * 5), feedback([0, 1] * 2 + [0]), "late", steps=dates)
    assert read["probability"].steps.tolist() == [0, 1, 1, 2, 2]
    assert len(set(read["probability"].requests.tolist())) == 5
