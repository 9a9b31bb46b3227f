"""p-values of skew: parts equal to scipy's, no more false alarms than promised, real changes found."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median
from typing import Any

import flights_examples
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs one of the checks."""

    def run(name: str, **params: Any) -> Any:
        return shared_run_step(f"skew_measure_checks:{name}", code_paths=CHECKS, launcher=warm_launcher, params=params)

    return run


def test_tests_and_corrections_are_scipys(check: Any) -> None:
    found = check("tests_against_scipy")
    for ours, theirs in found["fisher"]:
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)
    ours, theirs = found["benjamini_hochberg"]
    assert ours == pytest.approx(theirs, rel=1e-9)
    for ours, theirs in found["kolmogorov"]:
        assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("rows", [100, 1000, 10_000])
def test_unchanged_samples_have_p_values_that_are_not_too_small(check: Any, rows: int) -> None:
    found = check("p_values", rows=rows, draws=24)
    every = [p for feature in found.values() for values in feature.values() for p in values]
    assert len(every) == 24 * 15
    assert fmean(p <= 0.01 for p in every) <= 0.02
    assert fmean(p <= 0.1 for p in every) <= 0.12
    # They are no larger than they should be, where nothing makes them careful.
    for name, measure in (("normal", "kolmogorov_smirnov"), ("three", "l_infinity"), ("hundred", "l_infinity")):
        assert 0.15 < median(found[name][measure]) < 0.85


@pytest.mark.parametrize("rows", [100, 1000])
def test_random_windows_of_flights_are_stable(check: Any, flights_raw: Path, tmp_path: Path, rows: int) -> None:
    flights = flights_examples.months(flights_raw, 1, 3)[flights_examples.FEATURES]
    pq.write_table(flights_examples.to_arrow(flights.iloc[::4]), tmp_path / "flights.parquet")
    found = check("false_alarms_on_flights", folder=str(tmp_path), rows=rows, draws=12)
    assert found["verdicts"] == ["stable"] * 12, found["drifted"]


def test_real_changes_are_found_the_smaller_the_larger_the_window(check: Any) -> None:
    def found(rows: int, shift: float) -> dict[str, float]:
        p_values = check("p_values", rows=rows, draws=6, shift=shift)
        return {
            name: fmean(p <= 0.001 for p in values.get("kolmogorov_smirnov") or values["l_infinity"])
            for name, values in p_values.items()
        }

    small, large = found(100, 0.15), found(10_000, 0.15)
    for name in ("normal", "small_integers", "integers", "mostly_zero"):
        assert small[name] <= 0.2
        assert large[name] >= 0.5, name
    assert large["few_floats"] == large["hundred"] == 0.0  # these do not move
    assert found(1000, 0.5)["normal"] == 1.0


def test_awkward_columns_and_samples_of_any_size_are_judged(check: Any) -> None:
    found = check("odd_columns")
    assert len(found) == 35
    for report in found:
        assert (report["verdict"], report["drifted"]) == ("stable", [])
        assert len(report["features"]) == 14
        for skew in report["features"].values():
            assert skew["p_value"] is None or 0 < skew["p_value"] <= 1
            # An area that overflows is judged, and is not JSON.
            assert skew["p_value"] is not None or skew["score"] is None


def test_the_least_distance_is_never_more_than_that_of_the_rows(check: Any) -> None:
    found = check("least_distances")
    assert len(found) == 8 * 6
    for name, least, distance in found:
        assert least <= distance + 0.002, name
        if name == "apart":  # 5 alone, and 6 alone
            assert least == distance == 1.0
    assert any(least > 0.02 for name, least, _ in found if name != "apart")


def test_unchanged_columns_with_gaps_and_frequent_values_are_no_drift(check: Any) -> None:
    for name, p_values in check("rough_p_values", rows=1000, draws=24).items():
        assert sum(p <= 0.01 for p in p_values) <= 1, name


def test_a_share_of_infinities_that_moves_is_drift_and_nothing_but_them_is_missing(check: Any) -> None:
    found = check("infinities")
    assert (found["more"]["verdict"], found["more"]["features"]["x"]["p_value"] < 1e-6) == ("drift", True)
    assert found["as_many"]["verdict"] == "stable"
    assert (found["all"]["verdict"], found["all"]["causes"]) == ("pipeline_fault", {"x": "all_missing"})
