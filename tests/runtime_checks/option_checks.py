"""Checks of options given as JSON: what TFDV is told, and what comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from attempts import messages

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.statistics import generate_statistics
from airflow_hops.runtime.statistics.options import options_from

_SHOWN = (
    "epsilon", "feature_allowlist", "frequency_threshold", "num_histogram_buckets", "num_quantiles_histogram_buckets",
    "num_rank_histogram_buckets", "num_top_values", "num_values_histogram_buckets", "sample_rate", "weight_feature",
    "weighted_frequency_threshold", "enable_semantic_domain_stats", "semantic_domain_stats_sample_rate",
)  # fmt: skip


def describe(context: StepContext, options: list[dict[str, Any]]) -> list[Any]:
    """For each of ``options`` what TFDV is told that is not its default, or what is wrong with them."""
    import tensorflow_data_validation as tfdv

    from airflow_hops.artifacts import BadInput

    default = tfdv.StatsOptions()
    described: list[Any] = []
    for one in options:
        try:
            made = options_from(one)
        except BadInput as error:
            described.append(str(error))
            continue
        told = {name: getattr(made, name) for name in _SHOWN if getattr(made, name) != getattr(default, name)}
        weights = made.example_weight_map
        told |= {"weight_of_a": weights.get(tfdv.FeaturePath(["a"]))} if weights.all_weight_features() else {}
        described.append(told)
    return described


def table() -> pa.Table:
    """Letters, numbers that depend on them, times since the epoch, what is missing, several values, an infinity."""
    random = np.random.default_rng(5)
    letters = random.choice(["a", "b", "c"], 5000)
    numbers = random.normal(size=5000) + (letters == "a")
    seconds = 1_700_000_000 + (numbers * 1000).astype("int64")
    holes = np.where(random.random(5000) < 0.3, np.nan, numbers * 2 + random.normal(size=5000))
    infinite = numbers.copy()
    infinite[7] = np.inf
    return pa.table(
        {
            "letter": pa.array(letters),
            "digit": pa.array(random.integers(0, 4, 5000)),
            "y": pa.array((numbers > 0.5).astype("int64")),
            "number": pa.array(numbers),
            "seconds": pa.array(seconds),
            "holes": pa.array(holes),
            "constant": pa.array([0.1] * 5000),
            "infinite": pa.array(infinite),
            "several": pa.array([[1.0, float(i)][: 1 + i % 2] for i in range(5000)]),
            "photo": pa.array([f"{i}" for i in range(5000)]),
        }
    )


def slices(context: StepContext) -> dict[str, Any]:
    """The slices of different ways to slice: rows by key; what numpy counts is in the test."""
    ways = {
        "by_letter": {"slice_by": ["letter"]},
        "by_each": {"slice_by": ["letter", "digit"]},
        "crossed": {"slice_by": [["letter", "digit"]]},
        "some": {"slice_values": {"letter": ["a", "z"], "digit": [3]}},
        "crossed_with_some": {"slice_by": [["letter", "digit"]], "slice_values": {"letter": ["b"]}},
    }
    whole = table()
    found = {}
    for name, way in ways.items():
        statistics = generate_statistics(whole, options=options_from({**way, "features": ["letter", "digit"]}))
        found[name] = [[dataset.name, dataset.num_examples] for dataset in statistics.datasets]
    letter, digit = whole["letter"].to_numpy(), whole["digit"].to_numpy()
    rows = {f"letter_{one}": int((letter == one).sum()) for one in "abc"}
    rows |= {f"digit_{one}": int((digit == one).sum()) for one in range(4)}
    rows |= {f"digit_{d}_letter_{x}": int(((letter == x) & (digit == d)).sum()) for d in range(4) for x in "abc"}
    return {"found": found, "rows": rows}


def crosses(context: StepContext) -> dict[str, Any]:
    """Covariances and correlations: ours in batches and merged, TFDV's, and numpy's of the times."""
    from tensorflow_data_validation.statistics.generators.cross_feature_stats_generator import (
        CrossFeatureStatsGenerator,
    )

    from airflow_hops.runtime.statistics.arrow_lists import as_lists
    from airflow_hops.runtime.statistics.cross_features import CrossFeatureGenerator

    whole = table()
    batches = [as_lists(batch) for batch in whole.to_batches(max_chunksize=700)]

    def of(generator: Any) -> dict[str, Any]:
        parts = [generator.add_input(generator.create_accumulator(), batch) for batch in batches]
        result = generator.extract_output(generator.merge_accumulators(parts))
        return {
            f"{cross.path_x.step[0]} {cross.path_y.step[0]}": [
                cross.count, cross.num_cross_stats.covariance, cross.num_cross_stats.correlation,
            ]
            for cross in result.cross_features
        }  # fmt: skip

    statistics = generate_statistics(whole, options=options_from({"cross_features": [["seconds", "number"]]}))
    pairs = whole.select(["number", "seconds"]).to_pandas()
    return {
        "ours": of(CrossFeatureGenerator()),
        "tfdv": of(CrossFeatureStatsGenerator(sample_rate=1.0)),
        "chosen": [[list(c.path_x.step), list(c.path_y.step), c.count] for c in statistics.datasets[0].cross_features],
        "numpy": float(np.corrcoef(pairs["number"], pairs["seconds"])[0, 1]),
    }


def lift_and_more(context: StepContext) -> dict[str, Any]:
    """Statistics with a label, of which a schema says that it is a number; a weight; fewer buckets; a sample."""
    import tensorflow_data_validation as tfdv

    whole = table()
    schema = tfdv.infer_schema(generate_statistics(whole.slice(0, 100)))
    lift = generate_statistics(
        whole, options=options_from({"label_feature": "y", "lift": {"top_k_per_y": 1}}, schema=schema)
    ).datasets[0]
    buckets = generate_statistics(
        whole, options=options_from({"label_feature": "number", "lift": {"y_boundaries": [0], "features": ["digit"]}})
    ).datasets[0]
    small = generate_statistics(
        whole,
        options=options_from(
            {"num_top_values": 2, "num_histogram_buckets": 3, "sample_rate": 0.1, "weight_feature": "digit"}
        ),
    ).datasets[0]
    by_name = {feature.path.step[0]: feature for feature in small.features}
    return {
        "lift": [
            [cross.path_x.step[0], [len(one.lift_values) for one in cross.categorical_cross_stats.lift.lift_series]]
            for cross in lift.cross_features
        ],
        "buckets": [
            [[one.y_bucket.low_value, one.y_bucket.high_value, one.y_count] for one in series.lift_series]
            for series in [buckets.cross_features[0].categorical_cross_stats.lift]
        ],
        "y_positive": int((whole["number"].to_numpy() >= 0).sum()),
        "rows": small.num_examples,
        "weight": small.weighted_num_examples,
        "top": len(by_name["letter"].string_stats.top_values),
        "buckets_of_number": len(by_name["number"].num_stats.histograms[0].buckets),
    }


def complaints(context: StepContext) -> dict[str, str]:
    """What is said when data and options do not fit."""
    import tensorflow_data_validation as tfdv

    whole = table()
    wide = pa.table({f"n{i}": pa.array([1.0, 2.0]) for i in range(501)})
    schema = tfdv.infer_schema(generate_statistics(whole.select(["letter"])))
    tries = {
        "cross_of_text": lambda: generate_statistics(
            whole, options=options_from({"cross_features": [["y", "letter"]]})
        ),
        "wide": lambda: generate_statistics(wide, options=options_from({"cross_features": True})),
        "absent_label": lambda: generate_statistics(whole, options=options_from({"label_feature": "absent"})),
        "label_not_in_schema": lambda: options_from({"label_feature": "y"}, schema=schema),
    }
    return messages(tries)
