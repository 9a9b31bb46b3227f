"""Comparators of schemas, also of TFX: every real change of any type is found or named, and equal rows are stable."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from campaigns import campaign
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from airflow_hops.core.skew import STABLE
from airflow_hops.ml.distances.detect import detect_skew, side_of
from airflow_hops.ml.schema.anomalies import find_anomalies
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.validation.stage import add_drift

MEASURES = ("infinity_norm", "jensen_shannon_divergence", "normalized_abs_difference")
TEXT, NUMBER, NO_MEASURE = set(MEASURES), {"jensen_shannon_divergence"}, set[str]()
HAS = {
    "float": NUMBER, "float32": NUMBER, "int": NUMBER, "int8": NUMBER, "beyond_floats": NO_MEASURE, "bool": NUMBER,
    "string": TEXT, "bytes": TEXT, "floats": NUMBER, "ints": NUMBER, "strings": TEXT, "struct": NUMBER,
    "text_in_struct": TEXT, "structs": NUMBER, "vector": NO_MEASURE,
    "fixed_list": NO_MEASURE, "date": NUMBER, "timestamp": NUMBER,
}  # fmt: skip
"""Measures that TFDV has of the values of each type."""
NAMES = {"struct": "f.a", "text_in_struct": "f.a", "structs": "f.a"}
CHANGES = ("equal", "moved", "missing", "constant")
BEYOND = 2**60


def column(kind: str, numbers: Any) -> pa.Array:
    """Returns numbers of some dozen as values of a type."""
    whole = np.round(numbers).astype(np.int64)
    text = [f"k{number // 8}" for number in whole]
    several = [1 + row % 2 for row in range(len(whole))]
    match kind:
        case "float32" | "int8":
            return pa.array(np.clip(whole, -128, 127)).cast(pa.float32() if kind == "float32" else pa.int8())
        case "int":
            return pa.array(whole)
        case "beyond_floats":
            return pa.array(BEYOND + whole)
        case "bool":
            return pa.array(whole > 0)
        case "string" | "bytes":
            return pa.array(text if kind == "string" else [each.encode() for each in text])
        case "floats" | "ints" | "strings":
            values = {"floats": numbers.tolist(), "ints": whole.tolist(), "strings": text}[kind]
            return pa.array([[each] * size for each, size in zip(values, several, strict=True)])
        case "struct" | "text_in_struct":
            return pa.array([{"a": each} for each in (numbers.tolist() if kind == "struct" else text)])
        case "structs":
            return pa.array([[{"a": each}] * size for each, size in zip(numbers.tolist(), several, strict=True)])
        case "vector" | "fixed_list":
            size = -1 if kind == "vector" else 2
            return pa.array(np.stack([numbers, -numbers], 1).tolist(), pa.list_(pa.float64(), size))
        case "date":
            return pa.array([date(2026, 1, 1) + timedelta(days=int(each)) for each in whole])
        case "timestamp":
            return pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=float(each)) for each in numbers])
    return pa.array(numbers)


@dataclass(frozen=True)
class Drawn:
    """Rows of a reference and current ones, and a schema with comparators of their feature."""

    kind: str
    change: str
    schema: schema_pb2.Schema
    reference: pa.Table
    current: pa.Table
    measures: frozenset[str]

    @classmethod
    def of(cls, seed: int) -> Drawn:
        draw, numbers = random.Random(seed), np.random.default_rng(seed)
        kind, change = draw.choice(sorted(HAS)), draw.choice(CHANGES)
        rows, sign, lacking = draw.randint(300, 900), draw.choice((-1, 1)), draw.choice((0.0, 0.2))
        old = numbers.normal(0, 10, rows) if change != "constant" else np.full(rows, -8.0 * sign)
        new = {"moved": old + 30 * sign, "constant": -old}.get(change, old)
        one, other = column(kind, old), column(kind, new)
        if change == "missing":
            other = pa.nulls(rows, draw.choice((other.type, pa.null())))
        else:
            gone, order = np.arange(rows) < lacking * rows, numbers.permutation(rows)
            one = one.take(pa.array(np.arange(rows), mask=gone))
            other = other.take(pa.array(order, mask=gone[order]))
        schema = schema_pb2.Schema()
        schema.feature.add(name="other", type=schema_pb2.FLOAT).skew_comparator.SetInParent()
        feature = schema.feature.add(name="f")
        if kind in NAMES:
            feature = feature.struct_domain.feature.add(name="a")
        measures = draw.sample(MEASURES, draw.randint(0, 2))
        for comparator in (feature.skew_comparator, feature.drift_comparator):
            comparator.SetInParent()
            for measure in measures:
                getattr(comparator, measure).threshold = draw.choice((0.01, 0.05, 0.1))
        others = pa.array(np.arange(rows) % 7.0)
        tables = (pa.table({"f": each, "other": others}) for each in (one, other))
        return cls(kind, change, schema, *tables, frozenset(measures))

    def check(self, *, sampled: bool) -> None:
        """Compares both sides, and asserts that a change of all rows is found or named, and no change is none."""
        sides = [self.reference, self.current]
        report = detect_skew(*(sides if sampled else map(generate_statistics, sides)), schema=self.schema, min_rows=1)
        name = NAMES.get(self.kind, "f")
        notes = [note for note in report.notes if name in note]
        lacking = sorted(self.measures - HAS[self.kind])
        assert all(any(measure in note for note in notes) for measure in lacking), notes
        if self.change == "equal":
            assert report.verdict == STABLE, report
        elif name not in report.drifted:
            assert not sampled and any(note.startswith("Not compared") for note in notes), report

    def check_validation(self) -> None:
        """Compares both sides as spans of a validation."""
        one, other = map(side_of, (self.reference, self.current))
        anomalies = find_anomalies(other.statistics, self.schema, previous=one.statistics)
        add_drift(anomalies, one, other, self.schema)
        drifted = {name for name, info in anomalies.anomaly_info.items() if any(map(_is_drift, info.reason))}
        name = {NAMES.get(self.kind, "f")}
        assert drifted <= name if self.change == "missing" else drifted == (set() if self.change == "equal" else name)


def _is_drift(reason: Any) -> bool:
    return anomalies_pb2.AnomalyInfo.Type.Name(reason.type).startswith("COMPARATOR_")


@campaign("seeds", range(100), range(100, 2_100))
def test_changes_of_any_type_by_any_measure_are_found_or_named(seeds: range) -> None:
    for seed in seeds:
        drawn = Drawn.of(seed)
        try:
            drawn.check(sampled=True)
            drawn.check(sampled=False)
            drawn.check_validation()
        except Exception as error:
            error.add_note(f"seed {seed}: {drawn.kind}, {drawn.change}, {sorted(drawn.measures)}")
            raise


def test_the_measure_furthest_above_its_threshold_counts() -> None:
    schema = schema_pb2.Schema()
    comparator = schema.feature.add(name="f", type=schema_pb2.BYTES).skew_comparator
    comparator.infinity_norm.threshold, comparator.jensen_shannon_divergence.threshold = 0.9, 0.01
    old, new = (pa.table({"f": ["a"] * share + ["b"] * (1000 - share)}) for share in (500, 800))
    skew = detect_skew(old, new, schema=schema).features["f"]
    assert skew.drifted and (skew.measure, skew.threshold) == ("jensen_shannon", 0.01)


def test_integers_above_2_53_are_compared_exactly() -> None:
    """One of four windows of ids that only differ in digits that floats lack is equal to the reference."""
    old = BEYOND + np.arange(400)
    for new, drifts in ((old[::-1], False), (old + 150, True), (np.full(400, BEYOND + 7), True), (old - 2**61, True)):
        report = detect_skew(pa.table({"id": old}), pa.table({"id": new}))
        assert bool(report.drifted) == drifts
    constant = detect_skew(pa.table({"id": old}), pa.table({"id": np.full(400, BEYOND + 7)})).features["id"]
    assert (constant.cause, constant.detail) == ("constant", "1152921504606846983")
    unsigned = [
        pa.table({"id": pa.array([2**64 - 1 - shift - i for i in range(400)], pa.uint64())}) for shift in (0, 99)
    ]
    assert detect_skew(*unsigned).drifted == ("id",)
