"""Reports of comparisons: of unchanged, changed and broken data, of few rows, odd columns, and other options."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tensorflow_metadata.proto.v0 import schema_pb2
from test_skew_distances import random_table

from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.distances.detect import compare_sides, side_of
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.schema import infer_schema
from airflow_hops.ml.skew import detect_skew
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.validation import list_anomalies, validate_statistics
from airflow_hops.ml.validation.stage import add_drift
from tests import flights_examples


class Flights:
    """Four thousand flights of a winter, which may be broken, against the others."""

    def __init__(self, raw: Path) -> None:
        winter = flights_examples.months(raw, 1, 3)[flights_examples.FEATURES]
        table = flights_examples.to_arrow(winter[winter.index % 3 == 0])
        order = np.random.default_rng(5).permutation(table.num_rows)
        self.now, self.reference = table.take(pa.array(order[:4000])), table.take(pa.array(order[4000:]))

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


BROKEN: list[tuple[str, Callable[[Flights], Any], str, str | None, str]] = [
    ("temp", lambda f: pc.divide(pc.subtract(f.now["temp"], 32.0), 1.8), "unit_change", "Fahrenheit to Celsius",
     r"median [\d.]+, [\d.]+ in the reference"),
    ("distance", lambda f: pc.divide(f.now["distance"], 1000.0), "unit_change", "thousand, backwards",
     "about 99.9% smaller than in the reference"),
    ("carrier", lambda f: pc.utf8_lower(f.now["carrier"]), "new_category", None,
     r"'\w\w' in \d+% of the rows, \d+% in the reference"),
    ("dest", lambda f: f.elsewhere(5), "new_category", "XXX", "'XXX' in 20% of the rows, 0% in the reference"),
    ("origin", lambda f: pa.array(["JFK"] * 4000), "constant", "JFK",
     r"'JFK' in 100% of the rows, \d+% in the reference"),
    ("pressure", lambda f: pa.array([1013.0] * 4000), "constant", "1013", r"median 1013, [\d.]+ in the reference"),
    ("temp", lambda f: pa.array([float("nan")] * 4000), "all_missing", None, "no values"),
    ("humid", lambda f: f.missing("humid", 0.7), "missing_rate", None,
     r"missing in (69|70|71)% of the rows, 0.08% in the reference"),
    # Most flights have no rain: few rows have changed, and those in another unit
    ("precip", lambda f: pc.multiply(f.now["precip"], 100.0), "unit_change", None, "values other than 0: "),
]  # fmt: skip


@pytest.mark.parametrize(("feature", "broken", "cause", "detail", "words"), BROKEN)
def test_drift_cause_is_named(
    flights: Flights, feature: str, broken: Any, cause: str, detail: str | None, words: str
) -> None:
    report = flights.report(feature, broken(flights))
    value = report.to_dict()
    assert value["verdict"] == "pipeline_fault"
    assert value["drifted"] == [feature] == [next(iter(value["features"]))]
    assert value["causes"] == {feature: cause}
    if detail:
        assert value["features"][feature]["detail"] == detail
    assert re.match(words, value["features"][feature]["summary"])
    assert (f"{cause} ({detail})" if detail else cause) in str(report)
    assert value["lost"] == ([feature] if cause == "all_missing" else [])


@pytest.mark.parametrize("size", [1.0, 1e-300, 1e300])
def test_causes_do_not_depend_on_the_size_of_values(size: float) -> None:
    random = np.random.default_rng(0)
    reference, current = random.gamma(9, 1, 3000), random.gamma(9, 1, 3000)
    in_feet = np.where(random.random(3000) < 0.4, current * 3.28084, current)

    def skew_of(values: Any) -> Any:
        return detect_skew(*(pa.table({"height": each * size}) for each in (reference, values))).features["height"]

    larger = skew_of(current * 1.5)
    assert (larger.cause, larger.detail) == ("covariate_shift", None)
    assert re.fullmatch(r"about (4\d|5\d)% larger than in the reference", larger.summary)
    feet = skew_of(in_feet)
    assert feet.cause == "unit_change"
    assert re.fullmatch(r"metre to foot, in about (3[7-9]|4[0-3])% of the rows", feet.detail)


def test_unit_change_with_few_values_is_a_fault() -> None:
    random = np.random.default_rng(0)
    kinds = {"flag": (random.random(3000) < 0.4).astype(float), "grade": random.integers(1, 4, 3000).astype(float)}
    for scale, detail, rows in ((100.0, "hundred", 300), (0.1, "ten, backwards", 2000), (60.0, "sixty", 300)):
        old, new = pa.table(kinds), {name: random.choice(values, rows) * scale for name, values in kinds.items()}
        for skew in detect_skew(old, pa.table(new)).features.values():
            assert (skew.drifted, skew.cause, skew.detail) == (True, "unit_change", detail)


def test_one_new_airport_and_few_missing_values_are_not_faults(flights: Flights) -> None:
    airport = flights.report("dest", flights.elsewhere(200)).to_dict()
    assert airport["verdict"] in ("stable", "drift")
    assert "new_category" not in airport["causes"].values()
    some = flights.report("humid", flights.missing("humid", 0.2)).to_dict()
    assert (some["verdict"], some["causes"]) == ("drift", {"humid": "missing_rate"})
    humid = some["features"]["humid"]
    assert humid["missing_current"] == pytest.approx(0.2, abs=0.02)
    assert humid["missing_p_value"] < 1e-6 < 0.01 < humid["p_value"]


@cache
def _sides() -> tuple[Side, Side]:
    """A table, and a smaller one that has moved."""
    random = np.random.default_rng(6)
    return side_of(random_table(10_000, random)), side_of(random_table(2_000, random, 0.25))


def _tables() -> tuple[pa.Table, pa.Table]:
    one, other = (side.sample for side in _sides())
    assert one is not None and other is not None
    return one, other


def _report(**arguments: Any) -> Any:
    return detect_skew(*_tables(), **arguments).to_dict()


@pytest.mark.slow
def test_too_few_rows_are_insufficient_and_thresholds_alone_decide_without_alpha(flights: Flights) -> None:
    few = detect_skew(flights.reference, flights.now.slice(0, 50))
    assert (few.verdict, few.min_rows, few.rows_current) == ("insufficient", 100, 50)
    fixed = _report(alpha=None)
    assert (fixed["verdict"], fixed["min_rows"], fixed["alpha"]) == ("insufficient", 5000, None)
    for name, skew in _report(alpha=None, min_rows=100)["features"].items():
        assert (skew["p_value"], skew["missing_p_value"], skew["threshold"]) == (None, None, 0.05), name
        assert skew["drifted"] == (skew["score"] > 0.05), name


def test_reports_are_strict_json_with_common_buckets(flights: Flights) -> None:
    report = flights.report("temp", BROKEN[0][1](flights))
    value = report.to_dict()
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    temp = value["features"]["temp"]["common_histogram"]
    for side in (2, 3):
        assert math.fsum(row[side] for row in temp) == pytest.approx(1, abs=1e-4)
    assert all(row[1] == following[0] for row, following in pairwise(temp))
    carrier = value["features"]["carrier"]["common_histogram"]
    assert carrier[0][0] in ("UA", "B6", "EV") and sum(row[1] for row in carrier) == pytest.approx(1, abs=1e-4)
    first, header, *rows = str(report).splitlines()
    assert first.startswith("pipeline_fault: 4,000 rows against ")
    assert header.split() == ["feature", "measure", "score", "threshold", "p", "missing", "drifted"]
    assert len(rows) == len(value["features"]) and rows[0].startswith("temp ")


@pytest.mark.slow
def test_schema_feature_and_global_thresholds_are_applied() -> None:
    by_default = _report()["features"]
    assert {skew["measure"] for skew in by_default.values()} == {"distance"}
    assert by_default["normal"]["drifted"] and by_default["normal"]["score"] == pytest.approx(0.1, abs=0.04)
    assert list(by_default) == [
        *(n for n, s in by_default.items() if s["drifted"]),
        *(n for n, s in by_default.items() if not s["drifted"]),
    ]
    normal = _report(thresholds={"normal": 0.9})["features"]["normal"]
    assert not normal["drifted"] and normal["p_value"] < 0.01 and normal["threshold"] == 0.9
    assert not _report(threshold=0.9)["drifted"]
    schema = infer_schema(_sides()[0].statistics, comparators={"normal": {"distance": 0.3}, "three": {}})
    features = _report(schema=schema)["features"]
    assert (features["normal"]["threshold"], features["normal"]["drifted"]) == (0.3, False)
    assert "three" not in features and features["lognormal"]["threshold"] < 0.06
    tag = next(feature for feature in schema.feature if feature.name == "normal").annotation.tag
    tag[0] = "distance:much"
    with pytest.raises(BadInput, match="feature 'normal' has the tag 'distance:much', expected distance:<0 to 1>"):
        _report(schema=schema)
    assert _report() == _report()


def test_thresholds_of_tfdvs_measures_are_judged_by_tfdv_and_by_the_test() -> None:
    comparators = {
        "normal": {"jensen_shannon": 0.0001}, "few_floats": {"jensen_shannon": 0.0}, "three": {"infinity_norm": 0.5},
    }  # fmt: skip
    features = _report(schema=infer_schema(_sides()[0].statistics, comparators=comparators))["features"]
    assert {name: (features[name]["measure"], features[name]["drifted"]) for name in (*comparators, "lognormal")} == {
        "normal": ("jensen_shannon", True),
        "few_floats": ("jensen_shannon", False),  # above its threshold by chance
        "three": ("l_infinity", False),
        "lognormal": ("distance", True),
    }
    assert features["few_floats"]["score"] > features["few_floats"]["threshold"] == 0.0


def test_statistics_without_rows_use_tfdv_thresholds(tmp_path: Path) -> None:
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(_sides()[0].statistics.SerializeToString())
    report = detect_skew(path, random_table(6_000, np.random.default_rng(1), 2.0))
    assert "The statistics of the reference hold no sample of rows" in report.notes[0]
    assert report.features["normal"].measure == "jensen_shannon" and report.features["normal"].p_value is None
    assert report.features["three"].threshold == 0.05 and "normal" in report.drifted
    vectors = pa.table({"v": pa.array([[1.0, 2.0]] * 300, pa.list_(pa.float32())), "x": np.arange(300.0)})
    alone = detect_skew(generate_statistics(vectors), vectors)
    assert list(alone.features) == ["x"] and alone.notes[1] == "Not compared, as TFDV has no measure of them: v"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"alpha": 2.0}, "alpha is 2.0, expected above 0 and below 1, or None"),
        ({"min_rows": 0}, "min_rows is 0, expected at least 1"),
        ({"missing_threshold": -1}, "missing_threshold is -1, expected 0 to 1"),
        ({"threshold": 5}, "threshold is 5, expected 0 to 1"),
        ({"thresholds": {"normal": 2}}, "thresholds['normal'] is 2, expected 0 to 1"),
        ({"comparator": "both"}, "comparator is 'both', expected 'skew' or 'drift'"),
        ({"thresholds": {"nobody": 0.1}}, "thresholds names feature 'nobody', which is not compared"),
        ({"schema": schema_pb2.Schema()}, "nothing to compare: the schema has no skew_comparator for a feature of the"),
        ({"time": "when"}, "there is no column 'when' of times; found normal, "),
        ({"time": "three"}, "column 'three' is string, expected times"),
    ],
)
def test_a_bad_argument_is_named(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        detect_skew(*_tables(), **argument)


def test_columns_missing_or_of_another_type_are_findings() -> None:
    reference, now = _tables()
    schema = infer_schema(_sides()[0].statistics)
    as_text = now.set_column(0, "normal", pa.array(["x"] * 2000)).drop(["three"])
    for report in (
        detect_skew(reference, as_text, schema=schema),
        detect_skew(_sides()[0].statistics, as_text, schema=schema),
    ):
        assert report.verdict == "pipeline_fault" and report.features.keys() > {"normal", "three", "lognormal"}
        assert (report.causes["normal"], report.lost) == ("other_type", ("three",))
        assert report.features["normal"].summary == "STRING in the current rows, FLOAT in the reference"
        assert json.loads(json.dumps(report.to_dict(), allow_nan=False)) and "not among the current rows" in str(report)
    both = detect_skew(reference.drop(["integers"]), now.drop(["three"])).to_dict()
    assert both["unmatched"] == ["integers", "three"]
    assert set(both["features"]) == set(now.column_names) - {"integers", "three"}
    with pytest.raises(BadInput, match="thousands, three, those of the current rows are other"):
        detect_skew(reference, pa.table({"other": [1, 2]}))


def _odd_table(rows: int, random: np.random.Generator) -> pa.Table:
    extremes = random.integers(-5, 5, rows)
    extremes[:2] = [np.iinfo(np.int64).min, np.iinfo(np.int64).max][: min(rows, 2)]
    normal = random.normal(size=rows)
    return pa.table(
        {
            "constant": np.full(rows, 3.0),
            "extremes": extremes,
            "infinite": np.where(random.random(rows) < 0.3, np.inf, normal),
            "only_infinite": np.full(rows, np.inf),
            "only_nan": np.full(rows, np.nan),
            "overflowing": normal * 1e308,
            "denormal": normal * 1e-310,
            "bits": random.integers(0, 2, rows),
            "cauchy": random.standard_cauchy(rows),
            "large_integers": random.integers(10**15, 10**16, rows),
            "identifiers": [f"x{value}" for value in random.integers(0, 10**9, rows)],
            "no_strings": pa.nulls(rows, pa.string()),
            "empty_strings": [""] * rows,
            "lists": [[value] * (index % 3) for index, value in enumerate(normal)],
        }
    )


@pytest.mark.parametrize("rows", [(1, 1), (2, 3), (50, 7), (3000, 1), (150, 3000)], ids=str)
def test_unusual_columns_and_samples_are_judged(rows: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    report = detect_skew(*(_odd_table(n, random) for n in rows), min_rows=1).to_dict()
    assert (report["verdict"], report["drifted"]) == ("stable", [])
    assert len(report["features"]) == 14
    for skew in report["features"].values():
        assert (skew["p_value"] is None) == (skew["score"] is None)
        assert skew["p_value"] is None or 0 < skew["p_value"] <= 1


def test_missing_infinite_and_overflowing_values_are_counted_separately() -> None:
    random = np.random.default_rng(4)

    def column(rows: int, infinite: float) -> pa.Table:
        return pa.table({"x": np.where(random.random(rows) < infinite, np.inf, random.normal(size=rows))})

    reference, some = column(4000, 0.0), column(4000, 0.1)
    more = detect_skew(reference, column(1000, 0.1))
    assert more.verdict == "drift"
    assert re.fullmatch("infinite in 1?[0-9]% of the rows, 0% in the reference", more.features["x"].summary or "")
    assert detect_skew(some, column(1000, 0.1)).verdict == "stable"
    all_ = detect_skew(reference, column(1000, 1.0)).to_dict()
    assert (all_["verdict"], all_["causes"]) == ("pipeline_fault", {"x": "all_missing"})
    one, same, other = (1.7e308 * random.uniform(-1, 1, rows) for rows in (3000, 1000, 1000))
    assert detect_skew(pa.table({"x": one}), pa.table({"x": same})).verdict == "stable"
    for values in (np.abs(same), other * 0.3):
        (skew,) = detect_skew(pa.table({"x": one}), pa.table({"x": values})).features.values()
        assert (skew.drifted, skew.cause) == (True, "covariate_shift")


def lists(seed: int, *, empty: float = 0.1, least: int = 1, rows: int = 2000) -> pa.Table:
    """Lists of text and of numbers, of ``least`` to ``least + 3`` values, and a share of empty ones."""
    random = np.random.default_rng(seed)
    sizes = np.where(random.random(rows) < empty, 0, random.integers(least, least + 4, rows))
    columns = {"text": [list(random.choice(["a", "b", "c"], n)) for n in sizes]}
    columns["numbers"] = [random.normal(size=n).tolist() for n in sizes]
    return pa.table(columns, pa.schema({"text": pa.list_(pa.string()), "numbers": pa.list_(pa.float64())}.items()))


def test_lists_that_become_empty_are_a_fault_and_longer_ones_drift() -> None:
    for empty, missing, cause in ((0.95, 0.9, "missing_rate"), (1.0, 1.0, "all_missing")):
        report = detect_skew(lists(1), lists(2, empty=empty))
        assert (report.verdict, set(report.drifted)) == ("pipeline_fault", {"text", "numbers"})
        assert set(report.causes.values()) == {cause}
        assert all(skew.missing_current >= missing for skew in report.features.values())
    for alpha in (0.01, None):
        report = detect_skew(lists(1), lists(2, least=3), alpha=alpha, threshold=0.5, min_rows=100)
        assert (report.verdict, set(report.drifted)) == ("drift", {"text", "numbers"})
        assert report.features["text"].summary == "4.11 values per row, 2.23 in the reference"


def few(seed: int, *, frequent: float = 0.3, rare: float = 0.0015, rows: int = 20_000) -> pa.Table:
    """Columns of few values, and columns with a rare value."""
    random = np.random.default_rng(seed)
    is_frequent, is_rare = random.random(rows) < frequent, random.random(rows) < rare
    grade = np.where(is_frequent, 5, random.integers(1, 5, rows))
    normal = random.normal(size=rows)
    return pa.table(
        {
            "flag": pa.array(is_frequent),
            "flag_as_integer": is_frequent.astype(int),
            "flag_as_float": pa.array(is_frequent.astype(float), mask=random.random(rows) < 0.1),
            "grade": grade,
            "grade_as_float": grade.astype(float),
            "grade_as_text": [f"grade {value}" for value in grade],
            "rare_flag": is_rare.astype(int),
            "rare_category": np.where(is_rare, "rare", np.where(normal > 0, "common", "usual")),
            "placeholder": np.where(is_rare, -999.0, normal),
            "mostly_zero": np.where(is_rare, np.exp(normal), 0.0),
            "normal": random.normal(size=rows),
        }
    )


FEW = ("flag", "flag_as_integer", "flag_as_float", "grade", "grade_as_float", "grade_as_text")


def test_columns_of_few_values_drift_like_text() -> None:
    reference, current = side_of(few(1)), side_of(few(2, frequent=0.7))
    schema = infer_schema(reference.statistics)
    for report in (detect_skew(few(1), few(2, frequent=0.7)), detect_skew(few(1), few(2, frequent=0.7), schema=schema)):
        assert set(report.drifted) == set(FEW)
        assert all(report.features[name].score == pytest.approx(0.4, abs=0.02) for name in FEW)
    anomalies = validate_statistics(current.statistics, schema, previous=reference.statistics)
    add_drift(anomalies, reference, current, schema)
    moved = {each.feature: (each.types, each.severity) for each in list_anomalies(anomalies, "train")}
    assert moved == dict.fromkeys(FEW, (("COMPARATOR_L_INFTY_HIGH",), "warning"))
    scores = {info.path.step[0]: info.drift_measurements[0].value for info in anomalies.drift_skew_info}
    assert scores["grade"] == pytest.approx(scores["grade_as_text"], abs=1e-3)


def test_rising_rare_value_is_found_without_threshold_and_new_numbers_between_few_values() -> None:
    reference, current = few(1), few(2, rare=0.0126)
    assert detect_skew(reference, current).verdict == "stable"
    report = detect_skew(reference, current, threshold=0)
    assert set(report.drifted) == {"rare_flag", "rare_category", "mostly_zero", "placeholder"}
    random = np.random.default_rng(3)
    whole, fractions = random.integers(1, 6, 5000).astype(float), random.uniform(1, 5, 5000)
    assert detect_skew(pa.table({"x": whole}), pa.table({"x": fractions})).drifted == ("x",)
    for seed in range(3):
        assert detect_skew(reference, few(100 + seed, rows=1000), threshold=0).verdict == "stable", seed


def weeks(first: int, count: int, *, warmer: float = 0.0) -> pa.Table:
    """Hours of weeks, with a daily rhythm, weekends and a season: no week is like a year."""
    hours = np.arange(first * 168, (first + count) * 168)
    random = np.random.default_rng(first)
    season, day = np.sin(2 * np.pi * hours / 8760), np.sin(2 * np.pi * hours / 24)
    spell = np.repeat(random.normal(0, 2, count * 7), 24)
    return pa.table(
        {
            "hour": hours * 3600,
            "degrees": 10 + warmer - 8 * season + 3 * day + spell,
            "weekend": (hours // 24 % 7 >= 5).astype(int),
        }
    )


def test_usual_weekly_variation_is_stable() -> None:
    year = weeks(0, 52)
    for week in (55, 80):
        assert "degrees" in detect_skew(year, weeks(week, 1)).drifted
        own = detect_skew(year, weeks(week, 1), time="hour")
        assert own.verdict == "stable", str(own)
        assert " windows of 6.96 days of the reference, up to 28 days from the same day" in own.notes[0]
    heated = detect_skew(year, weeks(80, 1, warmer=25.0), time="hour")
    assert heated.verdict != "stable" and heated.drifted == ("degrees",)
    assert detect_skew(year.slice(0, 168 * 30), weeks(58, 1, warmer=8.0), time="hour").verdict == "stable"
    unseasonal = detect_skew(year, weeks(65, 1, warmer=8.0), time="hour")
    assert unseasonal.drifted == ("degrees",) and "28 days from the same day of the year" in unseasonal.notes[0]
    short = detect_skew(weeks(0, 2), weeks(55, 1), time="hour")
    assert "expected 4: changes with the time are not told from drift" in short.notes[0]


def test_rows_differing_from_their_statistics_use_the_sample() -> None:
    statistics, now = _sides()[0].statistics, _sides()[1]
    report = compare_sides(Side(statistics, _tables()[1]), now, None, SkewTest())
    assert report.verdict == "stable" and report.rows_reference == 10_000
