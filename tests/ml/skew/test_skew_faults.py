"""Changes that are faults, and those that are not: random ones, of columns of every type, and in short windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.distances.decide import Judged, decide
from airflow_hops.ml.distances.report import FeatureSkew
from airflow_hops.ml.distances.sides import alike
from airflow_hops.ml.schema import infer_schema
from airflow_hops.ml.skew import detect_skew
from airflow_hops.ml.statistics import generate_statistics

Draw = Callable[[int], Any]
REFERENCE_ROWS = 6_000
NAMES = ("x", "f17", "amount", "cost_eur", "wait_minutes", "score", "visits", "ratio", "stars", "price", "sensor_b")
"""Names that name no unit of a small factor."""
FAR = {
    "a share to percent": 100.0, "percent to a share": 0.01, "second to millisecond": 1e3, "gram to kilogram": 1e-3,
    "second to minute": 1 / 60, "minute to second": 60.0, "hour to second": 3600.0, "second to hour": 1 / 3600,
    "byte to megabyte": 1e-6, "day to second": 86400.0, "millimetre to centimetre": 0.1, "ten": 10.0,
}  # fmt: skip
"""Conversions by factors so large that they need no name."""
NEAR = {
    "distance_km": (1 / 1.609344, 0.0), "trip_miles": (1.609344, 0.0), "height_m": (3.28084, 0.0),
    "altitude_ft": (0.3048, 0.0), "length_inch": (2.54, 0.0), "width_cm": (1 / 2.54, 0.0), "weight_kg": (2.204623, 0.0),
    "mass_lb": (0.45359237, 0.0), "wind_speed_ms": (3.6, 0.0), "speed_kmh": (1 / 3.6, 0.0),
    "speed_mph": (1.609344, 0.0),
    "volume_gallons": (3.785412, 0.0), "fuel_litres": (1 / 3.785412, 0.0), "temp_f": (1 / 1.8, -32 / 1.8),
    "temp_c": (1.8, 32.0), "temperature_kelvin": (1.0, -273.15), "temperature": (1.0, 273.15),
    "pressure_inhg": (33.86389, 0.0), "wind_knots": (1.852, 0.0), "duration_days": (24.0, 0.0),
}  # fmt: skip
"""Conversions by factors as the world changes by, of columns whose names name the unit or the quantity."""


@dataclass(frozen=True)
class Changed:
    name: str
    change: str
    reference: Any
    current: Any


def _populations(random: Any) -> dict[str, Draw]:
    """Populations of values, each with parameters drawn by ``random``."""
    scale, sigma = 10 ** random.uniform(-1, 4), random.uniform(0.2, 1.4)
    mean, spread, shape = random.uniform(20, 400), random.uniform(0.05, 0.5), random.uniform(0.8, 8)
    rate, zeros, digits = random.uniform(8, 300), random.uniform(0.1, 0.7), int(random.integers(0, 3))
    return {
        "log-normal": lambda n: scale * random.lognormal(0, sigma, n),
        "normal": lambda n: random.normal(mean, mean * spread, n),
        "centred": lambda n: random.normal(0, mean, n),
        "gamma": lambda n: scale * random.gamma(shape, 1, n),
        "uniform": lambda n: random.uniform(mean, 3 * mean, n),
        "bounded": lambda n: random.beta(shape, 2, n),
        "counts": lambda n: random.poisson(rate, n).astype(float),
        "wide counts": lambda n: random.negative_binomial(2, 2 / (2 + rate), n).astype(float),
        "heavy tails": lambda n: mean * (1 + random.pareto(2.5, n)),
        "heavy tails on both sides": lambda n: mean + mean * spread * random.standard_t(3, n),
        "with zeros": lambda n: np.where(random.random(n) < zeros, 0.0, scale * random.lognormal(0, sigma, n)),
        "rounded": lambda n: np.round(scale * random.lognormal(0, sigma, n), digits),
        "few numbers": lambda n: random.integers(1, 12, n).astype(float),
    }


def _temperatures(random: Any, name: str) -> dict[str, Draw]:
    """Populations of temperatures that there are, in the unit of the column."""
    mean, deviation = random.uniform(-5, 35), random.uniform(3, 12)
    low, tail = mean - random.uniform(5, 15), random.uniform(2, 8)
    unit = name.rpartition("_")[2]
    factor, shift = {"f": (1.8, 32.0), "kelvin": (1.0, 273.15)}.get(unit, (1.0, 0.0))
    return {
        "normal": lambda n: factor * random.normal(mean, deviation, n) + shift,
        "rounded": lambda n: np.round(factor * random.normal(mean, deviation, n) + shift, 1),
        "skewed": lambda n: factor * (low + random.gamma(tail, 2, n)) + shift,
    }


def _pick(random: Any, values: Any) -> Any:
    return list(values)[int(random.integers(len(values)))]


def world_changes(seed: int, count: int, rows: int) -> Iterator[Changed]:
    """Yields columns changed by a random factor, shift or mixture, also by whole numbers."""
    for number in range(count):
        random = np.random.default_rng([seed, rows, number])
        populations = _populations(random)
        population = _pick(random, populations)
        reference, now = (populations[population](n) for n in (REFERENCE_ROWS, rows))
        deviation = reference.std()
        factor = float(np.exp(random.uniform(np.log(1.15), np.log(5))))
        factor = _pick(random, (factor, 1 / factor, factor, round(factor, 1), float(random.integers(2, 9))))
        shift = _pick(random, (-1, 1)) * random.uniform(0.2, 3) * deviation
        other = populations[_pick(random, populations)](rows) if random.random() < 0.5 else now * factor
        some = random.random(rows) < random.uniform(0.05, 0.9)
        change, changed = _pick(
            random,
            {
                (f"times {factor:.4g}", 0): now * factor,
                (f"plus {shift:.4g}", 0): now + shift,
                (f"times {factor:.4g} plus {shift:.4g}", 0): now * factor + shift,
                (f"{some.mean():.2f} of others, or times {factor:.4g}", 0): np.where(some, other, now),
            }.items(),
        )
        if (reference == reference.round()).all() and random.random() < 0.5:
            changed = changed.round()  # as counts are
        names = [*NAMES, *NEAR] if random.random() < 0.3 else NAMES
        yield Changed(_pick(random, names), f"{population}, {change[0]}", reference, changed)


def conversions(seed: int, count: int, rows: int) -> Iterator[Changed]:
    """Yields columns converted to another unit."""
    for number in range(count):
        random = np.random.default_rng([seed, rows, number, 1])
        if random.random() < 0.5:
            name, (conversion, factor) = _pick(random, NAMES), _pick(random, FAR.items())
            shift = 0.0
        else:
            conversion = name = _pick(random, NEAR)
            factor, shift = NEAR[name]
        populations = _temperatures(random, name) if name.startswith("temp") else _populations(random)
        population = _pick(random, populations)
        reference, now = (populations[population](n) for n in (REFERENCE_ROWS, rows))
        changed = now * factor + shift
        if random.random() < 0.2:
            changed = changed.astype(np.float32).astype(float)
        yield Changed(name, f"{population}, {conversion}", reference, changed)


DAY_NAMES = np.array(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])
MONTH_NAMES = np.array([f"{number}th" for number in range(1, 13)])


def calendar(first_hour: int, hours: int, rows: int) -> dict[str, Any]:
    """Columns that the time sets, of rows at random times."""
    hour = first_hour + np.random.default_rng(first_hour).integers(0, hours, rows)
    day = hour // 24
    month, weekday = np.minimum(day % 365 // 30, 11), day % 7
    return {
        "weekend": weekday >= 5, "is_weekday": (weekday < 5).astype(int), "weekday": weekday,
        "weekday_name": DAY_NAMES[weekday], "month": month + 1, "month_name": MONTH_NAMES[month], "hour": hour % 24,
        "day_of_month": day % 30 + 1, "week": day % 365 // 7, "day": day, "date": [f"day {each}" for each in day],
        "rush": (hour % 24 < 9).astype(float), "shift_number": hour % 24 // 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "hours", "rows"), [(9_005, 1, 300), (8_904, 48, 500), (9_600, 24, 480), (9_120, 336, 900)]
)
def test_columns_that_the_time_sets_drift_in_short_windows(first: int, hours: int, rows: int) -> None:
    report = detect_skew(pa.table(calendar(0, 365 * 24, 20_000)), pa.table(calendar(first, hours, rows)))
    assert report.verdict == "drift", report


@pytest.mark.parametrize("each", [1, 2, 3, 5, 10, 30])
def test_new_ids_drift_unless_they_are_rewritten(each: int) -> None:
    old, new = (pa.table({"x": [f"Id{i // each}" for i in range(n, m)]}) for n, m in ((0, 6_000), (6_000, 7_200)))
    assert detect_skew(old, new).verdict in ("drift", "stable")
    rewritten = pa.table({"x": [value.upper() + " " for value in old["x"].to_pylist()[:1_200]]})
    assert each == 1 or detect_skew(old, rewritten).causes == {"x": "new_category"}  # of once, none is like another
    placeholder = pa.table({"x": [value if i % 4 else "unknown" for i, value in enumerate(new["x"].to_pylist())]})
    assert detect_skew(old, placeholder).causes == {"x": "new_category"}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (1.0, 0.0, "drift"),
        (1.0, 0.5, "drift"),
        (0.9, 0.1, "drift"),
        (0.1, 0.9, "pipeline_fault"),
        (0, 1, "pipeline_fault"),
    ],
)
def test_values_that_come_are_no_fault_and_those_that_go_are(old: float, new: float, verdict: str) -> None:
    random = np.random.default_rng(0)
    normal = random.normal(size=3_000)
    sides = [
        pa.table({"x": pa.array(normal[:rows], mask=random.random(rows) < share), "y": normal[:rows]})
        for rows, share in ((3_000, old), (1_500, new))
    ]
    assert detect_skew(*sides).verdict == verdict


def mixed(seed: int, rows: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "number": random.normal(size=rows), "amount": random.lognormal(size=rows), "grade": random.integers(0, 5, rows),
        "word": np.array(["x", "y", "z"])[random.integers(0, 3, rows)],
    }  # fmt: skip


def test_retried_requests_count_once() -> None:
    reference = pa.table(mixed(0, 20_000))
    for seed in range(1, 4):
        rows = {name: np.repeat(values, 10) for name, values in mixed(seed, 200).items()}
        report = detect_skew(reference, pa.table(rows))
        assert (report.verdict, report.rows_current) == ("stable", 2_000)
        assert report.notes[0].startswith("1,800 of 2,000 rows repeat others")
        assert detect_skew(reference, pa.table(rows | {"amount": rows["amount"] + 2})).drifted == ("amount",)
    default = {name: np.where(np.arange(2_000) % 5, values, values[0]) for name, values in mixed(3, 2_000).items()}
    assert detect_skew(reference, pa.table(default)).notes == ()
    few = [pa.table({name: mixed(seed, 2_000)[name] for name in ("grade", "word")}) for seed in (1, 2)]
    assert detect_skew(*few).notes == ()


def test_stuck_columns_are_faults_but_for_one_of_few_integers() -> None:
    reference, now = mixed(0, 5_000), mixed(1, 1_500)
    report = detect_skew(pa.table(reference), pa.table(now | {"grade": np.ones(1_500, int)}))
    assert report.causes == {"grade": "covariate_shift"}
    nothing = {each: np.full(1_500, values[0]) for each, values in now.items()}
    assert Counter(detect_skew(pa.table(reference), pa.table(nothing)).causes.values())["constant"] == 3


ROWS = 300


def columns(seed: int) -> dict[str, Any]:
    """Columns of all types, the same for all seeds but for chance."""
    random = np.random.default_rng(seed)
    whole, normal = random.integers(0, 90, ROWS), random.normal(size=ROWS)
    text, moments = [f"v{i % 9}" for i in whole], pa.array(whole * 10**11, pa.timestamp("us"))
    ends = np.append(0, np.cumsum(random.integers(0, 4, ROWS))).astype(np.int32)
    inner = pa.array(random.normal(size=ends[-1]))
    words = pa.array([f"v{i % 9}" for i in random.integers(0, 90, ends[-1])])
    days = pa.array(random.integers(0, 90, ends[-1]).astype(np.int32)).cast(pa.date32())

    vectors = random.normal(size=(ROWS, 3)).tolist()

    def lists(values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(ends), values)

    objects = lists(pa.StructArray.from_arrays([inner, words, days], ["number", "word", "day"]))
    return {
        "int8": pa.array(whole.astype(np.int8)), "int64": pa.array(whole), "float64": pa.array(normal),
        "float32": pa.array(normal.astype(np.float32)), "bool": pa.array(normal > 0), "text": pa.array(text),
        "bytes": pa.array([each.encode() for each in text]), "category": pa.array(text).dictionary_encode(),
        "integer with nulls": pa.array(np.where(normal > 1, np.nan, whole)),
        "decimal": pa.array([Decimal(int(i)) / 100 for i in whole], pa.decimal128(12, 2)),
        "date": pa.array(whole.astype(np.int32)).cast(pa.date32()), "timestamp": moments,
        "timestamp with zone": moments.cast(pa.timestamp("us", "UTC")), "duration": pa.array(whole, pa.duration("us")),
        "time of day": pa.array(whole * 10**8, pa.time64("us")), "null": pa.nulls(ROWS, pa.string()),
        "list of numbers": lists(inner), "list of texts": lists(words), "list of days": lists(days),
        "vector": pa.array(vectors), "vector, half empty": pa.array([v * (i % 2) for i, v in enumerate(vectors)]),
        "list of lists": pa.ListArray.from_arrays(pa.array(np.arange(ROWS + 1, dtype=np.int32)), lists(inner)),
        "struct": pa.StructArray.from_arrays([pa.array(normal), moments], ["number", "moment"]), "objects": objects,
        "object of objects": pa.StructArray.from_arrays([objects], ["list"]),
        "map": pa.MapArray.from_arrays(pa.array(ends), words, inner),
    }  # fmt: skip


@cache
def sides() -> tuple[dict[str, Any], dict[str, Any]]:
    return columns(1), columns(2)


def test_unchanged_columns_of_every_type_are_stable() -> None:
    report = detect_skew(*(pa.table(side) for side in sides()))
    assert (report.verdict, report.unmatched, report.notes) == ("stable", (), ())
    assert {name.partition(".")[0] for name in report.features} == set(sides()[0])


ROTATIONS = [1, 7, *(pytest.param(by, marks=pytest.mark.scheduled(part="campaigns")) for by in range(2, 26) if by != 7)]


@pytest.mark.parametrize("by", ROTATIONS)
def test_another_type_is_a_finding_beside_the_verdicts_of_others(by: int) -> None:
    reference, current = sides()
    names, values = list(reference), list(current.values())
    rotated = {name: values[(i + by) % len(names)] for i, name in enumerate(names)}
    report = detect_skew(
        pa.table(reference | {"same": reference["int64"]}), pa.table(rotated | {"same": current["int64"]})
    )
    assert report.verdict == "pipeline_fault" and not report.features["same"].drifted
    for name, now in rotated.items():
        kinds = [str(side.type) for side in (reference[name], now)]
        if set(kinds) == {"int64", "string"} and now.null_count < ROWS > reference[name].null_count:
            assert report.features[name].cause == "other_type"
        if set(kinds) <= {"int8", "int64", "float", "double", "bool", "decimal128(12, 2)"}:
            assert report.features[name].score is not None


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("vector", "list of numbers", "drift"), ("list of numbers", "vector", "drift"),
        ("vector", "vector, half empty", "pipeline_fault"), ("int64", "integer with nulls", "drift"),
    ],
)  # fmt: skip
def test_lists_and_numbers_of_other_forms_are_compared(old: str, new: str, verdict: str) -> None:
    report = detect_skew(*(pa.table({"x": side[kind]}) for side, kind in zip(sides(), (old, new), strict=True)))
    assert (report.verdict, report.features["x"].measure) == (verdict, "distance")
    assert report.features["x"].cause in ("missing_rate", "covariate_shift")


LONG = [pytest.param(rows, 1000, marks=pytest.mark.scheduled(part="campaigns")) for rows in (300, 1_500, 10_000)]


def judged(column: Changed) -> FeatureSkew:
    """Returns what the monitor says of a change."""
    samples = [pa.table({column.name: values}) for values in (column.reference, column.current)]
    compared = Judged.of(partial(alike, samples, column.name, width=None, seed=0), 0.05, 0)
    return decide({column.name: compared}, SkewTest())[column.name]


def count_faults(changes: Callable[[int, int, int], Iterator[Changed]], rows: int, count: int) -> int:
    return sum(judged(column).fault for column in changes(3, count, rows))


@pytest.mark.parametrize(("rows", "count"), [(300, 60), (1_500, 60), *LONG])
def test_growth_is_rarely_a_fault(rows: int, count: int) -> None:
    limit = 0.01 * count if count >= 1_000 else stats.binom.ppf(0.95, count, 0.01)
    assert count_faults(world_changes, rows, count) <= limit


@pytest.mark.parametrize(("rows", "count"), [(300, 60), (1_500, 60), *LONG])
def test_most_conversions_of_units_are_faults(rows: int, count: int) -> None:
    assert count_faults(conversions, rows, count) >= 0.9 * count


@pytest.mark.parametrize("rows", [300, 1_500])
def test_unnamed_conversions_are_faults_or_named_as_possible(rows: int) -> None:
    """Growth by random factors is rarely called a possible conversion."""
    named, guessed = 0, 0
    for number in range(60):
        random = np.random.default_rng([8, rows, number])
        draw = _pick(random, _populations(random).values())
        growth = float(np.exp(random.uniform(np.log(1.15), np.log(5))))
        for factor in (_pick(random, (25.4, 10.0, 1 / 25.4, 0.1)), growth):
            skew = judged(Changed("x", "", draw(REFERENCE_ROWS), draw(rows) * factor))
            is_perhaps = "perhaps" in (skew.detail or "")
            named += factor != growth and (skew.fault or is_perhaps)
            guessed += factor == growth and is_perhaps
    assert named >= 57 and guessed <= 12


@pytest.mark.parametrize(
    ("name", "unit", "factor", "cause"),
    [
        ("waiting_minutes", "", 1.852, "covariate_shift"),
        ("way", "", 1.852, "covariate_shift"),
        ("way", "nautical", 1.852, "unit_change"),
        ("way", "knot", 1.609344, "covariate_shift"),
        ("wayInKm", "", 1 / 1.609344, "unit_change"),
        ("KM_DRIVEN", "", 1 / 1.609344, "unit_change"),
        ("km_driven", "", 1.609344, "covariate_shift"),
    ],
)
def test_unit_is_read_from_name_or_schema(name: str, unit: str, factor: float, cause: str) -> None:
    random = np.random.default_rng(4)
    old, new = (pa.table({name: random.gamma(6, 10, rows)}) for rows in (4_000, 1_500))
    schema = infer_schema(generate_statistics(old))
    if unit:
        schema.feature[0].annotation.tag.append(f"unit:{unit}")
    converted = pa.table({name: new[name].to_numpy() * factor})
    assert detect_skew(old, converted, schema=schema).causes == {name: cause}
