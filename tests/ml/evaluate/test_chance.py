"""Rates of error that pages state, by simulation: of equal models, and of models that have learnt nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from campaigns import campaign
from scipy import stats

from airflow_hops.ml.evaluate.blessing import BlessingRule, bless
from airflow_hops.ml.metrics.judging import METRICS, Judge

ROWS = (20, 60, 300, 1000, 5000)
ANSWERS = ("continuous", "leaves", "one-hot", "constant")
SLOW = {"average_precision", "median_absolute_error"}


@dataclass(frozen=True)
class History:
    """Held-out rows, with the answers of two models that are equally good."""

    problem: Any
    metric: str
    labels: np.ndarray
    mine: np.ndarray
    theirs: np.ndarray
    weights: np.ndarray | None
    copies: np.ndarray | None


def _answers(kind: str, scores: np.ndarray) -> np.ndarray:
    if kind == "leaves":
        return np.digitize(scores, [-1.2, -0.5, 0.0, 0.5, 1.2]) * 0.5 - 1.2
    return {"continuous": scores, "one-hot": np.where(scores > 0, 6.0, -6.0), "constant": np.zeros_like(scores)}[kind]


def _model(random: np.random.Generator, problem: str, kind: str, truth: np.ndarray, noise: float) -> np.ndarray:
    scores = _answers(kind, truth + noise * random.normal(size=truth.shape))
    if problem == "multiclass":
        return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return scores if problem == "regression" else 1 / (1 + np.exp(-scores))


def _draw(random: np.random.Generator, problem: Any, metric: str, rows: int, *, better: float = 1.0) -> History:
    """Draws a history; with ``better`` below 1, the first model has less noise than the second."""
    kind, fewest = random.choice(ANSWERS), 1
    times = int(random.choice([1, 1, 3, 8]))
    distinct = max(rows // times, 4)
    if problem == "binary":
        fewest = int(np.clip(random.choice([0.5, 0.1, 0.01]) * distinct, random.integers(1, 4), distinct - 1))
        labels = np.arange(distinct) < fewest
        labels, truth = labels.astype(int), random.normal(size=distinct) + labels
    elif problem == "multiclass":
        labels = np.append(random.integers(0, 3, distinct - 1), 3)  # the last class has a single row
        truth = random.normal(size=(distinct, 4)) + np.eye(4)[labels]
    else:
        truth = random.normal(size=distinct)
        labels = truth + 0.7 * random.normal(size=distinct)
    mine, theirs = (_model(random, problem, kind, truth, noise) for noise in (better, 1.0))
    weights = random.choice([1.0, 20.0], distinct, p=[0.9, 0.1]) if random.random() < 0.5 else None
    copies = np.repeat(np.arange(distinct), times)
    columns = [column[copies] for column in (labels, mine, theirs)]
    return History(
        problem, metric, *columns, None if weights is None else weights[copies], None if times == 1 else copies
    )


def _gain(history: History) -> Any:
    judge = Judge(history.problem, history.metric)
    return judge.gain(history.labels, history.mine, history.theirs, history.weights, history.copies)


def _check_rate(hits: int, draws: int, stated: float, case: object) -> None:
    assert hits <= stats.binom.isf(1e-5, draws, stated), (case, hits, draws)


@campaign("draws", 20, 300)
def test_equal_models_are_rarely_called_better(draws: int) -> None:
    for problem, metrics in METRICS.items():
        for metric in metrics.higher_is_better:
            for rows in ROWS:
                random = np.random.default_rng([rows, draws])
                count = draws // 10 if metric in SLOW else draws
                gains = [_gain(_draw(random, problem, metric, rows)) for _ in range(count)]
                hits = sum(gain is not None and gain.low > 0 for gain in gains)
                _check_rate(hits, count, 0.025, (problem, metric, rows))


def test_few_positives_are_no_evidence() -> None:
    """Compares by the AUC of 300 negatives and a few positives, and from a few rows alone."""
    random = np.random.default_rng(3)
    for positives, kind in ((n, kind) for n in (1, 2, 3, 10) for kind in ANSWERS[:3]):
        hits = 0
        for _ in range(200):
            labels = (np.arange(300 + positives) < positives).astype(int)
            pair = (_model(random, "binary", kind, random.normal(size=len(labels)) + labels, 1.0) for _ in "ab")
            hits += Judge("binary", "auc").gain(labels, *pair, None).low > 0  # type: ignore[union-attr]
        _check_rate(hits, 200, 0.025, (positives, kind))
    for rows in (2, 3):
        labels = np.arange(rows) % 2
        right, wrong = 0.1 + 0.8 * labels, 0.9 - 0.8 * labels
        for metric in METRICS["binary"].higher_is_better:
            gain = Judge("binary", metric).gain(labels, right, wrong, None)
            assert gain is None or gain.low <= 0 < gain.high, metric
    for metric in METRICS["regression"].higher_is_better:
        gain = Judge("regression", metric).gain(np.array([1.0, 2.0]), np.array([1.1, 2.1]), np.zeros(2), None)
        assert gain is None or gain.low <= 0 < gain.high, metric


def test_real_gains_are_found_as_by_a_paired_t_test() -> None:
    random, agree, better = np.random.default_rng(4), [], 0
    for _ in range(200):
        history = _draw(random, "binary", "log_loss", int(random.choice(ROWS[1:])), better=0.5)
        if history.weights is not None or history.copies is not None:
            continue
        losses = [
            -np.log(np.clip(np.where(history.labels == 1, p, 1 - p), 1e-7, 1)) for p in (history.theirs, history.mine)
        ]
        gain, test = _gain(history), stats.ttest_rel(*losses)
        agree.append((gain.low > 0) == (test.statistic > 0 and test.pvalue < 0.05))
        better += gain.low > 0
    assert np.mean(agree) >= 0.95 and better > 0.2 * len(agree)


def test_class_of_one_row_hides_no_gain_in_the_others() -> None:
    random = np.random.default_rng(6)
    labels = np.append(np.arange(2000) % 4, 4)
    truth = random.normal(size=(2001, 5)) + 2.5 * np.eye(5)[labels]
    mine, theirs = (_model(random, "multiclass", "continuous", truth, noise) for noise in (0.2, 1.0))
    theirs[-1] = mine[-1]
    for metric in METRICS["multiclass"].higher_is_better.keys() - {"worst_auc"}:
        gain = Judge("multiclass", metric).gain(labels, mine, theirs, None)
        assert gain is not None and gain.low > 0.5 * gain.difference > 0, gain


LEARNT_NOTHING = ("shuffled", "other column", "too sure", "constant")


def _ignorant(random: np.random.Generator, problem: str, case: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    truth = random.normal(size=rows)
    if problem == "regression":
        labels = truth + random.normal(size=rows)
        answers = {"too sure": 5 * truth, "constant": np.full(rows, labels.mean())}
    else:
        labels = (truth + random.normal(size=rows) > 0).astype(int)
        labels[:2] = 0, 1
        answers = {"too sure": np.where(truth > 0, 1.0, 0.0), "constant": np.full(rows, labels.mean())}
    honest = truth / 2 if problem == "regression" else 1 / (1 + np.exp(-1.7 * truth))
    other = random.normal(size=rows) if problem == "regression" else random.uniform(size=rows)
    return labels, {**answers, "shuffled": random.permutation(honest), "other column": other, "honest": honest}[case]


@pytest.mark.parametrize("problem", ["binary", "multiclass", "regression"])
def test_model_that_is_not_better_than_a_constant_is_refused(problem: Any) -> None:
    random = np.random.default_rng(5)
    for case in (*LEARNT_NOTHING, "honest"):
        for rows in (20, 300):
            passed, refused = 0, []
            for _ in range(60):
                labels, answers = _ignorant(random, problem, case, rows)
                if problem == "multiclass":
                    answers = np.stack([1 - answers, answers], axis=1)
                rule = BlessingRule.of(problem, {}, None, {}, None, None)
                figures = Judge(problem, rule.metric).figures(labels, answers, None)
                blessed, reasons = bless(rule, {"eval": figures}, None)
                lifted = BlessingRule.of(problem, {}, None, {}, None, None, better_than_constant=False)
                assert bless(lifted, {"eval": figures}, None)[0]
                passed += blessed
                refused += [] if blessed else reasons[:1]
            if case == "honest":
                assert passed >= (55 if rows == 300 else 10)
            else:
                _check_rate(passed, 60, 0.025, (case, rows))
                assert all("than a constant answer" in reason for reason in refused)
                for reason in refused:
                    assert ("worse than" in reason) == ("; check its label" in reason) != ("; add rows" in reason)
                    assert reason.endswith("set better_than_constant=False")
