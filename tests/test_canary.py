"""The statistics behind a rollout, against worked values, and against their own claims on simulated canaries."""

from __future__ import annotations

import json
import subprocess
from math import comb
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

pytestmark = pytest.mark.runtime

PROGRAM = """
import json, sys
import numpy as np
from dataclasses import replace
from airflow_hops.runtime.rollout.comparisons import *
from airflow_hops.runtime.rollout.counts import *
from airflow_hops.runtime.rollout.significance import *
from airflow_hops.runtime.rollout.plan import Plan, significance_of
from airflow_hops.runtime.rollout.progress import Progress

generator = np.random.default_rng(0)
edges = 0.001 * 1.05 ** np.arange(400)

def histogram(values):
    indices = np.searchsorted(edges, values)
    found, counts = np.unique(indices, return_counts=True)
    return Histogram.of([(edges[i - 1], edges[i], n) for i, n in zip(found, counts)])

def counts(requests, errors, latencies=()):
    return Counts(requests, errors, histogram(np.asarray(latencies)) if len(latencies) else Histogram())

def found(finding):
    return [finding.verdict, finding.text, dict(finding.numbers)]

def latencies(size, median, tail=None):
    values = median * np.exp(0.1 * generator.standard_normal(size))
    if tail:
        values[: size // 20] = tail
    return values

def alarms(test, trials):
    return sum(test() for _ in range(trials)) / trials

def no_worse():
    stable, canary = latencies(300, 10.0), latencies(300, 20.0 * 0.98)
    return compare_latency(counts(300, 0, canary), counts(300, 0, stable), limits, 0.1)[0].verdict == BAD

normal, shifted = generator.normal(0.3, 0.1, 500), generator.normal(0.5, 0.1, 500)
limits = Limits()
plain = dict(limits=limits, significance=0.01)
labels = (generator.random(4000) < 0.3).astype(float)
good = np.where(labels == 1, 0.6, 0.15) + generator.uniform(-0.1, 0.1, 4000)
entry = lambda requests, since, rows=(): {
    "requests": requests, "errors": 1, "latency_ms_histogram": list(rows), "server_since": since}
plan = Plan.of([5, 25, 50, 100], 0.0, min_requests=500, timeout_s=60.0, on_timeout="leave", approval=False,
    keep_versions=1, look_s=1.0)
seen = Progress.begin(plan, 5, {"1": snapshot_of(entry(10, 1.0)), "2": snapshot_of(entry(0, 1.0))})
for counted in ({1: entry(15, 1.0), 2: entry(5, 1.0)}, {1: entry(4, 2.0), 2: entry(3, 2.0)}, {2: entry(3, 2.0)}):
    seen = Progress.from_dict(json.loads(json.dumps(seen.after(counted).to_dict())))
first = histogram(latencies(100, 1.0))
both = first.plus(histogram(latencies(50, 9.0)))
print(json.dumps({
    "tea": fisher_exact_greater(3, 4, 1, 4),
    "more": fisher_exact_greater(10, 100, 10, 1000),
    "none": fisher_exact_greater(0, 100, 0, 1000),
    "binomial": [binomial_at_least(9, 10, 0.5), binomial_at_least(0, 10, 0.5)],
    "bound": [quantile_bound_rank(size, q, a) for size, q, a in ((10, 0.5, 0.05), (100, 0.5, 0.025), (298, 0.99, 0.05),
        (299, 0.99, 0.05))],
    "ks_same": kolmogorov_smirnov(normal, normal),
    "ks_shifted": kolmogorov_smirnov(normal, shifted),
    "margin": distance_margin(1000, 500, 0.05),
    "welch": [welch_greater(*pair) for pair in ((normal, normal, 1.0), (shifted, normal, 1.0), (shifted, normal, 2.0))],
    "auc": [area_under_roc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])),
        area_under_roc(np.ones(4), np.array([0, 1, 0, 1])), area_under_roc(np.ones(2), np.ones(2))],
    "errors": [found(compare_errors(*pair, **plain)) for pair in (
        (counts(100, 5), counts(400, 0)), (counts(100, 1), counts(400, 4)), (counts(20, 1), counts(80, 0)),
        (counts(100, 5), counts(0, 0)), (counts(0, 0), counts(10, 0)), (counts(1000, 200), counts(4000, 800)))],
    "latency": [[found(f) for f in compare_latency(*pair, **plain)] for pair in (
        (counts(100, 0, latencies(100, 30.0)), counts(400, 0, latencies(400, 10.0))),
        (counts(100, 0, latencies(100, 3.0)), counts(400, 0, latencies(400, 1.0))),
        (counts(1000, 0, latencies(1000, 10.0, 300.0)), counts(4000, 0, latencies(4000, 10.0))),
        (counts(14, 0, [1.0] * 6 + [60.0] * 8), counts(400, 0, latencies(400, 10.0))),
        (counts(0, 0), counts(400, 0, latencies(400, 10.0))))],
    "latency_alarms": alarms(no_worse, 400),
    "predictions": [found(compare_predictions(*pair, "probability", **plain)) for pair in (
        (normal, shifted), (np.full(50, 0.25), normal), (np.append(normal, np.nan), normal), (normal[:5], normal),
        (np.full(50, 0.25), np.full(50, 0.25)), (normal, np.empty(0)))],
    "distance": [found(compare_predictions(*pair, "probability", replace(limits, max_prediction_distance=0.2), 0.01))
        for pair in ((normal, shifted), (normal[:30], normal[30:60] + 0.12), (normal, normal + 0.01))],
    "labels": [found(compare_labels(LabelledRows(*canary), LabelledRows(good[2000:], labels[2000:]), 'late', **plain))
        for canary in ((good[:2000], labels[:2000]), (1 - good[:2000], labels[:2000]), (good[:40], labels[:40]))],
    "values": found(
        compare_labels(LabelledRows(normal + 1, normal), LabelledRows(normal + 0.5, normal), 'delay', **plain)),
    "since": [seen.counts(1).requests, seen.counts(2).requests, seen.counts(2).errors],
    "difference": both.plus(first, -1).total,
    "text": Histogram.parse(both.text()) == both,
    "quantiles": [both.quantile_ms(0.5), both.quantile_ms(0.99), Histogram().quantile_ms(0.5)],
    "spent": [significance_of(0.01, 4, early) for early in (None, 1, 2, 3)],
    "plan": [plan.after(5), plan.after(30), plan.after(100), plan.steps_from(20), plan.steps_from(100)],
}))
"""


