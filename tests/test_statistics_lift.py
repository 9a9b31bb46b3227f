"""Lift and other statistics of pairs of features: equal to TFDV's, which needs Beam for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flights_examples
import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
CASES = [
    "defaults", "weights", "weight_of_one_feature", "buckets", "highest_and_lowest",
    "label_of_several_values", "label_of_text",
]  # fmt: skip


@pytest.fixture(scope="module")
def examples(shared_run_step: Any, flights_raw: Path) -> Any:
    winter = flights_examples.months(flights_raw, 1, 3)
    return flights_examples.write_examples(
        shared_run_step.store, {"train": winter[winter.index % 50 == 0]}, run_id="lift"
    )


def _check(name: str, run_step: Any, launcher: Any, **inputs: Any) -> Any:
    return run_step(f"lift_checks:{name}", code_paths=CHECKS, launcher=launcher, inputs=inputs)


@pytest.fixture(scope="module")
def lifts(shared_run_step: Any, warm_launcher: Any, examples: Any) -> Any:
    return _check("compare_with_tfdv", shared_run_step, warm_launcher, examples=examples)


def _close(found: Any, expected: Any) -> None:
    """Equal, but for the order in which weights were summed."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    else:
        assert found == expected


@pytest.mark.parametrize("case", CASES)
def test_lift_equals_tfdv(lifts: Any, case: str) -> None:
    ours, tfdv = lifts[case]["ours"], lifts[case]["tfdv"]
    assert len(tfdv["lift"]) >= 2
    if case.startswith(("weight", "highest_and")):
        _close(ours, tfdv)
    else:
        assert ours == tfdv


def test_lift_knows_of_every_pair_that_could_have_been(lifts: Any) -> None:
    series = lifts["defaults"]["ours"]["lift"]["carrier"]["categoricalCrossStats"]["lift"]["liftSeries"]
    assert [one["yInt"] for one in series] == [0, 1]
    assert len(series[0]["liftValues"]) == len(series[1]["liftValues"]) > 10


def test_sliced_statistics_have_the_lift_of_each_slice(shared_run_step: Any, warm_launcher: Any, examples: Any) -> None:
    sliced = _check("sliced_statistics", shared_run_step, warm_launcher, examples=examples)
    assert set(sliced["ours"]) == {"All Examples", "origin_EWR", "origin_JFK", "origin_LGA"}
    _close(sliced["ours"], sliced["tfdv"])


def test_features_of_too_many_values_have_no_lift_in_whatever_order_they_come(
    run_step: Any, warm_launcher: Any
) -> None:
    found = _check("bounds", run_step, warm_launcher)
    assert found["whole"] == found["merged"] == found["merged_backwards"] == ["short"]
    assert found["half"] == ["short", "unique"]
    assert found["no_rows"] == []
    assert sum("has too many values" in line for line in map(str, run_step.lines)) >= 2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no_such_column", "label feature 'y': there is no such column"),
        ("float", "<item: double>, expected strings or integers; a number wants boundaries"),
        ("many", "label feature 'many' has more than 1,000 distinct values, expected a category"),
        ("buckets_of_text", "expected numbers, since there are boundaries"),
        ("not_in_schema", "label feature 'y' is not in the schema"),
        ("number_in_schema", "label feature 'distance' is a number in the schema, expected a category"),
        ("buckets_of_category", "label feature 'late' is a category in the schema: it has no boundaries"),
    ],
)
def test_a_label_that_cannot_have_lift_is_named(said: Any, case: str, words: str) -> None:
    assert words in said[case]


@pytest.fixture(scope="module")
def said(shared_run_step: Any, warm_launcher: Any) -> Any:
    return _check("complaints", shared_run_step, warm_launcher)
