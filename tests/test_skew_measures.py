"""Measures of skew: equal to TFDV's and to those of the very rows; what a report says of broken and of changed data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import flights_examples
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs one of the checks."""

    def run(name: str, **step: Any) -> Any:
        return shared_run_step(f"skew_measure_checks:{name}", code_paths=CHECKS, launcher=warm_launcher, **step)

    return run


@pytest.fixture(scope="module")
def winter(tmp_path_factory: pytest.TempPathFactory, flights_raw: Path) -> str:
    """A folder with the features of a third of the flights of January to March."""
    folder = tmp_path_factory.mktemp("winter")
    flights = flights_examples.months(flights_raw, 1, 3)[flights_examples.FEATURES]
    pq.write_table(flights_examples.to_arrow(flights[flights.index % 3 == 0]), folder / "winter.parquet")
    return str(folder)


@pytest.fixture(scope="module")
def reports(check: Any, winter: str) -> Any:
    return check("reports", params={"folder": winter})


@pytest.fixture(scope="module")
def choices(check: Any) -> Any:
    return check("choices")


def test_scores_are_tfdvs_own(check: Any, flights_statistics: Any) -> None:
    worst = check("scores_against_tfdv", inputs={"statistics": flights_statistics})
    assert worst.pop("compared") > 400
    assert set(worst) == {
        "jensen_shannon", "jensen_shannon_quantiles", "l_infinity", "normalized_abs_difference",
        "jensen_shannon of infinite", "jensen_shannon_quantiles of infinite",
    }  # fmt: skip
    assert max(worst.values()) < 1e-9


def test_measures_of_histograms_are_those_of_the_rows(check: Any) -> None:
    for case in check("scores_against_rows"):
        ours = case["ours"]
        # Ten buckets of each kind tell a CDF to within about two hundredths.
        assert ours["kolmogorov_smirnov"] == pytest.approx(case["kolmogorov_smirnov"], abs=0.02)
        assert ours["wasserstein"] == pytest.approx(case["wasserstein"], abs=0.02 * case["std"])
        assert ours["wasserstein_normalized"] == pytest.approx(ours["wasserstein"] / case["std"], rel=1e-3)
        expected = case["population_stability_index"]
        assert ours["population_stability_index"] == pytest.approx(expected, rel=0.1, abs=0.005)


def test_unchanged_flights_are_stable_and_a_single_outlier_changes_nothing(reports: Any) -> None:
    for name in ("nothing", "outlier"):
        assert (reports[name]["verdict"], reports[name]["drifted"]) == ("stable", [])
        assert all(skew["cause"] is None for skew in reports[name]["features"].values())
    assert reports["outlier"]["features"]["wind_speed"]["scores"]["jensen_shannon"] > 0.5


@pytest.mark.parametrize(
    ("broken", "feature", "cause", "detail"),
    [
        ("celsius", "temp", "unit_change", "Fahrenheit to Celsius"),
        ("thousandth", "distance", "unit_change", "thousand, backwards"),
        ("lower_case", "carrier", "new_category", None),
        ("new_airports", "dest", "new_category", "XXX"),
        ("constant", "origin", "constant", "JFK"),
        ("constant_number", "pressure", "constant", "1013"),
        ("gone", "temp", "all_missing", None),
        ("most_missing", "humid", "missing_rate", None),
    ],
)
def test_a_broken_pipeline_is_told_from_a_changing_world(
    reports: Any, broken: str, feature: str, cause: str, detail: str | None
) -> None:
    report = reports[broken]
    assert report["verdict"] == "pipeline_fault"
    assert report["drifted"] == [feature]
    assert report["causes"] == {feature: cause}
    if detail:
        assert report["features"][feature]["detail"] == detail
    assert f"{cause} ({detail})" in report["text"] if detail else cause in report["text"]
    assert report["lost"] == ([feature] if cause == "all_missing" else [])


def test_one_new_airport_and_a_few_missing_values_are_no_fault(reports: Any) -> None:
    assert reports["new_airport"]["verdict"] in ("stable", "drift")
    assert "new_category" not in reports["new_airport"]["causes"].values()
    assert (reports["some_missing"]["verdict"], reports["some_missing"]["causes"]) == (
        "drift",
        {"humid": "missing_rate"},
    )
    humid = reports["some_missing"]["features"]["humid"]
    assert humid["missing_current"] == pytest.approx(0.2, abs=0.02)
    assert humid["missing_p_value"] < 1e-6 < 0.01 < humid["p_value"]


def test_seasons_are_no_faults(check: Any, flights_raw: Path, tmp_path: Path) -> None:
    folders = {}
    for name, months in {"winter": (1, 3), "july": (7, 7), "spring": (4, 6)}.items():
        folders[name] = tmp_path / name
        folders[name].mkdir()
        flights = flights_examples.months(flights_raw, *months)[flights_examples.FEATURES]
        pq.write_table(flights_examples.to_arrow(flights), folders[name] / "flights.parquet")
    found = check("seasons", params={name: str(folder) for name, folder in folders.items()})
    assert found["july"]["verdict"] == found["spring"]["verdict"] == found["july_all"]["verdict"] == "drift"
    assert found["july"]["drifted"][:2] == ["temp", "dewp"]
    assert set(found["spring"]["drifted"]) == {"temp", "dewp", "precip"}
    assert set(found["july"]["causes"].values()) == set(found["july_all"]["causes"].values()) == {"covariate_shift"}


