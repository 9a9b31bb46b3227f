"""Measures of skew: equal to TFDV's and to those of the very rows; what a report says of broken and of changed data."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from random_tables import random_table
from scipy import stats
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.monitoring.skew import detect_skew
from airflow_hops.ml.monitoring.skew.distribution import Numbers, distribution
from airflow_hops.ml.monitoring.skew.measures import CATEGORICAL, NUMERIC, aligned_counts, every_score
from airflow_hops.ml.schemas import infer_schema
from airflow_hops.ml.schemas.validation import find_anomalies
from airflow_hops.ml.statistics import generate_statistics, load_statistics
from airflow_hops.ml.statistics.summary import features_by_name
from tests import flights_examples

pytestmark = pytest.mark.runtime

_CATEGORICAL_TYPES = {1: "l_infinity", 2: "jensen_shannon", 3: "normalized_abs_difference"}


def test_scores_are_tfdvs_own(flights_statistics: Artifact, shared_store: ArtifactStore) -> None:
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(4):
        sizes = [int(10 ** random.uniform(0.5, 3.7)) for _ in range(2)]
        pairs.append([generate_statistics(_with_oddities(random_table(n, random), random)) for n in sizes])
    folder = shared_store.local(flights_statistics)
    flights = [load_statistics(folder / split / "FeatureStats.pb") for split in ("train", "eval")]
    compared = set()
    for reference, current in [*pairs, flights, flights[::-1]]:
        for source in ("STANDARD", "QUANTILES"):
            for name, measure, theirs, ours in _both_scores(reference, current, source):
                compared.add((name, measure))
                assert ours == pytest.approx(theirs, abs=1e-9), (name, measure)
    assert {measure for _, measure in compared} == {
        "jensen_shannon", "jensen_shannon_quantiles", "l_infinity", "normalized_abs_difference",
    }  # fmt: skip
    assert {name for name, _ in compared} > {"infinite", "constant", "outlier", "temp", "carrier"}


def _with_oddities(table: pa.Table, random: np.random.Generator) -> pa.Table:
    rows = table.num_rows
    values = random.normal(size=rows)
    infinite = np.where(random.random(rows) < 0.1, random.choice([-np.inf, np.inf], rows), values)
    constant = np.full(rows, float(random.integers(0, 2)))
    outlier = np.where(np.arange(rows) == 0, 1e9, values)
    for name, column in {"infinite": infinite, "constant": constant, "outlier": outlier}.items():
        table = table.append_column(name, pa.array(column))
    return table


def _both_scores(reference: Any, current: Any, source: str) -> list[tuple[str, str, float, float]]:
    """Name, measure, TFDV's score and ours."""
    before, after = features_by_name(reference), features_by_name(current)
    schema = schema_pb2.Schema()
    for name, feature in before.items():
        comparator = schema.feature.add(name=name, type={0: 2, 1: 3, 2: 1}[feature.type]).skew_comparator
        comparator.jensen_shannon_divergence.threshold = 0
        if feature.WhichOneof("stats") == "num_stats":
            comparator.jensen_shannon_divergence.source.type = {"STANDARD": 2, "QUANTILES": 1}[source]
        else:
            comparator.infinity_norm.threshold = 0
            comparator.normalized_abs_difference.threshold = 0
    results = []
    anomalies = find_anomalies(reference, schema, serving=current)
    for info in anomalies.drift_skew_info:
        name = info.path.step[0]
        one, other = distribution(before[name]), distribution(after[name])
        for measurement in info.skew_measurements:
            if isinstance(one, Numbers) and isinstance(other, Numbers):
                measure = "jensen_shannon" if source == "STANDARD" else "jensen_shannon_quantiles"
                ours = float(NUMERIC[measure](one, other)[0])
            else:
                measure = _CATEGORICAL_TYPES[measurement.type]
                ours = float(CATEGORICAL[measure](*aligned_counts(one, other))[0])
            results.append((name, measure, float(measurement.value), ours))
    return results


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.3, 1.0), (0.0, 1.5), (2.0, 0.5), (6.0, 1.0)])
def test_measures_of_histograms_are_those_of_the_rows(shift: float, scale: float) -> None:
    random = np.random.default_rng(1)
    before, after = random.normal(50, 10, 20_000), random.normal(50 + 10 * shift, 10 * scale, 5_000)
    ours = detect_skew(pa.table({"x": before}), pa.table({"x": after})).features["x"].scores
    edges = np.quantile(before, np.linspace(0, 1, 11))
    edges[[0, -1]] = -np.inf, np.inf
    counts = [np.histogram(values, edges)[0] + 0.5 for values in (before, after)]
    shares = [count / count.sum() for count in counts]
    # Ten buckets of each kind tell a CDF to within about two hundredths.
    assert ours["kolmogorov_smirnov"] == pytest.approx(stats.ks_2samp(before, after).statistic, abs=0.02)
    assert ours["wasserstein"] == pytest.approx(stats.wasserstein_distance(before, after), abs=0.02 * before.std())
    assert ours["wasserstein_normalized"] == pytest.approx(ours["wasserstein"] / before.std(), rel=1e-3)
    expected = ((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum()
    assert ours["population_stability_index"] == pytest.approx(expected, rel=0.1, abs=0.005)


class Flights:
    """Four thousand flights of a winter, which may be broken, against the others."""

    def __init__(self, raw: Path) -> None:
        winter = flights_examples.months(raw, 1, 3)[flights_examples.FEATURES]
        table = flights_examples.to_arrow(winter[winter.index % 3 == 0])
        order = np.random.default_rng(5).permutation(table.num_rows)
        self.now = table.take(pa.array(order[:4000]))
        self.reference = generate_statistics(table.take(pa.array(order[4000:])))

    def report(self, name: str | None = None, values: Any = None) -> Any:
        """The report on the flights with other values in one column."""
        now = self.now if name is None else self.now.set_column(self.now.column_names.index(name), name, values)
        return detect_skew(self.reference, now)

    def missing(self, name: str, share: float) -> pa.Array:
        random = np.random.default_rng(6)
        return pa.array([None if random.random() < share else value for value in self.now[name].to_pylist()])

    def elsewhere(self, every: int) -> pa.Array:
        """Destinations, of which some are an airport that there was not."""
        return pa.array(["XXX" if i % every == 0 else name for i, name in enumerate(self.now["dest"].to_pylist())])


@pytest.fixture(scope="module")
def flights(flights_raw: Path) -> Flights:
    return Flights(flights_raw)


def test_unchanged_flights_are_stable_and_a_single_outlier_changes_nothing(flights: Flights) -> None:
    speeds = pa.array([1e6, *flights.now["wind_speed"].to_pylist()[1:]])
    for report in (flights.report(), outlier := flights.report("wind_speed", speeds)):
        assert (report.verdict, report.drifted) == ("stable", ())
        assert all(skew.cause is None for skew in report.features.values())
    assert outlier.features["wind_speed"].scores["jensen_shannon"] > 0.5


BROKEN = {
    "celsius": lambda f: pc.divide(pc.subtract(f.now["temp"], 32.0), 1.8),
    "thousandth": lambda f: pc.divide(f.now["distance"], 1000.0),
    "lower_case": lambda f: pc.utf8_lower(f.now["carrier"]),
    "new_airports": lambda f: f.elsewhere(5),
    "constant": lambda f: pa.array(["JFK"] * 4000),
    "constant_number": lambda f: pa.array([1013.0] * 4000),
    "gone": lambda f: pa.array([float("nan")] * 4000),
    "most_missing": lambda f: f.missing("humid", 0.7),
}


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
    flights: Flights, broken: str, feature: str, cause: str, detail: str | None
) -> None:
    report = flights.report(feature, BROKEN[broken](flights))
    value = report.to_dict()
    assert value["verdict"] == "pipeline_fault"
    assert value["drifted"] == [feature]
    assert value["causes"] == {feature: cause}
    if detail:
        assert value["features"][feature]["detail"] == detail
    assert (f"{cause} ({detail})" if detail else cause) in str(report)
    assert value["lost"] == ([feature] if cause == "all_missing" else [])


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e-300, 1e200, 1e300])
def test_causes_do_not_depend_on_the_size_of_values(size: float) -> None:
    random = np.random.default_rng(0)
    reference, current = random.gamma(9, 1, 3000), random.gamma(9, 1, 3000)
    in_feet = np.where(random.random(3000) < 0.4, current * 3.28084, current)

    def cause(values: Any) -> tuple[str | None, str | None]:
        skew = detect_skew(pa.table({"x": reference * size}), pa.table({"x": values * size})).features["x"]
        return skew.cause, skew.detail

    assert cause(current * 1.5) == ("covariate_shift", None)
    name, detail = cause(in_feet)
    assert name == "unit_change" and re.fullmatch(r"metre to foot, in about (3[7-9]|4[0-3])% of the rows", detail or "")