@pytest.fixture(scope="module")
def found(runtime_python: Path) -> dict[str, Any]:
    done = subprocess.run(
        [runtime_python, "-c", PROGRAM], capture_output=True, text=True, env={"PYTHONPATH": str(REPOSITORY)}, timeout=90
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_fisher_exact_test_gives_published_values(found: dict[str, Any]) -> None:
    assert found["tea"] == pytest.approx(17 / 70)  # Fisher's lady tasting tea: 3 of 4 right
    assert found["more"] == pytest.approx(hypergeometric_tail(10, 100, 10, 1000), rel=1e-9)
    assert found["none"] == 1.0


def hypergeometric_tail(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    total, all_hits = trials + other_trials, hits + other_hits
    ways = sum(comb(all_hits, k) * comb(total - all_hits, trials - k) for k in range(hits, min(trials, all_hits) + 1))
    return ways / comb(total, trials)


def test_binomial_test_and_bounds_of_a_quantile_give_worked_values(found: dict[str, Any]) -> None:
    assert found["binomial"] == [pytest.approx(11 / 1024), 1.0]
    # Of 10 the 9th is the first that is below the median with a probability of at most 5% (11/1024); of 100 the 61st
    # (60 would be 0.0284). For the 99th percentile it takes 299 observations: 0.99^299 is the first below 5%.
    assert found["bound"] == [9, 61, None, 299]


def test_kolmogorov_smirnov_tells_equal_from_shifted(found: dict[str, Any]) -> None:
    assert found["ks_same"] == [0.0, 1.0]
    statistic, p_value = found["ks_shifted"]
    assert statistic > 0.6
    assert p_value < 1e-50
    assert found["margin"] == pytest.approx(0.0468 + 0.0662, abs=1e-3)


def test_welch_and_the_area_under_the_curve_give_worked_values(found: dict[str, Any]) -> None:
    same, larger, within = found["welch"]
    assert same == 0.5
    assert larger < 1e-50
    assert within > 0.999
    assert found["auc"] == [0.75, 0.5, None]


def test_errors_count_only_beyond_the_limit_and_beyond_chance(found: dict[str, Any]) -> None:
    worse, no_worse, too_few, no_stable, silent, both_bad = found["errors"]
    assert worse[0] == "bad"
    assert worse[2]["p_value"] < 0.01
    assert worse[1].startswith("5 of 100 requests failed, 0 of 400")
    assert no_worse[0] == "ok"
    assert too_few[0] == "doubt"
    assert too_few[2]["increase"] == 0.05
    assert no_stable[0] == "bad"
    assert silent[0] == "ok"
    assert both_bad[0] == "ok"


def test_latency_counts_beyond_ratio_and_tolerance_and_the_tail_only_with_enough_requests(
    found: dict[str, Any],
) -> None:
    (slow, few), (small, _), (middle, tail), (doubtful, _), (unknown, _) = found["latency"]
    assert slow[0] == "bad"
    assert slow[2]["ratio"] == pytest.approx(3.0, rel=0.1)
    assert few[0] == "ok"
    assert "not judged: too few requests, 100 and 400" in few[1]
    assert small[0] == "ok", "three times, but by 2 ms"
    assert (middle[0], tail[0]) == ("ok", "bad")
    assert doubtful[0] == "doubt", "8 of 14 beyond the limit may be chance"
    assert unknown[0] == "ok"
    assert "no latency of both versions" in unknown[1]


def test_a_canary_just_within_the_limit_of_latency_is_seldom_ended(found: dict[str, Any]) -> None:
    assert found["latency_alarms"] <= 0.1


def test_predictions_that_cannot_be_right_are_found_and_others_go_on_record(found: dict[str, Any]) -> None:
    shifted, constant, nan, few, both_constant, no_stable = found["predictions"]
    assert shifted[0] == "ok"
    assert shifted[2]["ks_p_value"] < 1e-50
    assert constant[0] == "bad"
    assert "0.25 in all 50 rows" in constant[1]
    assert nan[0] == "bad"
    assert "1 of 501 values of 'probability' are NaN" in nan[1]
    assert few[0] == "ok"
    assert "20 needed" in few[1]
    assert both_constant[0] == "ok"
    assert no_stable[0] == "ok"


def test_a_distance_of_predictions_counts_where_one_is_tolerated(found: dict[str, Any]) -> None:
    far, few, near = found["distance"]
    assert far[0] == "bad"
    assert few[0] == "doubt", "far, but of 30 rows"
    assert near[0] == "ok"


def test_labels_tell_a_model_that_predicts_worse(found: dict[str, Any]) -> None:
    same, worse, few = found["labels"]
    assert same[0] == "ok"
    assert same[2]["canary_auc"] > 0.9
    assert worse[0] == "bad"
    assert worse[2]["loss"] == "log loss"
    assert worse[2]["canary_loss"] > same[2]["canary_loss"]
    assert few[0] == "ok"
    assert "40 labelled rows of the canary" in few[1]
    assert found["values"][0] == "bad"
    assert found["values"][2]["loss"] == "mean absolute error"
    assert found["values"][2]["canary_loss"] == pytest.approx(1.0)


def test_counts_of_a_server_that_started_anew_are_added_to_what_was_seen_before(found: dict[str, Any]) -> None:
    # Version 1: 10 before, 5 since, 4 of the new server. Version 2: 5, then 3, and nothing new at the third look.
    assert found["since"] == [9, 8, 1]


def test_latencies_of_a_period_are_the_difference_of_two_snapshots(found: dict[str, Any]) -> None:
    assert found["difference"] == 50
    assert found["text"]
    median, tail, nothing = found["quantiles"]
    assert median == pytest.approx(1.0, rel=0.25)
    assert tail == pytest.approx(11.0, rel=0.25)
    assert nothing is None


def test_tests_of_a_rollout_share_its_significance(found: dict[str, Any]) -> None:
    at_end, *early = found["spent"]
    assert at_end == 0.01 / 8
    assert early == [0.01 / 16, 0.01 / 32, 0.01 / 64]
    assert 4 * (at_end + 2 * early[0]) == pytest.approx(0.01)
    assert found["plan"] == [25, 50, None, 4, 1]
