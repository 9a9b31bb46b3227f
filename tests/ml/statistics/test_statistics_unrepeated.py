"""Columns that hardly repeat their values: sketches fed with less than all of them, and columns shared out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.ml.statistics import generate_statistics, sketches
from airflow_hops.ml.statistics.frequent_hashes import FrequentHashes
from airflow_hops.ml.statistics.sketches import TOP_VALUES_BUCKETS, CountedQuantiles
from airflow_hops.ml.statistics.sources import plan_source

pytestmark = pytest.mark.runtime
ROWS = 150_000


@pytest.mark.parametrize("seed", range(5))
def test_summary_keeps_every_hash_that_is_frequent_enough(seed: int) -> None:
    random = np.random.default_rng(seed)
    summaries, seen = [FrequentHashes(50), FrequentHashes(50)], Counter[int]()
    for _ in range(40):
        hashes = (random.zipf(1.2, 1000) % 3_000).astype(np.uint64)
        weights = np.ones(1000) if seed % 2 else random.integers(1, 9, 1000)
        summaries[random.integers(2)].add(hashes, weights)
        for value, weight in zip(hashes.tolist(), weights.tolist(), strict=True):
            seen[value] += weight
    retained, other = summaries
    retained.add(other.hashes, other.counts)
    bound = sum(seen.values()) / 51
    counts = dict(zip(retained.hashes.tolist(), retained.counts.tolist(), strict=True))
    assert len(counts) == 50
    assert any(times > bound for times in seen.values())
    assert all(value in counts for value, times in seen.items() if times > bound)
    assert all(seen[value] - bound <= count <= seen[value] for value, count in counts.items())


@pytest.mark.parametrize("epsilon", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("kind", ["normal", "integers", "few", "ascending"])
def test_quantiles_are_within_the_stated_error(kind: str, epsilon: float) -> None:
    random = np.random.default_rng(1)
    values = {
        "normal": random.normal(size=300_000),
        "integers": random.integers(0, 10**6, 300_000),
        "few": random.integers(0, 20, 300_000),
        "ascending": np.arange(300_000.0),
    }[kind]
    summaries = [CountedQuantiles(epsilon), CountedQuantiles(epsilon)]
    for number, batch in enumerate(np.array_split(values, [1, 900, 40_000, 105_000, 170_000, 235_000])):
        summaries[number % 2].AddValues(pa.array(batch))
    summaries[0].Merge(summaries[1])
    result = summaries[0].GetQuantiles(100).flatten().to_numpy()
    ordered = np.sort(values)
    assert (result[0], result[-1]) == (ordered[0], ordered[-1])
    wanted = np.arange(101) / 100 * len(values)
    low, high = np.searchsorted(ordered, result, "left"), np.searchsorted(ordered, result, "right")
    assert np.maximum(low - wanted, wanted - high).max() <= epsilon * len(values)


def _with_frequent_values(random: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Nearly all values differ, but a few; and the rows' weights."""
    texts = [f"id-{i}" for i in random.permutation(ROWS)]
    for number in range(30):
        for row in random.choice(ROWS, 40 + 10 * number, replace=False):
            texts[row] = f"often-{number}"
    weights = random.random(ROWS)
    texts[5] = "heavy"
    weights[5] = 1e5
    return texts, weights


@pytest.mark.parametrize("processes", [1, 2])
def test_nearly_unique_values_have_exact_top_values_and_weights(tmp_path: Path, processes: int) -> None:
    texts, weights = _with_frequent_values(np.random.default_rng(3))
    pq.write_table(pa.table({"x": texts, "w": weights}), tmp_path / "x.parquet")
    options = tfdv.StatsOptions(weight_feature="w", num_top_values=20)
    result = generate_statistics(tmp_path, options=options, processes=processes).datasets[0].features[0].string_stats
    expected = Counter(texts).most_common(20)
    assert sorted((v.frequency, v.value) for v in result.top_values) == sorted((n, text) for text, n in expected)
    heaviest: Counter[str] = Counter()
    for text, weight in zip(texts, weights, strict=True):
        heaviest[text] += weight
    for value, (text, weight) in zip(result.weighted_string_stats.top_values, heaviest.most_common(20), strict=True):
        assert (value.value, value.frequency) == (text, pytest.approx(weight))
    assert result.unique == pytest.approx(len(set(texts)), rel=0.03)
    assert len(result.rank_histogram.buckets) == 1000


