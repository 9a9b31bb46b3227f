"""Rows by segment: whatever the tables, each segment gets its own rows, all of them, in an order of their values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_hops.extensions.fleet.ml import rows
from airflow_hops.extensions.fleet.ml.training_rows import fingerprint_of
from airflow_hops.ml.spark.pools import IN_PROCESS

TYPES = {"shop": "string", "price": "float", "count": "int64", "day": "string"}


def random_table(generator: np.random.Generator, size: int, keys: int, holes: float) -> pa.Table:
    def holed(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=generator.random(size) < holes)

    shops = [f"{key}\u00e9" for key in generator.integers(0, keys, size).tolist()]
    return pa.table(
        {
            "shop": holed(shops, pa.string()),
            "price": holed(generator.normal(3, 2, size), pa.float64()),
            "count": holed(generator.integers(-5, 5, size), pa.int64()),
            "day": holed(generator.choice(["Mon", "Tue", ""], size).tolist(), pa.string()),
            "label": pa.array(np.arange(size, dtype=float)),
        }
    )


def columns_as_text(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


@pytest.mark.parametrize("seed", range(12))
def test_each_segment_gets_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    generator = np.random.default_rng(seed)
    monkeypatch.setattr(rows, "_CHUNK_ROWS", int(generator.integers(1, 300)))
    size, keys, holes = int(generator.integers(1, 900)), int(generator.integers(1, 40)), generator.choice([0, 0.2, 0.9])
    table = random_table(generator, size, keys, holes)
    cut = int(generator.integers(0, size + 1))
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file, part in zip(files, (table.slice(0, cut), table.slice(cut)), strict=True):
        pq.write_table(part, file, row_group_size=int(generator.integers(1, 200)))
    chunks = rows.chunks_of({"train": files, "eval": files[:1]})
    columns = rows.Columns("shop", "label", None, TYPES)
    if not chunks:
        return
    survey = rows.survey(IN_PROCESS, chunks, columns, lambda share, text: None)
    expected_keys = {each["values"]: each["counts"] for each in pc.value_counts(table["shop"].drop_null()).to_pylist()}
    assert survey.keys == expected_keys
    assert survey.nulls == table["shop"].null_count + table["shop"].slice(0, cut).null_count
    prices = table["price"].drop_null().to_numpy().astype(np.float32).astype(np.float64)
    if len(prices):
        count, mean, squares = survey.numbers["price"]
        assert (count, mean, squares / count) == pytest.approx((len(prices), prices.mean(), prices.var()), rel=1e-9)
    segments = sorted(survey.keys, key=str.encode)
    ordered, counts = rows.sort_rows(
        IN_PROCESS, tmp_path / "sorted", chunks, columns, segments, lambda share, text: None
    )
    assert counts["train"] == size - table["shop"].null_count
    for first, end in rows.parts_of([survey.keys[segment] for segment in segments]) if segments else ():
        by_number = ordered.read(first, end, ["train"])
        assert sorted(by_number) == list(range(first, end))
        for number, part in by_number.items():
            own = table.filter(pc.equal(table["shop"], segments[number])).drop(["shop"])
            assert columns_as_text(part.select(own.column_names)) == columns_as_text(own)
    if segments and cut:
        assert sum(map(len, ordered.read(0, len(segments), ["eval"]).values())) == counts["eval"]


@pytest.mark.parametrize("seed", range(6))
def test_order_of_rows_changes_no_fingerprint(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    table = random_table(generator, 400, 5, 0.1)
    columns = rows.Columns("shop", "label", None, TYPES)
    fingerprints = []
    for name, order in (("a", np.arange(400)), ("b", generator.permutation(400)), ("c", np.arange(400))):
        shown = table.take(pa.array(order))
        if name == "c":
            prices = pc.if_else(pc.equal(shown["label"], 7.0), pc.add(shown["price"], 1e-6), shown["price"])
            shown = shown.set_column(1, "price", prices)
        pq.write_table(shown, tmp_path / f"{name}.parquet", row_group_size=90)
        chunks = rows.chunks_of({"train": [tmp_path / f"{name}.parquet"]})
        segments = sorted(set(table["shop"].drop_null().to_pylist()), key=str.encode)
        ordered, _ = rows.sort_rows(IN_PROCESS, tmp_path / name, chunks, columns, segments, lambda share, text: None)
        read = ordered.read(0, len(segments), ["train"])
        fingerprints.append([fingerprint_of("options", [part, None]) for part in read.values()])
    assert fingerprints[0] == fingerprints[1]
    owner = table["shop"][7].as_py()
    changed = [
        segments[n] for n, pair in enumerate(zip(fingerprints[0], fingerprints[2], strict=True)) if len({*pair}) > 1
    ]
    assert changed == ([owner] if owner is not None and table["price"][7].is_valid else [])
