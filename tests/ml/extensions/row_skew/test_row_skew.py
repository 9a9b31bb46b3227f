"""Row-level skew, as TFDV's feature-skew detector finds it, and captured rows of any number of features."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from recorded_results import check_recorded, recorded
from tensorflow_data_validation.skew import feature_skew_detector as detector
from tfx_bsl.coders.example_coder import RecordBatchToExamples

from airflow_hops.core.errors import BadInput
from airflow_hops.core.versions import message_to_json
from airflow_hops.extensions.row_skew import detect_row_skew
from airflow_hops.extensions.row_skew.ml import join
from airflow_hops.ml.statistics.arrow_lists import as_lists

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rounded": {"float_rounding": 2},
    "duplicates": {"allow_duplicate_identifiers": True},
}
AWKWARD = [None, np.nan, np.inf, -np.inf, 0.0, -0.0, 1.25, 1.251, 2.5, 1e-9, 3.4e38]


def awkward_tables(rows: int = 240) -> tuple[pa.Table, pa.Table]:
    """Training and serving rows with values of every kind, of which some differ, some are gone, some are repeated."""
    random = np.random.default_rng(5)

    def drawn(values: Sequence[Any], kind: Any, share: float = 0.3) -> tuple[pa.Array, pa.Array]:
        base = [values[i] for i in random.integers(0, len(values), rows)]
        other = [values[i] for i in random.integers(0, len(values), rows)]
        changed = random.random(rows) < share
        return pa.array(base, kind), pa.array(
            [o if c else b for b, o, c in zip(base, other, changed, strict=True)], kind
        )

    lists = [None, [], [1], [1, 2], [1, 2, 3], [2, 1], [3]]
    texts = [None, [], [""], ["a"], ["a", "b"], ["b", "a"], ["ü"]]
    pairs = {
        "float": drawn(AWKWARD, pa.float32()),
        "double": drawn([v and v * 1.1 for v in AWKWARD[:-1]], pa.float64()),
        "integer": drawn([None, 0, 1, -1, 2**63 - 1, -(2**63)], pa.int64()),
        "text": drawn([None, "", "a", "A", "longer text"], pa.string()),
        "bytes": drawn([b"\xff", b"\x00", b"", None], pa.binary()),
        "integers": drawn(lists, pa.list_(pa.int64())),
        "floats": drawn([v and [float(x) / 3 for x in v] for v in lists], pa.large_list(pa.float32())),
        "texts": drawn(texts, pa.list_(pa.string())),
        "flag": drawn([True, False, None], pa.bool_()),
        "same": drawn([1.5, 2.5], pa.float64(), 0.0),
        "gone": (pa.array(["here"] * rows), pa.nulls(rows, pa.string())),
        "never": (pa.nulls(rows, pa.float64()), pa.nulls(rows, pa.float64())),
        "other_type": (pa.array(np.arange(rows) % 5), pa.array(np.arange(rows) % 5 + 0.0)),
    }
    name = pa.array([None if i % 37 == 0 else f"row {i // 2 if i % 11 == 0 else i}" for i in range(rows)])
    day = pa.array([[i % 7] if i % 53 else [] for i in range(rows)])
    base = pa.table({"day": day, "name": name, **{n: b for n, (b, _) in pairs.items()}, "label": pa.array(range(rows))})
    test = pa.table({"name": name, **{n: t for n, (_, t) in pairs.items()}, "day": day, "sent": pa.array(range(rows))})
    served = random.permutation(rows)[: rows * 2 // 3]
    return base.slice(0, rows - 20), test.take(pa.array([*served, *served[:12]]))


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Returns the answers of this package under each of the options, in stretches that cut batches."""
    base, test = awkward_tables()
    sides = _in_batches(base, 50), _in_batches(test, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "STRETCH_ROWS", 40)
        return {
            name: detect_row_skew(*sides, identifiers=["name", "day"], ignore=["sent"], **options).to_dict()
            for name, options in OPTIONS.items()
        }


def _in_batches(table: pa.Table, rows: int) -> Any:
    return lambda columns: (table.select(columns) if columns else table).to_batches(max_chunksize=rows)