@pytest.fixture(params=[0, 1 << 20, 32 << 20], ids=["read again", "kept at first", "kept"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many bytes of a column may be kept for the count of its top values."""
    monkeypatch.setattr(sketches, "_KEPT_BYTES", request.param)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("rows", [ROWS, ROWS // 2])
@pytest.mark.parametrize("processes", [1, 2])
def test_slightly_repeated_values_are_counted(tmp_path: Path, processes: int, rows: int) -> None:
    random = np.random.default_rng(4)
    texts = np.char.add("value-é-", random.integers(0, 30_000, ROWS).astype("U8")).tolist()
    texts[: ROWS // 2 : 50] = ["often"] * len(texts[: ROWS // 2 : 50])
    texts[1::30] = [None] * len(texts[1::30])
    pq.write_table(pa.table({"x": texts, "n": np.arange(ROWS)}), tmp_path / "x.parquet", row_group_size=rows)
    result = generate_statistics(tmp_path, processes=processes).datasets[0].features[0].string_stats
    times = Counter(text for text in texts if text is not None)
    assert (result.top_values[0].value, result.top_values[0].frequency) == times.most_common(1)[0]
    assert all(v.frequency == times[v.value] for v in result.top_values)
    assert all(b.sample_count == times[b.label] for b in result.rank_histogram.buckets)
    assert len(result.rank_histogram.buckets) == 1000


def test_frequent_values_have_exact_counts(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    texts = [f"{value}" for value in (random.exponential(20_000, ROWS)).astype(int)]
    pq.write_table(pa.table({"x": texts}), tmp_path / "x.parquet")
    result = generate_statistics(tmp_path).datasets[0].features[0].string_stats
    expected = sorted(((times, text) for text, times in Counter(texts).items()), reverse=True)[:1000]
    assert [(b.sample_count, b.label) for b in result.rank_histogram.buckets] == expected


@pytest.mark.usefixtures("room")
def test_large_and_binary_values_count_together_if_nearly_unique(tmp_path: Path) -> None:
    values = [b"%d" % i for i in range(ROWS)]
    values[::1000] = [b"\xff%d" % i for i in range(len(values[::1000]))]
    values[1::1500] = [b"%d" % i + b"x" * 2000 for i in range(len(values[1::1500]))]
    pq.write_table(pa.table({"x": pa.array(values)}), tmp_path / "x.parquet")
    top = generate_statistics(tmp_path).datasets[0].features[0].string_stats.top_values
    assert [(v.value, v.frequency) for v in top[:3]] == [
        ("__BYTES_VALUE__", 150), ("__LARGE_BYTES__", 100), (top[2].value, 1),
    ]  # fmt: skip


def test_nearly_unique_categorical_integers_have_exact_top_values(tmp_path: Path) -> None:
    values = np.arange(ROWS) - ROWS // 2
    values[::500] = -7
    pq.write_table(pa.table({"x": values}), tmp_path / "x.parquet")
    text = "feature { name: 'x' type: INT int_domain { is_categorical: true } }"
    options = tfdv.StatsOptions(schema=text_format.Parse(text, schema_pb2.Schema()))
    result = generate_statistics(tmp_path, options=options).datasets[0].features[0].string_stats
    assert (result.top_values[0].value, result.top_values[0].frequency) == ("-7", 301)
    assert result.top_values[1].frequency == 1


def test_values_just_exceeding_the_sketch_have_exact_top_values(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for seed in range(12):
        # 3 to 5 in 100 such sets of hashes make a sketch of as many buckets estimate less than there are.
        texts = [f"{seed}/{i}" for i in range(TOP_VALUES_BUCKETS + 1)]
        texts = random.permutation(texts + random.choice(texts, 40_000).tolist()).tolist()
        pq.write_table(pa.table({"x": texts}), tmp_path / "x.parquet")
        result = generate_statistics(tmp_path).datasets[0].features[0].string_stats
        assert result.unique == TOP_VALUES_BUCKETS + 1
        assert [v.frequency for v in result.top_values] == sorted(Counter(texts).values())[
            : -len(result.top_values) - 1 : -1
        ]


@pytest.mark.parametrize("processes", [1, 2])
def test_frequent_value_among_early_repeats_is_found(tmp_path: Path, processes: int) -> None:
    texts = [f"{batch}-{i // 5}" for batch in range(4) for i in range(60_000)]
    weights = np.ones(len(texts))
    texts[7], weights[7] = "heavy", 1e6
    pq.write_table(pa.table({"x": texts, "w": weights}), tmp_path / "x.parquet", row_group_size=60_000)
    options = tfdv.StatsOptions(weight_feature="w")
    result = generate_statistics(tmp_path, options=options, processes=processes).datasets[0].features[0].string_stats
    top = result.weighted_string_stats.top_values[0]
    assert (top.value, top.frequency) == ("heavy", 1e6)


def test_stream_read_once_has_estimated_top_values() -> None:
    texts, _ = _with_frequent_values(np.random.default_rng(3))
    batches = pa.table({"x": texts}).to_batches(max_chunksize=50_000)
    result = generate_statistics(iter(batches)).datasets[0].features[0].string_stats
    assert result.unique == pytest.approx(len(set(texts)), rel=0.03)
    times = Counter(texts)
    assert all(0 <= v.frequency - times[v.value] <= ROWS / 16_384 + 1 for v in result.top_values)


def test_batches_of_one_row_group_are_shared_out(tmp_path: Path, own_process: Callable[..., Any]) -> None:
    random = np.random.default_rng(2)
    columns: dict[str, Any] = {f"n{i}": random.normal(size=ROWS) for i in range(6)}
    columns["text"] = [f"v{i % 70}" for i in range(ROWS)]
    columns["struct"] = [{"a": i % 5, "b": None} for i in range(ROWS)]
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    plan = plan_source(tmp_path)
    assert [part.span.shares for part in plan.dealt(2)] == [2, 2]
    one, two = own_process(_by_workers, tmp_path)
    assert [f.path.step[:] for f in two.features] == [f.path.step[:] for f in one.features]
    assert two.num_examples == one.num_examples == ROWS
    assert two.features[6] == one.features[6]


def _by_workers(path: Path) -> list[Any]:
    return [generate_statistics(path, processes=processes).datasets[0] for processes in (1, 2)]