def test_one_new_airport_and_a_few_missing_values_are_no_fault(flights: Flights) -> None:
    airport = flights.report("dest", flights.elsewhere(200)).to_dict()
    assert airport["verdict"] in ("stable", "drift")
    assert "new_category" not in airport["causes"].values()
    some = flights.report("humid", flights.missing("humid", 0.2)).to_dict()
    assert (some["verdict"], some["causes"]) == ("drift", {"humid": "missing_rate"})
    humid = some["features"]["humid"]
    assert humid["missing_current"] == pytest.approx(0.2, abs=0.02)
    assert humid["missing_p_value"] < 1e-6 < 0.01 < humid["p_value"]


def test_seasons_are_no_faults(flights_raw: Path) -> None:
    winter, july, spring = (
        flights_examples.to_arrow(flights_examples.months(flights_raw, *months)[flights_examples.FEATURES])
        for months in ((1, 3), (7, 7), (4, 6))
    )
    reference = generate_statistics(winter)
    schema = infer_schema(reference)
    in_july, in_spring = (detect_skew(reference, current, schema=schema) for current in (july, spring))
    by_p_values = detect_skew(reference, july)
    assert in_july.verdict == in_spring.verdict == by_p_values.verdict == "drift"
    assert list(in_july.drifted)[:2] == ["temp", "dewp"]
    assert set(in_spring.drifted) == {"temp", "dewp", "precip"}
    for report in (in_july, by_p_values):
        assert set(report.to_dict()["causes"].values()) == {"covariate_shift"}


