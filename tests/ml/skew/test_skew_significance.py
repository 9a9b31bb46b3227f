"""p-values of skew: parts equal to SciPy's, no more false alarms than promised, real changes found."""

from __future__ import annotations

import functools
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from random_tables import random_table
from scipy.stats import ks_2samp, kstwo

from airflow_hops.ml.monitoring.skew import detect_skew
from airflow_hops.ml.monitoring.skew.distribution import Numbers, distribution
from airflow_hops.ml.monitoring.skew.measures import least_distance
from airflow_hops.ml.monitoring.skew.significance import judge_numbers, judge_values, kolmogorov_p_value
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.summary import features_by_name
from tests import flights_examples

pytestmark = pytest.mark.runtime


@pytest.mark.parametrize(("distance", "rows"), [(0.05, 900), (0.2, 60), (0.01, 90_000)])
def test_the_limiting_distribution_is_near_the_exact_one(distance: float, rows: int) -> None:
    assert kolmogorov_p_value(distance, rows) == pytest.approx(kstwo.sf(distance, rows), rel=0.1)


@functools.cache
def _reference(seed: int) -> dict[str, Any]:
    return features_by_name(generate_statistics(random_table(20_000, np.random.default_rng([seed, 20_000]))))


def _p_values(rows: int, draws: int, shift: float = 0.0) -> dict[str, dict[str, list[float]]]:
    """p-values of windows of ``rows`` rows against references of 20,000, by feature and measure."""
    random = np.random.default_rng(3)
    results: dict[str, dict[str, list[float]]] = {}
    for number in range(draws):
        reference = _reference(number // 4)
        current = features_by_name(generate_statistics(random_table(rows, random, shift)))
        for name, feature in reference.items():
            one, other = distribution(feature), distribution(current[name])
            judge: Any = judge_numbers if isinstance(one, Numbers) else judge_values
            measures = ("jensen_shannon", "kolmogorov_smirnov") if isinstance(one, Numbers) else ("l_infinity",)
            for measure in measures:
                p = judge(one, other, measure, random).p_value
                results.setdefault(name, {}).setdefault(measure, []).append(p)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 10_000])
def test_unchanged_samples_have_p_values_that_are_not_too_small(rows: int) -> None:
    result = _p_values(rows, draws=16)
    every = [p for feature in result.values() for values in feature.values() for p in values]
    assert len(every) == 16 * 15
    assert fmean(p <= 0.01 for p in every) <= 0.02
    assert fmean(p <= 0.1 for p in every) <= 0.12
    # They are no larger than they should be, where nothing makes them careful.
    for name, measure in (("normal", "kolmogorov_smirnov"), ("three", "l_infinity"), ("hundred", "l_infinity")):
        assert 0.1 < median(result[name][measure]) < 0.9


@pytest.mark.parametrize("rows", [100, 1000])
def test_random_windows_of_flights_are_stable(flights_raw: Path, rows: int) -> None:
    winter = flights_examples.months(flights_raw, 1, 3)[flights_examples.FEATURES]
    table, random = flights_examples.to_arrow(winter.iloc[::4]), np.random.default_rng(4)
    for _ in range(6):
        order = random.permutation(table.num_rows)
        sides = (generate_statistics(table.take(pa.array(part))) for part in (order[rows:], order[:rows]))
        report = detect_skew(*sides)
        assert report.verdict == "stable", report.drifted


@pytest.mark.slow
def test_real_changes_are_found_the_smaller_the_larger_the_window() -> None:
    def found(rows: int, shift: float) -> dict[str, float]:
        return {
            name: fmean(p <= 0.001 for p in values.get("kolmogorov_smirnov") or values["l_infinity"])
            for name, values in _p_values(rows, draws=6, shift=shift).items()
        }

    small, large = found(100, 0.25), found(10_000, 0.25)
    for name in ("normal", "small_integers", "integers", "mostly_zero"):
        assert small[name] <= 0.2
        assert large[name] >= 0.5, name
    assert large["few_floats"] == large["hundred"] == 0.0  # these do not move
    assert found(1000, 0.5)["normal"] == 1.0


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


