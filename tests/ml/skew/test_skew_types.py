"""Comparison of columns of every type that a snapshot may have, with columns of the same and of any other type."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.ml.monitoring.skew import detect_skew

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
    ("before", "now", "verdict"),
    [
        ("vector", "list of numbers", "drift"), ("list of numbers", "vector", "drift"),
        ("vector", "vector, half empty", "pipeline_fault"), ("int64", "integer with nulls", "drift"),
    ],
)  # fmt: skip
def test_lists_and_numbers_of_other_forms_are_compared(before: str, now: str, verdict: str) -> None:
    report = detect_skew(*(pa.table({"x": side[kind]}) for side, kind in zip(sides(), (before, now), strict=True)))
    assert (report.verdict, report.features["x"].measure) == (verdict, "distance")
    assert report.features["x"].cause in ("missing_rate", "covariate_shift")