def test_too_few_rows_are_insufficient(flights: Flights) -> None:
    few = detect_skew(flights.reference, flights.now.slice(0, 50))
    assert (few.verdict, few.min_rows, few.rows_current) == ("insufficient", 100, 50)
    fixed = _report(alpha=None)
    assert (fixed["verdict"], fixed["min_rows"]) == ("insufficient", 5000)


def test_reports_are_strict_json_with_both_histograms(flights: Flights) -> None:
    report = flights.report("temp", BROKEN["celsius"](flights))
    value = report.to_dict()
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
    first, header, *rows = str(report).splitlines()
    assert first.startswith("pipeline_fault: 4,000 rows against ")
    assert header.split() == ["feature", "measure", "score", "threshold", "p", "missing", "drifted"]
    assert len(rows) == len(value["features"]) and rows[0].startswith("temp ")


@cache
def _tables() -> tuple[pa.Table, pa.Table]:
    """A table, and a smaller one that has moved."""
    random = np.random.default_rng(6)
    return random_table(20_000, random), random_table(2_000, random, 0.25)


@cache
def _sides() -> tuple[Any, Any]:
    before, now = _tables()
    return generate_statistics(before), generate_statistics(now)


def _report(**arguments: Any) -> Any:
    return detect_skew(*_sides(), **arguments).to_dict()


@pytest.fixture(scope="module")
def schema() -> Any:
    """A schema with comparators of few features."""
    schema = infer_schema(_sides()[0])
    for feature in schema.feature:
        if feature.name == "normal":
            feature.skew_comparator.jensen_shannon_divergence.threshold = 0.0001
            feature.drift_comparator.jensen_shannon_divergence.threshold = 0.9
            feature.drift_comparator.jensen_shannon_divergence.source.type = 1
        elif feature.name != "three":
            feature.ClearField("skew_comparator")
    return schema