def test_too_few_rows_are_insufficient(reports: Any, choices: Any) -> None:
    assert (reports["few"]["verdict"], reports["few"]["min_rows"], reports["few"]["rows_current"]) == (
        "insufficient", 100, 50,
    )  # fmt: skip
    assert (choices["fixed"]["verdict"], choices["fixed"]["min_rows"]) == ("insufficient", 5000)


def test_reports_are_strict_json_with_both_histograms(reports: Any) -> None:
    value = reports["celsius"]
    text = json.dumps(value, allow_nan=False)
    assert json.loads(text) == value
    temp = value["features"]["temp"]
    assert len(temp["histogram_reference"]) == len(temp["histogram_current"]) == 10
    for side in (2, 3):
        assert math.fsum(row[side] for row in temp["common_histogram"]) == pytest.approx(1, abs=1e-4)
    assert all(
        row[1] == following[0]
        for row, following in zip(temp["common_histogram"], temp["common_histogram"][1:], strict=False)
    )
    carrier = value["features"]["carrier"]["common_histogram"]
    assert carrier[0][0] in ("UA", "B6", "EV") and sum(row[1] for row in carrier) == pytest.approx(1, abs=1e-4)
    first, header, *rows = value["text"].splitlines()
    assert first.startswith("pipeline_fault: 4,000 rows against ")
    assert header.split() == ["feature", "measure", "score", "threshold", "p", "missing", "drifted"]
    assert len(rows) == len(value["features"]) and rows[0].startswith("temp ")


def test_with_a_schema_a_change_must_be_significant_and_above_its_threshold(choices: Any) -> None:
    schema = choices["schema"]["features"]
    assert set(schema) == {"normal", "three"}
    normal, three = schema["normal"], schema["three"]
    assert (normal["measure"], normal["threshold"], three["measure"], three["threshold"]) == (
        "jensen_shannon", 0.0001, "l_infinity", 0.05,
    )  # fmt: skip
    assert normal["score"] > normal["threshold"]
    assert normal["drifted"] == (normal["p_value"] <= 0.01)
    assert three["score"] < three["threshold"] and not three["drifted"]
    drift = choices["drift"]["features"]
    assert (drift["normal"]["measure"], drift["normal"]["threshold"]) == ("jensen_shannon_quantiles", 0.9)
    assert not drift["normal"]["drifted"] and "lognormal" in drift


def test_fixed_thresholds_alone_are_tfdvs(choices: Any) -> None:
    for name, skew in choices["fixed_small"]["features"].items():
        assert (skew["p_value"], skew["missing_p_value"]) == (None, None)
        assert skew["threshold"] == (0.2 if skew["measure"] == "jensen_shannon" else 0.05), name
        assert skew["drifted"] == (skew["score"] > skew["threshold"]), name
    assert choices["fixed_small"]["alpha"] is None


def test_measures_and_thresholds_can_be_chosen_and_results_repeat(choices: Any) -> None:
    chosen = choices["measures"]["features"]
    assert chosen["normal"]["measure"] == "wasserstein"
    assert chosen["normal"]["drifted"] and chosen["normal"]["score"] == pytest.approx(0.25, abs=0.08)
    assert chosen["lognormal"]["measure"] == "kolmogorov_smirnov"
    assert not choices["thresholds"]["features"]["normal"]["drifted"]
    assert choices["thresholds"]["features"]["normal"]["p_value"] < 0.01
    assert choices["again"]
    assert set(choices["every"]) == {
        "jensen_shannon", "kolmogorov_smirnov", "population_stability_index", "wasserstein", "wasserstein_normalized",
    }  # fmt: skip


def test_without_a_schema_what_both_sides_have_is_compared(choices: Any) -> None:
    assert choices["unmatched"]["unmatched"] == ["integers", "three"]
    assert set(choices["unmatched"]["features"]) == set(choices["thresholds"]["features"]) - {"integers", "three"}


def test_bad_input_is_named(choices: Any) -> None:
    words = {
        "alpha": "alpha is 2.0, expected above 0 and below 1, or None",
        "min_rows": "min_rows is 0, expected at least 1",
        "missing_threshold": "missing_threshold is -1, expected 0 to 1",
        "comparator": "comparator is 'both', expected 'skew' or 'drift'",
        "measure": "measures['normal'] is 'l_infinity', expected one of jensen_shannon, ",
        "feature": "thresholds names feature 'nobody', which is not compared",
        "type": "feature 'normal' is STRING in the current rows, but FLOAT in the reference",
        "missing": "feature 'three' is not among the current rows",
        "nothing": "small_integers, thousands, three, those of the current rows are other",
        "no_comparator": "nothing to compare: the schema has no skew_comparator for a feature of the reference",
    }
    assert set(choices["errors"]) == set(words)
    for name, expected in words.items():
        assert expected in choices["errors"][name]
