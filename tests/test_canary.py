"""The statistics behind a rollout, against worked values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

pytestmark = pytest.mark.runtime

PROGRAM = """
import json, sys
import numpy as np
from airflow_hops.runtime.canary import *

def counts(requests, errors, p50=None, p99=None):
    return Counts(requests, errors, p50, p99)

def found(finding):
    return [finding.bad, finding.text, dict(finding.numbers)]

generator = np.random.default_rng(0)
normal, shifted = generator.normal(0.3, 0.1, 500), generator.normal(0.5, 0.1, 500)
limits = Limits()
print(json.dumps({
    "tea": fisher_exact_greater(3, 4, 1, 4),
    "more": fisher_exact_greater(10, 100, 10, 1000),
    "none": fisher_exact_greater(0, 100, 0, 1000),
    "ks": kolmogorov_smirnov(np.array([0.61, 0.29, 0.06, 0.59, -1.73, -0.74, 0.51, -0.56, 0.39, 1.64, 0.05, -0.06, 0.64,
        -0.82, 0.37, 1.77, 1.09, -1.28, 2.36, 1.31, 1.05, -0.32, -0.40, 1.06, -2.47]),
        np.arange(25) / 25.0),
    "ks_same": kolmogorov_smirnov(normal, normal),
    "ks_shifted": kolmogorov_smirnov(normal, shifted),
    "errors": [found(compare_errors(*pair, limits)) for pair in (
        (counts(100, 5), counts(400, 0)), (counts(100, 1), counts(400, 4)), (counts(20, 1), counts(80, 0)),
        (counts(100, 5), counts(0, 0)), (counts(0, 0), counts(10, 0)), (counts(1000, 200), counts(4000, 800)))],
    "latency": [[found(f) for f in compare_latency(*pair, limits)] for pair in (
        (counts(100, 0, 30.0, 300.0), counts(400, 0, 10.0, 20.0)),
        (counts(100, 0, 3.0, 30.0), counts(400, 0, 1.0, 2.0)),
        (counts(1000, 0, 10.0, 300.0), counts(4000, 0, 10.0, 20.0)),
        (counts(0, 0), counts(400, 0, 10.0, 20.0)))],
    "predictions": [found(compare_predictions(*pair, "probability")) for pair in (
        (normal, shifted), (np.full(50, 0.25), normal), (np.append(normal, np.nan), normal), (normal[:5], normal),
        (np.full(50, 0.25), np.full(50, 0.25)), (normal, np.empty(0)))],
    "since": [Counts.since(now, before).requests for now, before in (
        ({"requests": 50, "errors": 1, "server_since": 1.0}, {"requests": 20, "errors": 0, "server_since": 1.0}),
        ({"requests": 50, "errors": 1, "server_since": 2.0}, {"requests": 20, "errors": 0, "server_since": 1.0}),
        ({"requests": 50, "errors": 1, "server_since": 1.0}, {}))],
}))
"""


@pytest.fixture(scope="module")
def found(runtime_python: Path) -> dict[str, Any]:
    done = subprocess.run(
        [runtime_python, "-c", PROGRAM], capture_output=True, text=True, env={"PYTHONPATH": str(REPOSITORY)}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_fisher_exact_test_gives_published_values(found: dict[str, Any]) -> None:
    assert found["tea"] == pytest.approx(17 / 70)  # Fisher's lady tasting tea: 3 of 4 right
    assert found["more"] == pytest.approx(hypergeometric_tail(10, 100, 10, 1000), rel=1e-9)
    assert found["none"] == 1.0


def hypergeometric_tail(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    from math import comb

    total, all_hits = trials + other_trials, hits + other_hits
    ways = sum(comb(all_hits, k) * comb(total - all_hits, trials - k) for k in range(hits, min(trials, all_hits) + 1))
    return ways / comb(total, trials)


def test_kolmogorov_smirnov_tells_equal_from_shifted(found: dict[str, Any]) -> None:
    statistic, p_value = found["ks_same"]
    assert (statistic, p_value) == (0.0, 1.0)
    statistic, p_value = found["ks_shifted"]
    assert statistic > 0.6
    assert p_value < 1e-50
    statistic, p_value = found["ks"]
    assert 0.2 < statistic < 0.6
    assert 0.0001 < p_value < 0.5


def test_errors_count_only_beyond_the_limit_and_beyond_chance(found: dict[str, Any]) -> None:
    worse, no_worse, too_few, no_stable, silent, both_bad = found["errors"]
    assert worse[0]
    assert worse[2]["p_value"] < 0.01
    assert worse[1].startswith("5 of 100 requests failed, 0 of 400")
    assert not no_worse[0]
    assert not too_few[0]
    assert too_few[2]["increase"] == 0.05
    assert no_stable[0]
    assert not silent[0]
    assert not both_bad[0]


def test_latency_counts_beyond_ratio_and_tolerance_and_the_tail_only_with_enough_requests(
    found: dict[str, Any],
) -> None:
    (slow, few), (small, _), (_, tail), (unknown, _) = found["latency"]
    assert slow[0]
    assert slow[2]["ratio"] == 3.0
    assert not few[0]
    assert "not judged: 100 requests, 1000 needed" in few[1]
    assert not small[0]
    assert tail[0]
    assert not unknown[0]


def test_predictions_that_cannot_be_right_are_found_and_others_go_on_record(found: dict[str, Any]) -> None:
    shifted, constant, nan, few, both_constant, no_stable = found["predictions"]
    assert not shifted[0]
    assert shifted[2]["ks_p_value"] < 1e-50
    assert constant[0]
    assert "0.25 in all 50 rows" in constant[1]
    assert nan[0]
    assert "1 of 501 values of 'probability' are NaN" in nan[1]
    assert not few[0]
    assert "20 needed" in few[1]
    assert not both_constant[0]
    assert not no_stable[0]


def test_counts_start_anew_with_the_server(found: dict[str, Any]) -> None:
    assert found["since"] == [30, 50, 50]
