"""Lift and other statistics of pairs of features: equal to TFDV's, which needs Beam for them, and is recorded."""

from __future__ import annotations

import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import json_format, text_format
from recorded_results import assert_close, check_recorded, recorded
from statistics_equality import beam_pipeline
from tensorflow_data_validation.statistics.generators.lift_stats_generator import LiftStatsGenerator
from tensorflow_data_validation.types import FeaturePath
from tensorflow_data_validation.utils.example_weight_map import ExampleWeightMap
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public.proto import slicing_spec_pb2

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.statistics import generate_statistics, lift
from airflow_hops.ml.statistics.arrow_lists import as_lists
from airflow_hops.ml.statistics.combiners import Accumulator, Combiners
from airflow_hops.ml.statistics.lift import LiftGenerator
from airflow_hops.ml.statistics.row_keys import keys_of
from tests import flights_examples

CASES: dict[str, dict[str, Any]] = {
    "defaults": {"label": "late"},
    "weight_of_one_feature": {
        "label": "late", "weights_by_feature": {"carrier": "weight", "late": "weight"},
        "features": ["carrier", "origin"],
    },
    "buckets": {"label": "distance", "boundaries": [500, 1000, 2000], "features": ["carrier", "tags", "weekday"]},
    "highest_and_lowest": {
        "label": "late", "weight": "weight", "top": 2, "bottom": 3, "min_count": 5, "features": ["dest", "carrier"],
    },
    "label_of_several_values": {"label": "tags", "features": ["carrier", "weekday"]},
    "label_of_text": {"label": "origin", "features": ["dest", "awkward"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def batches(flights_raw: Path) -> list[pa.RecordBatch]:
    winter = flights_examples.months(flights_raw, 1, 3)
    return _batches(flights_examples.to_arrow(winter[winter.index % 250 == 0]))


@pytest.mark.parametrize("case", CASES)
def test_lift_equals_tfdv(batches: list[pa.RecordBatch], case: str) -> None:
    expected = recorded("tfdv_lift")[case]
    assert len(expected["lift"]) >= 2
    assert_close(_ours(batches, _schema(), CASES[case]), expected)


def test_sliced_statistics_have_the_lift_of_each_slice(batches: list[pa.RecordBatch]) -> None:
    combiners = Combiners(_sliced())
    halves = []
    for number in range(2):
        accumulator = Accumulator()
        for batch in batches[number::2]:
            combiners.add(accumulator, batch, keys_of(0, 0, batch.num_rows))
        halves.append(pickle.loads(pickle.dumps(accumulator)))
    ours = _by_slice(combiners.extract(combiners.merge_tree(halves)))
    assert set(ours) == {"All Examples", "origin_EWR", "origin_JFK", "origin_LGA"}
    assert_close(ours, recorded("tfdv_lift")["sliced"])


@pytest.mark.scheduled(part="tfx")
def test_recorded_lift_is_that_of_tfdvs_pipeline(batches: list[pa.RecordBatch]) -> None:
    results = _written(batches, {name: _of_tfdv(case) for name, case in CASES.items()} | {"sliced": _sliced()})
    sliced = results.pop("sliced")
    lift = {name: _values(result.datasets[0]) for name, result in results.items()} | {"sliced": _by_slice(sliced)}
    check_recorded("tfdv_lift", lift)


def test_high_cardinality_features_have_no_lift_in_any_order(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lift, "MAX_PAIRS", 4_000)
    rows = lift.MAX_PAIRS // 2 + 1
    columns = {
        "y": pa.array(np.arange(rows) % 2),
        "unique": pa.array([f"{i}" for i in range(rows)]),
        "short": pa.array(["a", "b", "c"] * (rows // 3) + ["a"] * (rows % 3)),
        "large": pa.array(["x" * 5_000_000 + str(i % 2) for i in range(4)] + [None] * (rows - 4)),
        "absent": pa.nulls(rows),
    }
    batch = as_lists(_batch(columns))
    generator = LiftGenerator(FeaturePath(["y"]))
    parts = [batch.slice(0, rows // 2), batch.slice(rows // 2)]

    def features_of(*parts: Any) -> list[str]:
        accumulators = [generator.add_input(generator.create_accumulator(), part) for part in parts]
        result = generator.extract_output(generator.merge_accumulators(accumulators))
        return [cross.path_x.step[0] for cross in result.cross_features]

    assert features_of(batch) == features_of(*parts) == features_of(*reversed(parts)) == ["short"]
    assert features_of(parts[0].slice(0, 1000)) == ["short", "unique"]
    assert features_of(batch.slice(0, 0)) == []
    assert caplog.text.count("has too many values") >= 2


def _take(label: str, **arguments: Any) -> Any:
    batch = as_lists(_batch({"x": ["a"] * 2000, "f": [1.5] * 2000, "many": list(range(2000))}))
    generator = LiftGenerator(FeaturePath([label]), **arguments)
    return generator.extract_output(generator.add_input(generator.create_accumulator(), batch))


def _of_schema(label: str) -> Any:
    return generate_statistics(pa.table({"x": ["a"]}), options=tfdv.StatsOptions(schema=_schema(), label_feature=label))


def test_unsuitable_lift_label_is_named() -> None:
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: _take("y"), "label feature 'y': there is no such column"),
        (lambda: _take("f"), "<item: double>, expected strings or integers; for a number, give boundaries"),
        (lambda: _take("many"), "label feature 'many' has more than 1,000 distinct values, expected a category"),
        (lambda: _take("x", boundaries=[1.0]), "expected numbers, since there are boundaries"),
        (lambda: _of_schema("y"), "label feature 'y' is not in the schema"),
        (lambda: _of_schema("distance"), "label feature 'distance' is a number in the schema, expected a category"),
        (
            lambda: _take("late", schema=_schema(), boundaries=[0.5]),
            "label feature 'late' is a category in the schema: it has no boundaries",
        ),
    ]
    for attempt, words in attempts:
        with pytest.raises(BadInput, match=re.escape(words)):
            attempt()


def _batch(columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.table(columns).to_batches()[0]


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Flights with what is awkward beside: several values in an example, none, weights, bytes that are no text."""
    rows = table.num_rows
    pairs = zip(table["carrier"].to_pylist(), table["origin"].to_pylist(), strict=True)
    tags = [None if i % 7 == 0 else [a, b, a][: i % 4] for i, (a, b) in enumerate(pairs)]
    awkward = [[b"\xff", b"\xfe", "é".encode(), b"", b"plain"][i % 5] for i in range(rows)]
    weight = np.random.default_rng(3).uniform(0, 2, rows)
    weight[np.array(awkward) == b"plain"] = 0.5
    late = [None if i % 11 == 0 else value for i, value in enumerate(table["late"].to_pylist())]
    letters = pc.utf8_slice_codeunits(table["dest"], 0, 1)
    table = (
        table.set_column(table.column_names.index("dest"), "dest", letters)
        .select(["carrier", "origin", "dest", "weekday", "distance", "temp"])
        .append_column("late", pa.array(late, pa.int64()))
        .append_column("tags", pa.array(tags, pa.list_(pa.binary())))
        .append_column("awkward", pa.array(awkward))
        .append_column("weight", pa.array(weight))
    )
    batches = []
    for number, batch in enumerate(map(as_lists, table.to_batches(max_chunksize=60))):
        # Beam merges batches of the very same types alone.
        columns = [column.cast(pa.large_list(column.type.value_type)) for column in batch.columns]
        if number == 0:
            columns[batch.schema.get_field_index("dest")] = pa.nulls(batch.num_rows)
        batches.append(pa.RecordBatch.from_arrays(columns, batch.schema.names))
    return batches


def _schema() -> Any:
    return text_format.Parse(
        "".join(f'feature {{ name: "{name}" type: BYTES }} ' for name in
                ("carrier", "origin", "dest", "tags", "awkward"))
        + 'feature { name: "late" type: INT bool_domain {} } feature { name: "distance" type: FLOAT }'
        + 'feature { name: "weekday" type: INT int_domain { is_categorical: true } }'
        + 'feature { name: "temp" type: FLOAT } feature { name: "weight" type: FLOAT }',
        schema_pb2.Schema(),
    )  # fmt: skip


def _paths(names: Any) -> Any:
    return None if names is None else [FeaturePath([name]) for name in names]


def _weights(case: dict[str, Any]) -> Any:
    by_feature = {FeaturePath([name]): column for name, column in case.get("weights_by_feature", {}).items()}
    return ExampleWeightMap(case.get("weight"), by_feature or None)


def _ours(batches: list[pa.RecordBatch], schema: Any, case: dict[str, Any]) -> Any:
    generator = LiftGenerator(
        *_paths([case["label"]]),
        schema=schema,
        features=_paths(case.get("features")),
        boundaries=case.get("boundaries"),
        min_count=case.get("min_count", 0),
        top_values=case.get("top"),
        bottom_values=case.get("bottom"),
        weights=_weights(case),
    )
    accumulators = [generator.create_accumulator() for _ in range(3)]
    for number, batch in enumerate(batches):
        accumulators[number % 2] = generator.add_input(accumulators[number % 2], batch)
    accumulators = [pickle.loads(pickle.dumps(accumulator)) for accumulator in accumulators]
    return _values(generator.extract_output(generator.merge_accumulators(reversed(accumulators))))


def _sliced() -> tfdv.StatsOptions:
    slicing = slicing_spec_pb2.SlicingConfig(slicing_specs=[slicing_spec_pb2.SlicingSpec(feature_keys=["origin"])])
    return tfdv.StatsOptions(
        schema=_schema(), label_feature="late", weight_feature="weight", slicing_config=slicing,
        use_sketch_based_topk_uniques=True,
    )  # fmt: skip


def _of_tfdv(case: dict[str, Any]) -> tfdv.StatsOptions:
    generator = LiftStatsGenerator(
        *_paths([case["label"]]),
        schema=_schema(),
        x_paths=_paths(case.get("features")),
        y_boundaries=case.get("boundaries"),
        min_x_count=case.get("min_count", 0),
        top_k_per_y=case.get("top"),
        bottom_k_per_y=case.get("bottom"),
        example_weight_map=_weights(case),
        output_custom_stats=True,
    )
    return tfdv.StatsOptions(generators=[generator], add_default_generators=False)


def _written(batches: list[pa.RecordBatch], options: dict[str, tfdv.StatsOptions]) -> dict[str, Any]:
    """The statistics of some rows by TFDV's own pipeline, by the options' names."""
    with tempfile.TemporaryDirectory() as folder:
        with beam_pipeline() as pipeline:
            examples = pipeline | beam.Create(batches, reshuffle=False)
            for name, of in options.items():
                _ = (
                    examples
                    | f"statistics of {name}" >> tfdv.GenerateStatistics(of)
                    | f"write {name}" >> tfdv.WriteStatisticsToBinaryFile(f"{folder}/{name}.pb")
                )
        return {name: tfdv.load_stats_binary(f"{folder}/{name}.pb") for name in options}


def _values(dataset: Any) -> dict[str, Any]:
    """The cross features and custom statistics by feature: Beam gives them in no order."""
    crosses = [json_format.MessageToDict(cross) for cross in dataset.cross_features]
    return {
        "lift": {".".join(cross["pathX"]["step"]): cross for cross in crosses},
        "custom": {
            ".".join(feature.path.step): [json_format.MessageToDict(value) for value in feature.custom_stats]
            for feature in dataset.features
            if feature.custom_stats
        },
    }


def _by_slice(statistics: Any) -> dict[str, Any]:
    return {
        dataset.name: {
            **_values(dataset),
            "rows": dataset.num_examples,
            "types": {".".join(feature.path.step): feature.type for feature in dataset.features},
        }
        for dataset in statistics.datasets
    }
