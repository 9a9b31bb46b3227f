"""The JSON twin of statistics: small, strict JSON, and what a page wants to know."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from option_tables import table

from airflow_hops.ml.statistics import generate_statistics, summary
from airflow_hops.ml.statistics.options import options_from
from airflow_hops.ml.statistics.summary import summarize


def _twin(statistics: Any) -> str:
    return json.dumps(summarize(statistics), allow_nan=False)


def _of_options(**options: Any) -> str:
    return _twin(generate_statistics(table(), options=options_from(options)))


def test_unusual_values_are_strict_json() -> None:
    floats = np.arange(100.0)
    floats[:5], floats[5:8], floats[8] = np.nan, np.inf, -np.inf
    unusual = {
        "floats": floats,
        "only_nan": np.full(100, np.nan),
        "nothing": pa.nulls(100, pa.float64()),
        "untyped": pa.nulls(100),
        "bytes": pa.array([b"\xff\xfe"] * 30 + [b"plain"] * 70),
        "long": pa.array(["x" * 1000] * 60 + ["y" * 10_000] * 40),
        "several": pa.array([[1] * (i % 4) if i else None for i in range(100)]),
        "nested": pa.array([{"inside": i if i % 2 else None} for i in range(100)]),
        "extreme": pa.array([2**63 - 1, -(2**63)] * 50),
    }
    text = _twin(generate_statistics(pa.table(unusual)))
    twin = json.loads(text)
    features = twin["features"]
    assert twin["rows"] == 100
    floats = features["floats"]
    assert (floats["nan"], floats["infinite"], floats["max"], floats["min"]) == (5, 4, "inf", "-inf")
    assert sum(count for _, _, count in floats["histogram"]) == pytest.approx(95)
    assert features["only_nan"]["nan"] == 100
    assert features["nothing"] == {"type": "FLOAT", "count": 0, "missing": 100}
    assert features["untyped"]["missing"] == 100
    assert ["__BYTES_VALUE__", 30] in features["bytes"]["top_values"]
    long = features["long"]["top_values"]
    assert len(long) == 2 and all(len(value) <= 100 for value, _ in long)
    assert features["several"]["values_per_row"] == {"min": 0, "mean": pytest.approx(150 / 99), "max": 3}
    assert features["several"]["missing"] == 1
    assert features["nested"]["type"] == "STRUCT"
    assert (features["nested.inside"]["count"], features["nested.inside"]["missing"]) == (50, 50)
    assert features["extreme"]["max"] == pytest.approx(2.0**63)
    assert len(text) < 10_000


def test_weighted_statistics_stand_beside_those_of_rows() -> None:
    twin = json.loads(_of_options(weight_feature="digit", features=["digit", "letter", "number"]))
    weight = twin["weighted_rows"]
    letter, number = twin["features"]["letter"], twin["features"]["number"]
    assert weight == pytest.approx(1.5 * 5000, rel=0.05)
    assert letter["weighted"]["count"] == weight
    assert sum(count for _, count in letter["weighted"]["top_values"]) == weight
    assert sum(count for _, count in letter["top_values"]) == letter["count"] == 5000
    assert number["weighted"]["mean"] != number["mean"]
    assert number["weighted"]["mean"] == pytest.approx(number["mean"], abs=0.1)


def test_largest_slices_are_shown_and_the_others_counted() -> None:
    options = options_from({"slice_by": ["letter", "photo"], "features": ["letter", "photo", "number"]})
    twin = json.loads(_twin(generate_statistics(table().slice(0, 120), options=options)))
    slices = twin["slices"]
    assert next(iter(slices)).startswith("letter_") and len(slices) == 50
    assert twin["slices_left_out"] == 120 + 3 - 50
    assert sum(slices[f"letter_{one}"]["rows"] for one in "abc") == twin["rows"] == 120
    inside = slices["letter_a"]["features"]
    assert inside["letter"]["top_values"] == [["a", slices["letter_a"]["rows"]]]
    assert inside["number"]["mean"] > twin["features"]["number"]["mean"] + 0.3
    assert "histogram" not in inside["number"]


def test_domains_are_shown_and_many_features_are_shown_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["a quick brown fox jumps over the lazy dog and runs away"] * 200
    table = pa.table({"text": sentences, "number": [1.0, 2.0, 9.0, 9.0] * 50})
    statistics = generate_statistics(table, options=options_from({"semantic_domains": True}))
    features = summarize(statistics)["features"]
    assert features["text"]["custom"]["domain_info"] == "natural_language_domain {}"
    assert features["number"]["histogram"] and features["number"]["quantiles"]
    monkeypatch.setattr(summary, "MAX_FULL_FEATURES", 1)
    assert summarize(statistics)["features"]["number"] == {
        "type": "FLOAT", "count": 200, "missing": 0, "mean": 5.25, "std": pytest.approx(3.767, abs=1e-3), "min": 1,
        "max": 9, "median": 9, "zeros": 0,
    }  # fmt: skip
