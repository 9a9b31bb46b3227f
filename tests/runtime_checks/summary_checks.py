"""Checks of the JSON twin: statistics of awkward data as the JSON text that a stage would write."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from option_checks import table

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.statistics import generate_statistics
from airflow_hops.runtime.statistics.options import options_from
from airflow_hops.runtime.statistics.summary import summarize


def twins(context: StepContext) -> dict[str, str]:
    """The twin of each data set, as strict JSON."""
    return {name: json.dumps(summarize(made()), allow_nan=False) for name, made in _STATISTICS.items()}


def _awkward() -> Any:
    """NaN, infinities, nothing at all, bytes, a long string, several values, values inside values, extremes."""
    floats = np.arange(100.0)
    floats[:5], floats[5:8], floats[8] = np.nan, np.inf, -np.inf
    return generate_statistics(
        pa.table(
            {
                "floats": floats,
                "only_nan": np.full(100, np.nan),
                "nothing": pa.nulls(100, pa.float64()),
                "untyped": pa.nulls(100),
                "bytes": pa.array([b"\xff\xfe"] * 30 + [b"plain"] * 70),
                "long": pa.array(["x" * 1000] * 60 + ["y" * 1_000_000] * 40),
                "several": pa.array([[1] * (i % 4) if i else None for i in range(100)]),
                "nested": pa.array([{"inside": i if i % 2 else None} for i in range(100)]),
                "extreme": pa.array([2**63 - 1, -(2**63)] * 50),
            }
        )
    )


def _wide() -> Any:
    """The statistics of one column under 5,000 names."""
    statistics = generate_statistics(pa.table({"column": [1.0, 2.0, 9.0]}))
    features = statistics.datasets[0].features
    for number in range(1, 5000):
        features.add().CopyFrom(features[0])
        features[number].path.step[0] = f"column_{number}"
    return statistics


def _options(**options: Any) -> Any:
    return generate_statistics(table(), options=options_from(options))


_FEW = ["letter", "photo", "number"]

_STATISTICS = {
    "awkward": _awkward,
    "wide": _wide,
    "weighted": lambda: _options(weight_feature="digit", features=["digit", "letter", "number"]),
    "sliced": lambda: generate_statistics(
        table().slice(0, 120), options=options_from({"slice_by": ["letter", "photo"], "features": _FEW})
    ),
    "pairs": lambda: _options(
        label_feature="y", weight_feature="digit", cross_features=True, lift={"features": ["letter", "photo"]}
    ),
    "semantic": lambda: generate_statistics(
        pa.table({"text": ["a quick brown fox jumps over the lazy dog and runs away"] * 200}),
        options=options_from({"semantic_domains": True}),
    ),
}