def _by_tfdv(base: pa.Table, test: pa.Table, options: Mapping[str, Any]) -> dict[str, Any]:
    _FOUND.clear()
    with beam.Pipeline() as pipeline:
        sides = tuple(
            pipeline | name >> beam.Create(_examples(table)) for name, table in (("base", base), ("test", test))
        )
        results = sides | detector.DetectFeatureSkewImpl(
            ["name", "day"],
            ["sent"],
            sample_size=100_000,
            float_round_ndigits=options.get("float_rounding"),
            allow_duplicate_identifiers=options.get("allow_duplicate_identifiers", False),
        )
        for key, values in results.items():
            _ = values | f"keep {key}" >> beam.Map(_keep, key)
    skew, (matches,) = map(_counts, _FOUND["skew_results"]), map(_counts, _FOUND["match_stats"])
    pairs = len(_FOUND.get(detector.SKEW_PAIRS_KEY, []))
    return {"skew": {each.pop("feature_name"): each for each in skew}, "matches": matches, "pairs": pairs}


def _counts(message: Any) -> dict[str, Any]:
    value = json.loads(message_to_json(message, preserving_proto_field_name=True))
    return {name: count if name == "feature_name" else int(count) for name, count in value.items()}


_FOUND: dict[str, list[Any]] = {}


def _keep(value: Any, key: str) -> None:
    _FOUND.setdefault(key, []).append(value)


def _examples(table: pa.Table) -> list[Any]:
    batch = as_lists(table.combine_chunks().to_batches()[0])
    narrow = [c.cast(pa.large_list(pa.float32())) if _doubles(c.type) else c for c in batch.columns]
    batch = pa.RecordBatch.from_arrays(narrow, batch.schema.names)
    return [tf.train.Example.FromString(example) for example in RecordBatchToExamples(batch)]


def _doubles(kind: Any) -> bool:
    return bool(pa.types.is_float64(kind.value_type)) if hasattr(kind, "value_type") else False


@pytest.mark.scheduled(part="tfx")
def test_recorded_skew_is_that_of_tfdvs_pipeline() -> None:
    check_recorded("tfdv_row_skew", {name: _by_tfdv(*awkward_tables(), options) for name, options in OPTIONS.items()})


@pytest.mark.parametrize("name", OPTIONS)
def test_skew_counts_match_tfdv(answers: dict[str, Any], name: str) -> None:
    ours, tfdv = answers[name], recorded("tfdv_row_skew")[name]
    features = ours["features"]
    assert {"gone", "never", "other_type", "label", "float", "texts"} < set(features)
    assert {each: {field: skew[field] for field in tfdv["skew"][each]} for each, skew in features.items()} == tfdv[
        "skew"
    ]
    assert {each for each, skew in features.items() if 0 < skew["mismatch_count"] < skew["match_count"]} >= {
        "float", "double", "integer", "text", "bytes", "integers", "floats", "texts", "flag",
    }  # fmt: skip
    assert ours["matches"] == tfdv["matches"] and min(ours["matches"].values()) > 0
    assert ours["skewed_pairs"] == tfdv["pairs"]
    counts = [skew["diff_count"] for skew in features.values()]
    assert counts == sorted(counts, reverse=True)
    assert ours["skewed"] == [each for each, skew in features.items() if skew["diff_count"]]


def test_skewed_features_have_examples(answers: dict[str, Any]) -> None:
    features = answers["plain"]["features"]
    for name, skew in features.items():
        assert len(skew["examples"]) == min(10, skew["diff_count"]), name
        for example in skew["examples"]:
            assert set(example["identifier"]) == {"name", "day"}
            if skew["types"][0] == skew["types"][1] and name not in ("float", "double"):  # 0.0 == -0.0
                assert example["training"] != example["serving"], name
    assert features["other_type"]["types"] == ("INT", "FLOAT")
    gone = features["gone"]["examples"][0]
    assert (gone["training"], gone["serving"]) == ("here", None)


