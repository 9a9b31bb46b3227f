"""Distances of two samples: SciPy's and TFDV's, moved by no outlier, scale or rounding, and rarely by chance."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from campaigns import campaign
from scipy import stats

from airflow_hops.ml.distances.measures import compare, other_scores
from airflow_hops.ml.distances.sides import Kinds, Numbers, alike
from airflow_hops.ml.distances.tfdv_measures import measured_by_tfdv
from airflow_hops.ml.schema import infer_schema
from airflow_hops.ml.statistics import generate_statistics


def random_table(rows: int, random: np.random.Generator, shift: float = 0.0) -> pa.Table:
    """Columns of many shapes; ``shift`` moves each of them."""
    mostly_zero = np.where(random.random(rows) < 0.7 - shift / 4, 0.0, random.lognormal(size=rows))
    return pa.table(
        {
            "normal": random.normal(shift, 1, rows),
            "lognormal": random.lognormal(shift, 1.5, rows),
            "small_integers": random.poisson(2 + shift, rows),
            "integers": random.poisson(300 + 17 * shift, rows),
            "mostly_zero": mostly_zero,
            "few_floats": random.choice([1.1, 2.2, 4.4, 8.8, 17.6], rows),
            "three": random.choice(["a", "b", "c"], rows, p=[0.5, 0.3 + shift / 10, 0.2 - shift / 10]),
            "hundred": [f"v{value}" for value in np.minimum(random.zipf(1.5, rows), 100)],
            "thousands": [f"v{value}" for value in random.geometric(0.001, rows)],
        }
    )


def distance(reference: Any, current: Any, **options: Any) -> Any:
    sides = pa.table({"x": reference}), pa.table({"x": current})
    one, other = alike(sides, "x", width=None, seed=0, **options)
    assert one.distribution is not None and other.distribution is not None
    return compare(one.distribution, other.distribution, np.random.default_rng(0))


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.3, 1.5), (6.0, 1.0)])
def test_numeric_distance_and_p_value_match_scipy(shift: float, scale: float) -> None:
    random = np.random.default_rng(1)
    old, new = random.normal(50, 10, 2_000), random.normal(50 + 10 * shift, 10 * scale, 1_500)
    result, expected = distance(old, new), stats.ks_2samp(old, new, method="exact")
    assert result.distance == distance(new, old).distance
    assert result.distance == pytest.approx(expected.statistic, abs=1e-12)
    assert result.p_value == pytest.approx(expected.pvalue, rel=0.2)
    assert stats.kstwo.sf(result.by_chance(0.001), round(2_000 * 1_500 / 3_500)) == pytest.approx(0.001)
    scores = other_scores(Numbers(np.sort(old)), Numbers(np.sort(new)))
    assert scores["wasserstein"] == pytest.approx(stats.wasserstein_distance(old, new), abs=1e-6)
    edges = [-np.inf, *np.quantile(old, np.linspace(0.1, 0.9, 9)), np.inf]
    shares = [(count + 0.5) / (count + 0.5).sum() for count in (np.histogram(v, edges)[0] for v in (old, new))]
    index = ((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum()
    assert scores["population_stability_index"] == pytest.approx(index, abs=1e-6)


def test_distance_ignores_monotone_transformations_and_outliers() -> None:
    random = np.random.default_rng(2)
    old, new = random.lognormal(size=3_000), random.lognormal(0.2, size=1_000)
    plain = distance(old, new).distance
    assert plain == pytest.approx(2 * stats.norm.cdf(0.1) - 1, abs=0.03)
    for change in (np.log, np.sqrt, lambda v: 1e200 * v, lambda v: 1e-300 * v, lambda v: -1 / v):
        assert distance(change(old), change(new)).distance == pytest.approx(plain, abs=1e-12)
    assert distance(np.append(old, 1e300), new).distance == pytest.approx(plain, abs=1e-3)
    assert distance(old, old[:1_000].astype(np.float32)).p_value > 0.5
    assert distance(old, pa.array(old.astype(np.float32).astype(np.float64))).distance == 0.0
    assert distance(np.zeros(500), np.full(500, -0.0)).distance == 0.0
    assert distance([1, 2, 3] * 100, [True, False] * 100).distance > 0.5  # numbers of any width are numbers


def test_categories_have_total_variation_less_chance() -> None:
    random = np.random.default_rng(3)

    def drawn(rows: int, **shares: float) -> list[str]:
        return list(random.choice(list(shares), rows, p=list(shares.values())))

    moved = distance(drawn(20_000, a=0.5, b=0.3, c=0.2), drawn(20_000, a=0.4, b=0.3, c=0.3))
    assert moved.distance == pytest.approx(0.1, abs=0.015) and moved.p_value < 1e-6
    many = [f"v{value}" for value in random.integers(0, 5_000, 3_000)]
    same = distance(many[:2_000], many[2_000:])
    assert same.distance < 0.03 and same.p_value > 0.01
    rewritten = distance(many[:2_000], [value.upper() for value in many[2_000:]])
    assert rewritten.distance == 1.0 and rewritten.p_value < 1e-6
    assert compare(Kinds({b"a": 5}), Kinds({b"b": 7}), random).distance == 1.0
    assert compare(Kinds({b"a": 5}), Kinds({b"a": 7}), random).p_value == 1.0


def test_few_categories_near_the_threshold_have_exact_distance() -> None:
    for values, old, new in (
        (np.array([b"red", b"green", b"blue", b"white"]), [0.4, 0.3, 0.2, 0.1], [0.33, 0.37, 0.2, 0.1]),
        (np.array([0, 1]), [0.7, 0.3], [0.63, 0.37]),
        (np.arange(18), stats.poisson.pmf(range(18), 4), stats.poisson.pmf(range(18), 4.36)),
    ):
        scores = []
        for seed in range(20):
            random = np.random.default_rng(seed)
            counts = (random.multinomial(rows, np.array(p) / sum(p)) for rows, p in ((20_000, old), (1_500, new)))
            one, other = (
                Kinds({v: int(c) for v, c in zip(values.tolist(), side, strict=True) if c}) for side in counts
            )
            scores.append(compare(one, other, random).distance)
        assert 0.067 < fmean(scores) < 0.08


@campaign("rows, samples", (60, 10), (1_000, 30))
def test_p_values_of_unchanged_samples_are_calibrated(rows: int, samples: int) -> None:
    p_values: dict[str, list[float]] = {}
    for seed in range(samples):
        random = np.random.default_rng([seed, rows])
        sides = random_table(3_000, random), random_table(rows, random)
        for name in sides[0].column_names:
            one, other = alike(sides, name, width=None, seed=0)
            assert one.distribution is not None and other.distribution is not None
            p_values.setdefault(name, []).append(compare(one.distribution, other.distribution, random).p_value)
    every = [p for values in p_values.values() for p in values]
    assert sum(p <= 0.01 for p in every) <= stats.binom.ppf(0.999, len(every), 0.01)
    assert sum(p <= 0.1 for p in every) <= stats.binom.ppf(0.999, len(every), 0.1)
    for name in ("normal", "three", "hundred"):  # where nothing makes the test careful, they are no larger either
        assert 0.2 < median(p_values[name]) < 0.8, name


def test_p_value_of_few_unusual_rows_is_not_too_small() -> None:
    rare = {
        n: compare(Kinds({b"usual": 20_000}), Kinds({b"usual": 1_500 - n, b"odd": n}), np.random.default_rng(0))
        for n in (1, 2, 3)
    }
    for number, result in rare.items():
        exact = stats.fisher_exact([[0, 20_000], [number, 1_500 - number]]).pvalue
        assert result.p_value >= 0.3 * exact, number


def test_list_is_compared_by_one_value_and_its_length() -> None:
    random = np.random.default_rng(5)
    rows = [[float(i)] * int(n) for i, n in enumerate(random.integers(0, 4, 1_000))]
    one, _ = alike([pa.table({"x": rows}), pa.table({"x": rows})], "x", width=None, seed=0)
    assert isinstance(one.distribution, Numbers)
    assert one.distribution.values.tolist() == [row[0] for row in rows if row]
    assert one.missing == sum(not row for row in rows) and one.lengths.tolist() == sorted(map(len, rows))
    struct = pa.table({"s": pa.array([{"x": [1, 2]}, None, {"x": []}], pa.struct([("x", pa.list_(pa.int64()))]))})
    nested, _ = alike([struct, struct], "s.x", width=None, seed=0)
    assert (nested.rows, nested.missing) == (3, 2)
    absent, _ = alike([struct, struct], "nobody", width=None, seed=0)
    assert (absent.missing, absent.distribution) == (3, None)


def test_tfdv_measures_match_tfdv() -> None:
    random = np.random.default_rng(6)
    old, new = (generate_statistics(random_table(rows, random, shift)) for rows, shift in ((3_000, 0), (900, 0.4)))
    schema = infer_schema(
        old, comparators={"normal": {"jensen_shannon": 0.01}, "three": {"infinity_norm": 0.01}, "hundred": {}}
    )
    result = measured_by_tfdv(old, new, schema, "skew", ())
    info = tfdv.validate_statistics(old, schema, serving_statistics=new).drift_skew_info
    theirs = {each.path.step[0]: each.skew_measurements[0] for each in info}
    assert result.keys() == theirs.keys() == {"normal", "three"}
    measures = {"normal": "jensen_shannon", "three": "l_infinity"}
    assert result == {name: (measures[name], each.value, 0.01) for name, each in theirs.items()}
    by_default = measured_by_tfdv(old, new, None, "drift", ["lognormal", "hundred"])
    assert {name: threshold for name, (_, _, threshold) in by_default.items()} == {"lognormal": 0.2, "hundred": 0.05}