@pytest.mark.parametrize("rows", [(1, 1), (2, 3), (50, 7), (3000, 1), (3000, 150), (150, 3000)], ids=str)
def test_awkward_columns_and_samples_of_any_size_are_judged(rows: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    sides = [generate_statistics(_odd_table(n, random)) for n in rows]
    numeric = [
        name for name, skew in detect_skew(*sides, min_rows=1).features.items() if skew.measure == "kolmogorov_smirnov"
    ]
    for measure in (
        "kolmogorov_smirnov", "jensen_shannon", "jensen_shannon_quantiles", "population_stability_index", "wasserstein",
    ):  # fmt: skip
        report = detect_skew(*sides, min_rows=1, measures=dict.fromkeys(numeric, measure)).to_dict()
        assert (report["verdict"], report["drifted"]) == ("stable", [])
        assert len(report["features"]) == 14
        for skew in report["features"].values():
            assert skew["p_value"] is None or 0 < skew["p_value"] <= 1
            # An area that overflows is judged, and is not JSON.
            assert skew["p_value"] is not None or skew["score"] is None


def _rough_columns(rows: int, random: np.random.Generator) -> dict[str, Any]:
    """Columns whose CDF between knots is anything but linear."""
    lower = random.random(rows) < 0.5
    return {
        "decile_of_zeros": (random.pareto(1.1, rows) * 10).astype(np.int64),
        "two_humps": np.where(lower, random.normal(size=rows), random.normal(10, 0.1, rows)),
        "mostly_zero": np.where(random.random(rows) < 0.7, 0.0, random.lognormal(size=rows)),
        "small_integers": random.poisson(2, rows) - 3,
        "rounded": np.round(random.normal(50, 10, rows), 1),
        "apart": np.full(rows, 5 if rows > 1000 else 6),
    }


def test_the_least_distance_is_never_more_than_that_of_the_rows() -> None:
    most = 0.0
    for seed in range(8):
        random = np.random.default_rng(seed)
        pair = [_rough_columns(rows, random) for rows in (4000, 500)]
        before, after = (features_by_name(generate_statistics(pa.table(columns))) for columns in pair)
        for name in before:
            least = least_distance(distribution(before[name]), distribution(after[name]))
            exact = ks_2samp(pair[0][name], pair[1][name]).statistic
            assert least <= exact + 0.002, name
            if name == "apart":  # 5 alone, and 6 alone
                assert least == exact == 1.0
            else:
                most = max(most, least)
    assert most > 0.02


def test_unchanged_columns_with_gaps_and_frequent_values_are_no_drift() -> None:
    results: dict[str, list[float]] = {"decile_of_zeros": [], "two_humps": [], "mostly_zero": []}
    for seed in range(24):
        random = np.random.default_rng([seed, 1000])
        sides = [features_by_name(generate_statistics(pa.table(_rough_columns(n, random)))) for n in (5000, 1000)]
        for name, p_values in results.items():
            judgement = judge_numbers(*(distribution(side[name]) for side in sides), "kolmogorov_smirnov", random)
            p_values.append(judgement.p_value)
    for name, p_values in results.items():
        assert sum(p <= 0.01 for p in p_values) <= 1, name


def test_a_share_of_infinities_that_moves_is_drift_and_nothing_but_them_is_missing() -> None:
    random = np.random.default_rng(4)

    def column(rows: int, infinite: float) -> pa.Table:
        return pa.table({"x": np.where(random.random(rows) < infinite, np.inf, random.normal(size=rows))})

    reference, some = column(4000, 0.0), column(4000, 0.1)
    more = detect_skew(reference, column(1000, 0.1))
    assert more.verdict == "drift" and (more.features["x"].p_value or 1) < 1e-6
    assert detect_skew(some, column(1000, 0.1)).verdict == "stable"
    all_ = detect_skew(reference, column(1000, 1.0)).to_dict()
    assert (all_["verdict"], all_["causes"]) == ("pipeline_fault", {"x": "all_missing"})


def test_numbers_whose_range_overflows_drift_like_others() -> None:
    random = np.random.default_rng(5)
    reference, same, other = (1.7e308 * random.uniform(-1, 1, rows) for rows in (3000, 1000, 1000))
    assert detect_skew(pa.table({"x": reference}), pa.table({"x": same})).verdict == "stable"
    for values in (np.abs(same), other * 0.1):
        (skew,) = detect_skew(pa.table({"x": reference}), pa.table({"x": values})).features.values()
        assert (skew.drifted, skew.measure, skew.cause) == (True, "kolmogorov_smirnov", "covariate_shift")
        assert skew.p_value is not None and skew.p_value < 1e-50