def test_tables_files_and_streams_agree(tmp_path: Path) -> None:
    keys = ["name", "integer"]
    base, test = (table.select([*keys, "float", "text", "integers"]) for table in awkward_tables())
    (tmp_path / "training").mkdir()
    for part in range(3):
        rows = base.slice(part * 80, 80)
        pq.write_table(rows, tmp_path / "training" / f"part-{part}.parquet", row_group_size=30)
    pq.write_table(test, tmp_path / "serving.parquet", row_group_size=50)
    first, *others = (
        detect_row_skew(*pair, identifiers=keys, examples=0).to_dict()
        for pair in [
            (base, test),
            (str(tmp_path / "training"), tmp_path / "serving.parquet"),
            (iter(base.to_batches(max_chunksize=70)), test.to_batches(max_chunksize=20)),
        ]
    )
    assert first["pairs"] > 50
    assert first["skewed"]
    for other in others:
        assert other == first


def test_pairs_of_one_identifier_are_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = pa.table({"id": [1] * 300, "x": np.arange(300.0)})
    for rows, pairs in ((join.STRETCH_ROWS, join.PAIRS_AT_ONCE), (join.STRETCH_ROWS, 700), (90, 700)):
        monkeypatch.setattr(join, "STRETCH_ROWS", rows)
        monkeypatch.setattr(join, "PAIRS_AT_ONCE", pairs)
        report = detect_row_skew(ones, ones, identifiers=["id"], allow_duplicate_identifiers=True, examples=5)
        assert (report.pairs, report.features["x"].diff_count) == (90_000, 89_700)
        assert report.to_dict()["matches"]["duplicate_id_count"] == 1


def test_changed_row_order_on_second_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "STRETCH_ROWS", 30)
    rows = pa.table({"id": np.arange(100), "x": np.arange(100.0)})
    turned = rows.take(pa.array(np.arange(100)[::-1]))
    with pytest.raises(BadInput, match="serving: 100 pairs were to be compared, but 20 were found when the rows were"):
        detect_row_skew(rows, lambda columns: (rows if columns else turned).to_batches(), identifiers=["id"])


def test_examples_are_drawn_evenly() -> None:
    rows = pa.table({"id": np.arange(10_000), "x": np.arange(10_000.0)})
    moved = rows.set_column(1, "x", pa.array(np.arange(10_000.0) + 1))
    drawn = detect_row_skew(rows, moved, identifiers=["id"], examples=100).features["x"].examples
    ids = [example["identifier"]["id"] for example in drawn]
    assert len(set(ids)) == 100
    assert min(ids) < 1000 and max(ids) > 9000
    assert drawn[0]["serving"] == drawn[0]["training"] + 1 == ids[0] + 1
    none = detect_row_skew(rows, moved.slice(0, 0), identifiers=["id"]).to_dict()
    assert (none["pairs"], none["matches"]["test_with_id_count"]) == (0, 0)
    strangers = detect_row_skew(rows.slice(0, 10), rows.slice(10), identifiers=["id"]).to_dict()
    assert strangers["matches"]["ids_missing_in_base_count"] == 9990
    assert (strangers["pairs"], strangers["skewed"]) == (0, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"identifiers": []}, "identifiers is [], expected a list with at least one name"),
        ({"identifiers": "name"}, "identifiers is 'name', expected a list"),
        ({"identifiers": ["name", "number"]}, "serving.parquet: there is no column 'number'; there are name, float"),
        ({"identifiers": ["sent"]}, "training: there is no column 'sent'; there are day, name"),
        ({"identifiers": ["other_type"]}, "training: identifier 'other_type' is INT, but FLOAT in "),
    ],
)
def test_unjoinable_rows_are_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    base, test = awkward_tables()
    pq.write_table(test, tmp_path / "serving.parquet")
    with pytest.raises(BadInput) as refused:
        detect_row_skew(base, tmp_path / "serving.parquet", **options)
    assert words in str(refused.value)


def test_incomparable_type_is_named() -> None:
    objects = pa.table({"name": ["a"], "what": pa.array([{"x": 1}])})
    with pytest.raises(BadInput, match=r"column 'what' is struct<x: int64>"):
        detect_row_skew(objects, awkward_tables()[1], identifiers=["name"])
