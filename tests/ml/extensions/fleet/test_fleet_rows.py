"""Rows by segment: whatever the tables and files, each segment gets its own rows, and only new files are read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.core.source import SegmentSource
from airflow_hops.extensions.fleet.ml import rows
from airflow_hops.extensions.fleet.ml.columns import HASH, Columns, columns_of, encoding_of, still_fits
from airflow_hops.extensions.fleet.ml.parts import Choose, Part, PartRows
from airflow_hops.extensions.fleet.ml.rows import KnownParts, SegmentedRows
from airflow_hops.ml.spark.pools import IN_PROCESS

CHOOSE = partial(columns_of, ExamplesProperties(label="label", problem="regression"), "shop", None, (), "")
Train = Callable[..., Artifact]


def random_table(generator: np.random.Generator, size: int, keys: int, holes: float) -> pa.Table:
    def holed(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=generator.random(size) < holes)

    names = [f"{key}\u00e9" for key in generator.integers(0, keys, size).tolist()]
    return pa.table(
        {
            "shop": holed(names, pa.string()),
            "price": holed(generator.normal(3, 2, size), pa.float64()),
            "count": holed(generator.integers(-5, 5, size), pa.int64()),
            "day": holed(generator.choice(["Mon", "Tue", ""], size).tolist(), pa.string()),
            "label": pa.array(np.arange(size, dtype=float)),
        }
    )


def _read(split: str, table: pa.Table, choose: Choose) -> PartRows:
    return PartRows({split: table}, {})


def collected(
    folder: Path, tables: dict[str, list[pa.Table]], known: KnownParts | None = None, names: str = ""
) -> SegmentedRows:
    parts = [
        Part(f"{split}{names}{number}", "file", partial(_read, split, table))
        for split, own in tables.items()
        for number, table in enumerate(own)
    ]
    return SegmentedRows.collect(
        IN_PROCESS, folder, CHOOSE, parts, known or KnownParts.read(None), lambda share, text: None
    )


def columns_as_text(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


@pytest.mark.parametrize("seed", range(12))
def test_each_segment_gets_its_rows(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    size, keys, holes = int(generator.integers(1, 900)), int(generator.integers(1, 40)), generator.choice([0, 0.2, 0.9])
    table = random_table(generator, size, keys, holes)
    cut = int(generator.integers(0, size + 1))
    both = [table.slice(0, cut), table.slice(cut)]
    collection = collected(tmp_path / "sorted", {"train": both, "eval": both[:1]})
    expected = {each["values"]: each["counts"] for each in pc.value_counts(table["shop"].drop_null()).to_pylist()}
    assert dict(zip(collection.segments, collection.counts[:, 1].tolist(), strict=True)) == expected
    assert collection.nulls() == table["shop"].null_count + both[0]["shop"].null_count
    keyed = [each.filter(each["shop"].is_valid()) for each in (table, both[0])]
    assert [rows for rows, _ in collection.rows_by_split().values()] == [len(each) for each in keyed[::-1] if len(each)]
    sample, share = collection.sample(IN_PROCESS, 1000, KnownParts.read(None), lambda share, text: None)
    columns = Columns("shop", "label", None, collection.types())
    encoding, prices = encoding_of(sample, columns), keyed[0]["price"].drop_null().to_numpy().astype(np.float32)
    assert share == 1.0 and still_fits(encoding, sample, columns)
    if len(prices) > 1:
        (price,) = (each for each in encoding.numbers if each.name == "price")
        assert (price.mean, price.scale) == pytest.approx((prices.mean(), prices.std(dtype=float)), rel=1e-5)
        assert price.marks_missing == (len(prices) < len(sample))
    for numbers in rows.divided(range(len(expected)), collection.counts[:, 1].tolist(), 100):
        places = collection.places(numbers)
        by_number = rows.read_rows(tmp_path / "sorted", places, is_train=True)
        assert sorted(by_number) == list(numbers)
        for number, part in by_number.items():
            own = table.filter(pc.equal(table["shop"], collection.segments[number])).drop(["shop"])
            assert columns_as_text(part.select(own.column_names)) == columns_as_text(own)
            assert (np.diff(part[HASH].to_numpy().astype(float)) >= 0).all()
        held = rows.read_rows(tmp_path / "sorted", places, is_train=False)
        assert {n: len(each) for n, each in held.items()} == {
            n: count for n in numbers if (count := collection.counts[n, 0])
        }


@pytest.mark.parametrize("seed", range(6))
def test_fingerprint_depends_on_rows_not_on_their_order_or_files(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    table = random_table(generator, 400, 5, 0.1)
    prints = []
    for name, order in (("a", np.arange(400)), ("b", generator.permutation(400)), ("c", np.arange(400))):
        shown = table.take(pa.array(order))
        if name == "c":
            prices = pc.if_else(pc.equal(shown["label"], 7.0), pc.add(shown["price"], 1e-6), shown["price"])
            shown = shown.set_column(1, "price", prices)
        cut = int(generator.integers(0, 400))
        both = [shown.slice(0, cut), shown.slice(cut)]
        prints.append(collected(tmp_path / name, {"train": both}).fingerprints("options"))
    assert prints[0] == prints[1]
    owner = table["shop"][7].as_py()
    changed = [segment for segment in prints[0] if prints[0][segment] != prints[2][segment]]
    assert changed == ([owner] if owner is not None and table["price"][7].is_valid else [])
    assert prints[0] != collected(tmp_path / "d", {"train": [table]}).fingerprints("others")


@pytest.mark.parametrize("most_rows", [60, 100, 1000])
def test_sample_is_the_same_from_known_parts(tmp_path: Path, most_rows: int) -> None:
    generator = np.random.default_rng(most_rows)
    tables = [random_table(generator, 100, 9, 0.0) for _ in range(6)]
    quiet = lambda share, text: None  # noqa: E731
    whole = collected(tmp_path / "whole", {"train": tables})
    sample, share = whole.sample(IN_PROCESS, most_rows, KnownParts.read(None), quiet)
    assert share == {60: 1 / 16, 100: 1 / 8, 1000: 1}[most_rows]
    assert len(sample) == pytest.approx(600 * share, abs=25)
    earlier = collected(tmp_path / "earlier", {"train": tables[:4]})
    earlier.write(tmp_path, *earlier.sample(IN_PROCESS, most_rows, KnownParts.read(None), quiet))
    known = KnownParts.read(tmp_path)
    later = collected(tmp_path / "later", {"train": tables}, known)
    assert later.sorted == {"train4", "train5"}
    again, same_share = later.sample(IN_PROCESS, most_rows, known, quiet)
    assert (again.to_pydict(), same_share) == (sample.to_pydict(), share)


def _write_shops(raw: Path, sizes: list[tuple[str, int]], **options: Any) -> None:
    raw.mkdir(exist_ok=True)
    for shop, size in sizes:
        pq.write_table(shops.rows_of(shop, size, **options), raw / f"{shop}.parquet")


SIZES = [(f"shop {number:02}", 40 + 30 * number) for number in range(20)]


@pytest.mark.parametrize("per_file", [1, 5])
def test_second_run_writes_what_a_run_without_memory_would(
    store: ArtifactStore, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_file: int
) -> None:
    raw = tmp_path / "raw"
    _write_shops(raw, SIZES)
    if per_file > 1:
        files = sorted(raw.iterdir())
        for first in range(0, len(files), per_file):
            own = [pq.read_table(file) for file in files[first : first + per_file]]
            for file in files[first : first + per_file]:
                file.unlink()
            pq.write_table(pa.concat_tables(own), raw / f"{first:02}.parquet")
    source = SegmentSource(str(raw), label="label", problem="regression").to_dict()
    first = train(None, source=source)
    assert first.rows["source"].rows_in == sum(size for _, size in SIZES)
    changed = shops.rows_of("shop 03", 200, seed=9)
    pq.write_table(changed, raw / ("shop 03.parquet" if per_file == 1 else "more.parquet"))
    pq.write_table(shops.rows_of("shop new", 200), raw / "new.parquet")
    second = train(None, source=source, before=first, run_id="second")
    assert (second.metrics["trained"], second.metrics["reused"]) == (2, 19)
    forgotten = KnownParts.read(None)
    monkeypatch.setattr(KnownParts, "read", lambda folder: forgotten)
    again = train(None, source=source, before=first, run_id="second")
    assert again.fingerprint == second.fingerprint


@pytest.mark.parametrize("change", ["price", "day"])
def test_encoding_follows_rows_however_slowly_they_change(store: ArtifactStore, train: Train, change: str) -> None:
    names = [f"shop {number}" for number in range(9)]
    tables = {name: shops.rows_of(name, 150) for name in names}
    fleet, encodings = None, []
    for run in range(4):
        for name in names[3 * run - 3 : 3 * run] if run else ():  # a third of the rows at most
            rows = shops.rows_of(name, 150, seed=1, shift=8.0 * (change == "price"))
            days = pc.if_else(pc.equal(rows["day"], "Sun"), "Holiday", rows["day"]) if change == "day" else rows["day"]
            tables[name] = shops.replaced(rows, "day", days)
        table = pa.concat_tables(tables.values())
        fleet = train({"train": table, "eval": table}, before=fleet)
        encodings.append(fleet.properties["fleet"]["encoding"])
        assert fleet.metrics["trained"] == (9 if encodings[-1] == "made" else 3)
    assert encodings[0] == "made" and "made" in encodings[1:] and "kept" in encodings[1:]
    text = (store.local(fleet) / "fleet" / "fleet.json").read_text()
    assert "Holiday" in text or change == "price"


def test_files_of_another_version_are_named(tmp_path: Path) -> None:
    earlier = collected(tmp_path / "sorted", {"train": [random_table(np.random.default_rng(0), 50, 3, 0.0)]})
    quiet = lambda share, text: None  # noqa: E731
    earlier.write(tmp_path, *earlier.sample(IN_PROCESS, 100, KnownParts.read(None), quiet))
    path = tmp_path / "rows" / "surveys.json"
    known = json.loads(path.read_text())
    (part,) = known["surveys"]
    newer = {**known["surveys"][part], "unknown": 1}
    path.write_text(json.dumps({**known, "surveys": {part: newer}}))
    assert KnownParts.read(tmp_path).surveys[part].more == {"unknown": 1}
    del newer["nulls"]
    for broken, message in (
        ({**known, "surveys": {part: newer}}, "nulls is missing"),
        ({**known, "surveys": {part: {**newer, "nulls": "0"}}}, "nulls is"),
        ({"surveys": {}}, "KeyError: 'share'"),
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(BadInput, match=f"rows: .*{message}.* another version .*: train the fleet again"):
            KnownParts.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda t: t.append_column("when", pa.array([None] * len(t), pa.date32())), {}, "'when' is of the type date32"),
        (lambda t: shops.replaced(t, "shop", pa.nulls(len(t), pa.string())), {}, "'shop' is null in 50 rows"),
        (lambda t: shops.replaced(t, "label", pa.nulls(len(t))), {"max_rejected": 0.01}, "label is missing"),
        (lambda t: t, {"key": "receipt"}, "'receipt'"),
    ],
)
def test_unusable_file_of_a_source_is_named(
    train: Train, tmp_path: Path, change: Callable[[pa.Table], pa.Table], options: dict[str, Any], message: str
) -> None:
    """As far as it does not concern one segment: see test_odd_shops.py."""
    raw = tmp_path / "raw"
    _write_shops(raw, SIZES[:4])
    pq.write_table(change(shops.rows_of("shop 99", 50)), raw / "more.parquet")
    source = SegmentSource(str(raw), label="label", problem="regression", **options).to_dict()
    with pytest.raises(BadInput, match=message):
        train(None, source=source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rejected": 5}, "max_rejected is 5, expected a share from 0 to 1"),
        ({"max_rejected": math.nan}, "max_rejected is nan"),
        ({"max_rejected": "0.1"}, "max_rejected is '0.1'"),
        ({"eval_percent": 20.5}, "eval_percent is 20.5, expected 0 to 99"),
        ({"eval_percent": "20"}, "eval_percent is '20', expected 0 to 99"),
        ({"problem": None}, "problem is None and classes None; expected problem='regression'"),
        ({"problem": None, "classes": "ab"}, "classes is 'ab', expected a list of the label's values"),
        ({"problem": None, "classes": [False, True]}, "classes is .False, True., expected a list"),
        ({"time_column": "day"}, "time_column is 'day'; expected none: a fleet reads all rows"),
    ],
)
def test_options_of_a_source_are_checked(options: dict[str, Any], message: str) -> None:
    fields = {"uri": "/raw", "label": "label", "problem": "regression", **options}
    with pytest.raises(BadInput, match=message):
        SegmentSource.from_value("source", fields)


@pytest.mark.parametrize("role", ["label", "weight"])
def test_column_with_another_role_is_no_feature(store: ArtifactStore, train: Train, role: str) -> None:
    splits = shops.tables(SIZES[4:6])
    first = train(splits)
    examples = shops.write(store, splits, run_id="other", **{role: "visits"})
    for champion in (first, None):
        inputs = ModelProperties.of(train(examples, before=champion)).inputs
        more = ["label"] if role == "label" else []
        assert sorted(inputs or ()) == sorted(["shop", "price", "day", "region", *more])


def test_mixed_integers_and_floats_of_csv_are_floats(train: Train, tmp_path: Path, store: ArtifactStore) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number, visits in enumerate(("5", "5.5")):
        rows = [f"{shop},{visits},{row % 7},{row}" for shop in ("a", "b") for row in range(60)]
        (raw / f"{number}.csv").write_text("\n".join(["shop,visits,day,label", *rows]))
    (raw / "header.csv").write_text("shop,visits,day,label\n")
    source = SegmentSource(str(raw), label="label", problem="regression").to_dict()
    fleet = train(None, source=source)
    signature = (store.local(fleet) / "fleet" / "signature.json").read_text()
    assert '"visits"' in signature and fleet.metrics["segments"] == 2 and fleet.rows["source"].rows_out == 240
