"""Checks of skew measures and their significance, run as steps in the runtime environment: they return plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.runtime import tfdv_extension
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.skew import detect_skew
from airflow_hops.runtime.skew.distribution import Numbers, distribution
from airflow_hops.runtime.skew.measures import CATEGORICAL, NUMERIC, aligned_counts, every_score, least_distance
from airflow_hops.runtime.skew.significance import (
    benjamini_hochberg,
    judge_numbers,
    judge_values,
    kolmogorov_p_value,
    missing_p_value,
)
from airflow_hops.runtime.statistics import generate_statistics, load_statistics
from airflow_hops.runtime.statistics.summary import features_by_name

_CATEGORICAL_TYPES = {1: "l_infinity", 2: "jensen_shannon", 3: "normalized_abs_difference"}


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


def scores_against_tfdv(context: StepContext) -> dict[str, float]:
    """Greatest differences of scores from TFDV's own, by measure, over random pairs and the inputs ``statistics``."""
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(8):
        sizes = [int(10 ** random.uniform(0.5, 3.7)) for _ in range(2)]
        pairs.append(tuple(generate_statistics(_with_oddities(random_table(n, random), random)) for n in sizes))
    if context.has_input("statistics"):
        folder = context.local("statistics")
        flights = [load_statistics(folder / split / "FeatureStats.pb") for split in ("train", "eval")]
        pairs += [tuple(flights), tuple(reversed(flights))]
    worst: dict[str, float] = {"compared": 0}
    for reference, current in pairs:
        for source in ("STANDARD", "QUANTILES"):
            for name, measure, theirs, ours in _both_scores(reference, current, source):
                key = f"{measure} of {name}" if name == "infinite" else measure
                worst[key] = max(worst.get(key, 0.0), abs(theirs - ours))
                worst["compared"] += 1
    return worst


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
    from tensorflow_metadata.proto.v0 import schema_pb2

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
    found = []
    anomalies = tfdv_extension.validate_statistics(reference, schema, serving=current)
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
            found.append((name, measure, float(measurement.value), ours))
    return found


def scores_against_rows(context: StepContext) -> list[dict[str, Any]]:
    """Measures by statistics, and by scipy of the very rows."""
    from scipy import stats

    random = np.random.default_rng(1)
    results = []
    for shift, scale in ((0.0, 1.0), (0.3, 1.0), (0.0, 1.5), (2.0, 0.5), (6.0, 1.0)):
        before, after = random.normal(50, 10, 20_000), random.normal(50 + 10 * shift, 10 * scale, 5_000)
        skew = detect_skew(pa.table({"x": before}), pa.table({"x": after})).features["x"]
        edges = np.quantile(before, np.linspace(0, 1, 11))
        edges[[0, -1]] = -np.inf, np.inf
        shares = []
        for values in (before, after):
            counts = np.histogram(values, edges)[0] + 0.5
            shares.append(counts / counts.sum())
        results.append(
            {
                "ours": dict(skew.scores),
                "kolmogorov_smirnov": float(stats.ks_2samp(before, after).statistic),
                "wasserstein": float(stats.wasserstein_distance(before, after)),
                "population_stability_index": float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum()),
                "std": float(before.std()),
            }
        )
    return results


def tests_against_scipy(context: StepContext) -> dict[str, Any]:
    """The parts of significance that scipy has too."""
    from scipy import stats

    tables = [((3, 100), (9, 120)), ((0, 5000), (4, 1000)), ((50, 200), (50, 200)), ((900, 1000), (10, 1000))]
    tables += [((7000, 50_000), (16_000, 100_000)), ((0, 10), (0, 10)), ((10, 10), (4, 4)), ((0, 9), (9, 9))]
    fisher = []
    for (missing, rows), (missing_now, now) in tables:
        table = [[missing, rows - missing], [missing_now, now - missing_now]]
        ours = missing_p_value((missing, rows), (missing_now, now))
        fisher.append([ours, float(stats.fisher_exact(table).pvalue)])
    p = np.random.default_rng(2).random(40) ** 3
    kolmogorov = [
        [kolmogorov_p_value(d, n), float(stats.kstwo.sf(d, n))] for d, n in ((0.05, 900), (0.2, 60), (0.01, 9e4))
    ]
    return {
        "fisher": fisher,
        "benjamini_hochberg": [benjamini_hochberg(list(p)), [float(q) for q in stats.false_discovery_control(p)]],
        "kolmogorov": kolmogorov,
    }


