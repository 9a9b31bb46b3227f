"""Sample of rows: uniform, the same for any number of processes, and bounded."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from written_tables import table_of, write

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.statistics import row_keys, sample
from airflow_hops.ml.statistics.generate import collect_statistics
from airflow_hops.ml.statistics.sample import SAMPLE_FILE, RowSample, load_sample, write_sample


def draw(source: Any, rows: int = 300, **options: Any) -> pa.Table:
    return collect_statistics(source, sample_rows=rows, **options).sample


def test_sampled_rows_are_those_of_any_copy_of_the_source(tmp_path: Path, small_parts: None) -> None:
    table = table_of(1000)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(table, tmp_path / folder / "t.parquet")
    result = draw(tmp_path / "a", 100)
    assert result.schema.names == table.schema.names
    assert result == table.take(result.column("id")) == draw(tmp_path / "b", 100)
    of_table, of_batches = draw(table, 100), draw(iter(table.to_batches(max_chunksize=90)), 100)
    assert of_table == of_batches == table.take(of_table.column("id"))


def test_every_row_is_equally_likely() -> None:
    drawn, rows = Counter[int](), 200
    files = 400
    for number in range(files):
        keys = row_keys.split_keys(row_keys.numbered(pa.record_batch([np.arange(rows)], ["x"]), 7), number)[1]
        drawn.update(np.argsort(row_keys.priorities_of(keys))[: rows // 10].tolist())
    counts = [drawn[row] for row in range(rows)]
    # Without replacement, the statistic is smaller by the share that is not drawn.
    statistic = sum((count - files / 10) ** 2 for count in counts) / (files / 10 * 0.9)
    assert 1e-4 < stats.chi2.sf(statistic, rows - 1) < 1 - 1e-4


def test_sample_and_its_head_are_uniform(tmp_path: Path) -> None:
    texts = np.repeat(["often", "seldom", "rarely"], [24_000, 4_500, 1_500])
    table = pa.table({"x": np.arange(30_000), "text": texts})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=7_000)
    result = draw(tmp_path, 6_000)
    values = result.column("x").to_numpy()
    assert stats.kstest(values[:1000] / 3e4, "uniform").pvalue > 1e-3
    assert stats.kstest(values / 3e4, "uniform").pvalue > 1e-3
    counts = Counter(result.column("text").to_pylist())
    shares = [counts[name] for name in ("often", "seldom", "rarely")]
    assert stats.chisquare(shares, [4_800, 900, 300]).pvalue > 1e-3


def test_few_rows_are_all_retained_and_samples_can_be_switched_off(tmp_path: Path) -> None:
    write(table_of(120), tmp_path / "t.csv")
    assert sorted(draw(tmp_path, 120).column("id").to_pylist()) == list(range(120))
    assert draw(tmp_path, 500).num_rows == 120
    assert draw(tmp_path, 0) is load_sample(tmp_path) is None
    with pytest.raises(BadInput, match="sample_rows is -1"):
        draw(tmp_path, -1)


def test_long_text_is_replaced_by_its_digest() -> None:
    long, raw = "é" * 600, b"\xff" * 2000
    columns = {
        "text": ["x" * 1024, long, None],
        "bytes": [raw, None, b""],
        "list": [[long, "a"], None, []],
        "struct": [{"a": long}, None, {"a": "b"}],
        "coded": pa.array([long, "a", None]).dictionary_encode(),
    }
    result = draw(pa.table({"n": [0, 1, 2], **columns})).sort_by("n")
    digest = f"sha256:{hashlib.sha256(long.encode()).hexdigest()} (1200 bytes)"
    assert result.column("text").to_pylist() == ["x" * 1024, digest, None]
    assert result.column("bytes").to_pylist() == [
        f"sha256:{hashlib.sha256(raw).hexdigest()} (2000 bytes)".encode(), None, b"",
    ]  # fmt: skip
    assert result.column("list").to_pylist() == [[digest, "a"], None, []]
    assert result.column("struct").to_pylist() == [{"a": digest}, None, {"a": "b"}]
    assert result.column("coded").to_pylist() == [digest, "a", None]


def test_bytes_are_bounded_the_same_way_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MAX_BYTES", 8_000)
    monkeypatch.setattr(sample, "FEW_ROWS", 20)
    random = np.random.default_rng(3)
    lists = [random.random(size).tolist() for size in random.integers(1, 100, 2000)]
    batch = pa.record_batch([pa.array(lists), np.arange(2000)], ["list", "n"])
    priorities = row_keys.priorities_of(row_keys.keys_of(0, 0, 2000))

    def sampled(bounds: list[int]) -> RowSample:
        result = RowSample(1000)
        for start, stop in itertools.pairwise(bounds):
            result.add(batch.slice(start, stop - start), priorities[start:stop])
        return result

    whole = sampled([0, 2000]).table({})
    assert 20 < whole.num_rows < 100
    assert whole == pa.Table.from_batches([batch]).take(np.argsort(priorities)[: whole.num_rows])
    for seed in range(5):
        cuts = np.sort(np.random.default_rng(seed).integers(1, 1999, 7)).tolist()
        middle = cuts[3]
        parts = [sampled([0, *cuts[:4]]), sampled([middle, *cuts[4:], 2000])]
        assert parts[0].merged(parts[1]).table({}) == whole
        assert sampled([0, *cuts, 2000]).table({}) == whole


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([True, None], pa.array([3], pa.int32()), [1, None, 3]),
        (["a"], [b"\xff"], [b"a", b"\xff"]),
        (pa.array(["a"], pa.large_string()), pa.array([b"\xff"], pa.large_binary()), [b"a", b"\xff"]),
        ([1, None], [[2, 3], []], [[1], None, [2, 3], []]),
        (pa.array([1], pa.uint64()), [-1], [1.0, -1.0]),
        (pa.array([1.5], pa.float32()), [0.1], [1.5, 0.1]),
        (pa.array(["a"]).dictionary_encode(), ["b"], ["a", "b"]),
        ([{"a": 1}], [{"a": True, "b": "x"}], [{"a": 1, "b": None}, {"a": 1, "b": "x"}]),
        ([None], ["x"], [None, "x"]),
        ([{"a": [1, 2]}, None], [{"a": 3.5}], [{"a": [1.0, 2.0]}, None, {"a": [3.5]}]),
        ([[["a"]], None], [["b"]], [[["a"]], None, [["b"]]]),
    ],
)
def test_batches_of_other_types_of_one_kind_are_joined(one: Any, other: Any, expected: list[Any]) -> None:
    batches = [
        pa.record_batch([values if isinstance(values, pa.Array) else pa.array(values)], ["x"])
        for values in (one, other)
    ]
    result = RowSample(10)
    for number, batch in enumerate(batches):
        result.add(batch, np.arange(batch.num_rows, dtype=np.uint64) + np.uint64(10 * number))
    assert result.table({}).column("x").to_pylist() == expected


def test_sample_has_empty_and_partial_columns_and_damage_is_named(tmp_path: Path) -> None:
    write(pa.table({"a": [1, 2], "none": pa.nulls(2)}), tmp_path / "a.parquet")
    write(pa.table({"b": ["x"], "a": [3.5]}), tmp_path / "b.parquet")
    result = draw(tmp_path)
    assert {name: str(kind) for name, kind in zip(result.schema.names, result.schema.types, strict=True)} == {
        "a": "double", "none": "null", "b": "string",
    }  # fmt: skip
    write_sample(result, tmp_path)
    assert load_sample(tmp_path) == result
    (tmp_path / SAMPLE_FILE).write_bytes(b"PAR1 damaged")
    with pytest.raises(BadInput, match=r"sample\.parquet"):
        load_sample(tmp_path)