def test_with_a_schema_a_change_must_be_significant_and_above_its_threshold(schema: Any, tmp_path: Path) -> None:
    path = tmp_path / "reference.pb"
    path.write_bytes(_sides()[0].SerializeToString())
    result = detect_skew(path, _sides()[1], schema=schema).to_dict()["features"]
    assert set(result) == {"normal", "three"}
    normal, three = result["normal"], result["three"]
    assert (normal["measure"], normal["threshold"], three["measure"], three["threshold"]) == (
        "jensen_shannon", 0.0001, "l_infinity", 0.05,
    )  # fmt: skip
    assert normal["score"] > normal["threshold"]
    assert normal["drifted"] == (normal["p_value"] <= 0.01)
    assert three["score"] < three["threshold"] and not three["drifted"]
    drift = _report(schema=schema, comparator="drift")["features"]
    assert (drift["normal"]["measure"], drift["normal"]["threshold"]) == ("jensen_shannon_quantiles", 0.9)
    assert not drift["normal"]["drifted"] and "lognormal" in drift


def test_fixed_thresholds_alone_are_tfdvs() -> None:
    fixed = _report(alpha=None, min_rows=100)
    for name, skew in fixed["features"].items():
        assert (skew["p_value"], skew["missing_p_value"]) == (None, None)
        assert skew["threshold"] == (0.2 if skew["measure"] == "jensen_shannon" else 0.05), name
        assert skew["drifted"] == (skew["score"] > skew["threshold"]), name
    assert fixed["alpha"] is None


def test_measures_and_thresholds_can_be_chosen_and_results_repeat() -> None:
    chosen = _report(measures={"normal": "wasserstein"})["features"]
    assert chosen["normal"]["measure"] == "wasserstein"
    assert chosen["normal"]["drifted"] and chosen["normal"]["score"] == pytest.approx(0.25, abs=0.08)
    assert chosen["lognormal"]["measure"] == "kolmogorov_smirnov"
    normal = _report(thresholds={"normal": 0.9})["features"]["normal"]
    assert not normal["drifted"] and normal["p_value"] < 0.01
    assert _report() == _report()
    assert set(every_score(*(distribution(features_by_name(side)["normal"]) for side in _sides()))) == {
        "jensen_shannon", "kolmogorov_smirnov", "population_stability_index", "wasserstein", "wasserstein_normalized",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"alpha": 2.0}, "alpha is 2.0, expected above 0 and below 1, or None"),
        ({"min_rows": 0}, "min_rows is 0, expected at least 1"),
        ({"missing_threshold": -1}, "missing_threshold is -1, expected 0 to 1"),
        ({"comparator": "both"}, "comparator is 'both', expected 'skew' or 'drift'"),
        (
            {"measures": {"normal": "l_infinity"}},
            "measures['normal'] is 'l_infinity', expected one of jensen_shannon, ",
        ),
        ({"thresholds": {"nobody": 0.1}}, "thresholds names feature 'nobody', which is not compared"),
        (
            {"schema": schema_pb2.Schema()},
            "nothing to compare: the schema has no skew_comparator for a feature of the reference",
        ),
    ],
)
def test_a_bad_argument_is_named(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        detect_skew(*_sides(), **argument)
    assert words in str(refused.value)


def test_what_both_tables_have_is_compared_and_what_a_schema_misses_is_refused(schema: Any) -> None:
    reference, now = _sides()[0], _tables()[1]
    with pytest.raises(BadInput, match="feature 'normal' is STRING in the current rows, but FLOAT in the reference"):
        detect_skew(reference, now.set_column(0, "normal", pa.array(["x"] * 2000)), schema=schema)
    with pytest.raises(BadInput, match="feature 'three' is not among the current rows"):
        detect_skew(reference, now.drop(["three"]), schema=schema)
    both = detect_skew(_tables()[0].drop(["integers"]), now.drop(["three"])).to_dict()
    assert both["unmatched"] == ["integers", "three"]
    assert set(both["features"]) == set(now.column_names) - {"integers", "three"}
    with pytest.raises(BadInput, match="small_integers, thousands, three, those of the current rows are other"):
        detect_skew(reference, pa.table({"other": [1, 2]}))