def p_values(context: StepContext, *, rows: int, draws: int, shift: float = 0.0) -> dict[str, dict[str, list[float]]]:
    """p-values of windows of ``rows`` rows against a reference of 20,000, by feature and measure."""
    random = np.random.default_rng(3)
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(draws):
        if number % 4 == 0:
            reference = features_by_name(generate_statistics(random_table(20_000, random)))
        current = features_by_name(generate_statistics(random_table(rows, random, shift)))
        for name, feature in reference.items():
            one, other = distribution(feature), distribution(current[name])
            judge: Any = judge_numbers if isinstance(one, Numbers) else judge_values
            measures = ("jensen_shannon", "kolmogorov_smirnov") if isinstance(one, Numbers) else ("l_infinity",)
            for measure in measures:
                p = judge(one, other, measure, random).p_value
                found.setdefault(name, {}).setdefault(measure, []).append(p)
    return found


def false_alarms_on_flights(context: StepContext, *, folder: str, rows: int, draws: int) -> dict[str, Any]:
    """Verdicts on random windows of flights, against the other flights of the same months."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder)
    random = np.random.default_rng(4)
    verdicts, causes = [], []
    for _ in range(draws):
        order = random.permutation(table.num_rows)
        reference = generate_statistics(table.take(pa.array(order[rows:])))
        report = detect_skew(reference, generate_statistics(table.take(pa.array(order[:rows]))))
        verdicts.append(report.verdict)
        causes.append(list(report.drifted))
    return {"verdicts": verdicts, "drifted": causes}


def reports(context: StepContext, *, folder: str) -> dict[str, Any]:
    """Reports on flights that were broken in several ways."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(folder)
    random = np.random.default_rng(5)
    order = random.permutation(table.num_rows)
    before, now = table.take(pa.array(order[4000:])), table.take(pa.array(order[:4000]))
    reference = generate_statistics(before)

    def with_column(name: str, values: Any) -> pa.Table:
        return now.set_column(now.column_names.index(name), name, values)

    celsius = pc.divide(pc.subtract(now["temp"], 32.0), 1.8)
    airports = now["dest"].to_pylist()
    some = [None if random.random() < 0.2 else value for value in now["humid"].to_pylist()]
    most = [None if random.random() < 0.7 else value for value in now["humid"].to_pylist()]
    broken = {
        "nothing": now,
        "celsius": with_column("temp", celsius),
        "thousandth": with_column("distance", pc.divide(now["distance"], 1000.0)),
        "lower_case": with_column("carrier", pc.utf8_lower(now["carrier"])),
        "new_airport": with_column("dest", pa.array(["XXX" if i % 200 == 0 else d for i, d in enumerate(airports)])),
        "new_airports": with_column("dest", pa.array(["XXX" if i % 5 == 0 else d for i, d in enumerate(airports)])),
        "constant": with_column("origin", pa.array(["JFK"] * now.num_rows)),
        "constant_number": with_column("pressure", pa.array([1013.0] * now.num_rows)),
        "gone": with_column("temp", pa.array([float("nan")] * now.num_rows)),
        "some_missing": with_column("humid", pa.array(some)),
        "most_missing": with_column("humid", pa.array(most)),
        "outlier": with_column("wind_speed", pa.array([1e6, *now["wind_speed"].to_pylist()[1:]])),
    }
    found: dict[str, Any] = {}
    for name, current in broken.items():
        report = detect_skew(reference, current)
        found[name] = {**report.to_dict(), "text": str(report)}
    found["few"] = detect_skew(reference, now.slice(0, 50)).to_dict()
    return found


def seasons(context: StepContext, *, winter: str, july: str, spring: str) -> dict[str, Any]:
    """Other seasons against a winter: by the thresholds of a schema inferred from it, and without."""
    from airflow_hops.runtime.schema import infer_schema

    reference = generate_statistics(winter)
    schema = infer_schema(reference)
    found = {
        name: detect_skew(reference, folder, schema=schema) for name, folder in (("july", july), ("spring", spring))
    }
    found["july_all"] = detect_skew(reference, july)
    return {name: report.to_dict() for name, report in found.items()}


def choices(context: StepContext) -> dict[str, Any]:
    """What arguments of ``detect_skew`` change."""
    from airflow_hops.artifacts import BadInput
    from airflow_hops.runtime.schema import infer_schema

    random = np.random.default_rng(6)
    before, now = random_table(20_000, random), random_table(2_000, random, 0.25)
    reference, current = generate_statistics(before), generate_statistics(now)
    schema = infer_schema(reference)
    for feature in schema.feature:
        if feature.name == "normal":
            feature.skew_comparator.jensen_shannon_divergence.threshold = 0.0001
            feature.drift_comparator.jensen_shannon_divergence.threshold = 0.9
            feature.drift_comparator.jensen_shannon_divergence.source.type = 1
        elif feature.name != "three":
            feature.ClearField("skew_comparator")
    path = context.scratch / "reference.pb"
    path.write_bytes(reference.SerializeToString())
    errors = {}
    arguments: Mapping[str, Mapping[str, Any]] = {
        "alpha": {"alpha": 2.0},
        "min_rows": {"min_rows": 0},
        "missing_threshold": {"missing_threshold": -1},
        "comparator": {"comparator": "both"},
        "measure": {"measures": {"normal": "l_infinity"}},
        "feature": {"thresholds": {"nobody": 0.1}},
    }
    for name, argument in arguments.items():
        try:
            detect_skew(reference, current, **argument)
        except BadInput as error:
            errors[name] = str(error)
    for name, table in {
        "type": now.set_column(0, "normal", pa.array(["x"] * 2000)),
        "missing": now.drop(["three"]),
    }.items():
        try:
            detect_skew(reference, table, schema=schema)
        except BadInput as error:
            errors[name] = str(error)
    for name, argument in {"nothing": {}, "no_comparator": {"schema": type(schema)()}}.items():
        try:
            detect_skew(reference, pa.table({"other": [1, 2]}), **argument)
        except BadInput as error:
            errors[name] = str(error)
    return {
        "schema": detect_skew(path, current, schema=schema).to_dict(),
        "drift": detect_skew(reference, current, schema=schema, comparator="drift").to_dict(),
        "fixed": detect_skew(reference, current, alpha=None).to_dict(),
        "fixed_small": detect_skew(reference, current, alpha=None, min_rows=100).to_dict(),
        "measures": detect_skew(reference, current, measures={"normal": "wasserstein"}).to_dict(),
        "thresholds": detect_skew(reference, current, thresholds={"normal": 0.9}).to_dict(),
        "unmatched": detect_skew(before.drop(["integers"]), now.drop(["three"])).to_dict(),
        "again": detect_skew(before, now).to_dict() == detect_skew(before, now).to_dict(),
        "every": every_score(*(distribution(features_by_name(s)["normal"]) for s in (reference, current))),
        "errors": errors,
    }


def odd_columns(context: StepContext) -> list[dict[str, Any]]:
    """Reports on unchanged columns that are awkward, of samples of one row and of many."""
    random = np.random.default_rng(7)

    def table(rows: int) -> pa.Table:
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

    found = []
    for before, now in ((1, 1), (2, 3), (50, 7), (3000, 1), (3000, 150), (150, 3000), (3000, 3000)):
        reference, current = generate_statistics(table(before)), generate_statistics(table(now))
        report = detect_skew(reference, current, min_rows=1)
        numeric = [name for name, skew in report.features.items() if skew.measure == "kolmogorov_smirnov"]
        found.append(report.to_dict())
        for measure in ("jensen_shannon", "jensen_shannon_quantiles", "population_stability_index", "wasserstein"):
            chosen = dict.fromkeys(numeric, measure)
            found.append(detect_skew(reference, current, min_rows=1, measures=chosen).to_dict())
    return found


def least_distances(context: StepContext) -> list[tuple[str, float, float]]:
    """Name of a shape, the least distance by the histograms of two samples, and the distance of their rows."""
    from scipy.stats import ks_2samp

    found = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        pair = [_rough_columns(rows, random) for rows in (4000, 500)]
        before, after = (features_by_name(generate_statistics(pa.table(columns))) for columns in pair)
        for name in before:
            least = least_distance(distribution(before[name]), distribution(after[name]))
            found.append((name, least, float(ks_2samp(pair[0][name], pair[1][name]).statistic)))
    return found


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


def rough_p_values(context: StepContext, *, rows: int, draws: int) -> dict[str, list[float]]:
    """p-values of unchanged samples of such columns."""
    found: dict[str, list[float]] = {}
    for seed in range(draws):
        random = np.random.default_rng([seed, rows])
        sides = [features_by_name(generate_statistics(pa.table(_rough_columns(n, random)))) for n in (5000, rows)]
        for name in ("decile_of_zeros", "two_humps", "mostly_zero"):
            judgement = judge_numbers(*(distribution(side[name]) for side in sides), "kolmogorov_smirnov", random)
            found.setdefault(name, []).append(judgement.p_value)
    return found


def infinities(context: StepContext) -> dict[str, Any]:
    """Reports of columns with infinities against a normal one, and against one that has as many."""
    random = np.random.default_rng(4)

    def column(rows: int, infinite: float) -> pa.Table:
        return pa.table({"x": np.where(random.random(rows) < infinite, np.inf, random.normal(size=rows))})

    reference, some = column(4000, 0.0), column(4000, 0.1)
    return {
        "more": detect_skew(reference, column(1000, 0.1)).to_dict(),
        "as_many": detect_skew(some, column(1000, 0.1)).to_dict(),
        "all": detect_skew(reference, column(1000, 1.0)).to_dict(),
    }
