"""Packed models of a fleet, their index, and the encoding that training and serving share."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shops
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.core.linear import (
    CategoryEncoding,
    Encoding,
    NumberEncoding,
    linear_answers,
    weights_from_bytes,
    weights_to_bytes,
)
from airflow_hops.extensions.fleet.core.packs import (
    INDEX_SCHEMA,
    LINEAR,
    MAX_KEY_BYTES,
    ONNX,
    Fleet,
    FleetDescription,
    PackWriter,
    read_index,
    segment_keys,
    write_index,
)
from tests.ml.extensions.fleet.packed_fleets import ENCODING, random_rows, row_of, write_packed_fleet

PLACE = ("pack", "offset", "length", "format", "sha256")
OLD_PLACE = {"pack": pa.int32(), "offset": pa.int64()}
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    models=st.dictionaries(KEYS, st.none() | st.binary(min_size=1, max_size=40), max_size=12),
    pooled=st.binary(min_size=1, max_size=40),
    max_pack_bytes=st.integers(40, 90),
)
def test_every_model_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, bytes | None], pooled: bytes, max_pack_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("fleet")
    rows = []
    with PackWriter(folder, max_pack_bytes) as packs:
        for key, payload in models.items():
            row: dict[str, Any] = {"segment": key, "state": "pooled", "reason": "r", "rows": len(key)}
            rows.append(row if payload is None else {**row, "state": "own", "place": packs.add(payload, ONNX)})
        place = packs.add(pooled, LINEAR)
    write_index(folder, rows)
    FleetDescription("shop", "string", ENCODING, place).write(folder)
    fleet = Fleet(folder)
    assert fleet.description == FleetDescription("shop", "string", ENCODING, place)
    assert fleet.payload(fleet.description.pooled) == pooled
    for key, payload in models.items():
        there = fleet.place(key)
        assert fleet.state(key) == ("pooled" if payload is None else "own")
        assert payload is None if there is None else fleet.payload(there) == payload
    assert {key: entry["rows"] for key, entry in fleet.entries.items()} == {key: len(key) for key in models}
    assert list(fleet.entries) == sorted(models, key=str.encode)
    unknown = "".join(models) + "?"
    assert (fleet.place(unknown), fleet.state(unknown)) == (None, None)
    sizes = [path.stat().st_size for path in (folder / "packs").iterdir()]
    assert all(0 < size <= max_pack_bytes for size in sizes)
    assert sum(sizes) == len(pooled) + sum(len(payload or b"") for payload in models.values())
    fleet.close()


def test_writers_refuse_what_serving_would(tmp_path: Path) -> None:
    with PackWriter(tmp_path, 10) as packs:
        for payload, form, message in (
            (b"", LINEAR, "0 bytes"),
            (b"x" * 11, ONNX, "11 bytes"),
            (b"x", "pickle", "pickle"),
        ):
            with pytest.raises(BadInput, match=message):
                packs.add(payload, form)
        place = packs.add(b"x", LINEAR)
    row = {"segment": "a", "reason": "", "rows": 1}
    for rows, message in (
        ([{**row, "state": "pooled"}, {**row, "state": "pooled"}], "'a' comes twice"),
        ([{**row, "state": "own"}], "has a pack"),
        ([{**row, "state": "pooled", "place": place}], "has none"),
        ([{**row, "state": "other"}], "'other'"),
        ([{**row, "state": "own", "place": replace(place, sha256=None)}], "sha256"),
        ([{**row, "segment": "", "state": "pooled"}], "'' is empty"),
        ([{**row, "segment": "ö" * MAX_KEY_BYTES, "state": "pooled"}], "2,048 bytes"),
    ):
        with pytest.raises(BadInput, match=message):
            write_index(tmp_path, rows)
        assert not (tmp_path / "index.parquet").exists()


def _index(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        pq.write_table(change(pq.read_table(folder / "index.parquet")), folder / "index.parquet")

    return damage


def _cell(column: str, value: Any) -> Callable[[Path], None]:
    """Sets a column of the second segment, which has a model of its own."""

    def change(table: pa.Table) -> pa.Table:
        values, name = table["place" if column in PLACE else column].to_pylist(), column
        values[1], name = ({**values[1], column: value}, "place") if column in PLACE else (value, column)
        field = table.schema.field(name)
        return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))

    return _index(change)


def _file(name: str, content: bytes | None) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return damage


def _description(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        known = json.loads((folder / "fleet.json").read_text())
        (folder / "fleet.json").write_text(json.dumps({**known, **changes}))

    return damage


def _cut(folder: Path) -> None:
    pack = folder / "packs" / "000.bin"
    pack.write_bytes(pack.read_bytes()[:-1])


DAMAGE = {
    "no index": (_file("index.parquet", None), "index.parquet"),
    "index is no Parquet": (_file("index.parquet", b"PAR1"), "index.parquet"),
    "a column is missing": (_index(lambda table: table.drop(["loss"])), "'loss'"),
    "a column has another type": (
        _index(lambda table: shops.replaced(table, "rows", table["rows"].cast(pa.int32()))),
        "'rows' of the type int64",
    ),
    "keys are not sorted": (_index(lambda table: table.take([1, 0, 2, 3])), "'a' comes twice, or after"),
    "a place of another version": (
        _index(lambda table: shops.replaced(table, "place", table["place"].cast(pa.struct(OLD_PLACE)))),
        "'place' of the type struct<.*sha256.*Train the fleet again, under another name",
    ),
    "a key is null": (_cell("segment", None), "is empty"),
    "an unknown state": (_cell("state", "best"), "'best'"),
    "a pooled segment with a model": (_cell("state", "pooled"), "pooled segment has none"),
    "no offset": (_cell("offset", None), "'offset': None"),
    "an offset beyond the file": (_cell("offset", 10**12), "000.bin.*'b'.*1,000,000,000,000"),
    "a negative offset": (_cell("offset", -8), "000.bin.*'b'"),
    "offset and length that overflow": (_cell("offset", 2**63 - 1), "000.bin.*'b'"),
    "no length": (_cell("length", 0), "'b'"),
    "a negative length": (_cell("length", -1), "'b'"),
    "a pack that is not there": (_cell("pack", 7), "007.bin.*'b'"),
    "a negative pack": (_cell("pack", -1), "'b'"),
    "an unknown format": (_cell("format", "pickle"), "'b'.*'pickle'"),
    "a pack that was cut": (_cut, "000.bin"),
    "no pack": (_file("packs/000.bin", None), "000.bin"),
    "no description": (_file("fleet.json", None), "fleet.json"),
    "no JSON": (_file("fleet.json", b"{"), "fleet.json"),
    "deep JSON": (_file("fleet.json", b"[" * 100_000), "fleet.json"),
    "a list": (_file("fleet.json", b"[]"), "fleet.json"),
    "no bytes of UTF-8": (_file("fleet.json", b"\xff"), "fleet.json"),
    "no segment": (_description(segment=None), "fleet.json"),
    "an unknown type": (_description(segment_type="double"), "'double'"),
    "an infinite scale": (
        _description(encoding={"numbers": [{"name": "price", "mean": 0.0, "scale": math.inf}]}),
        "'price'",
    ),
    "a scale of zero": (_description(encoding={"numbers": [{"name": "price", "mean": 0, "scale": 0}]}), "'price'"),
    "a mean that is a text": (_description(encoding={"numbers": [{"name": "price", "mean": "0", "scale": 1}]}), "mean"),
    "values that are no texts": (_description(encoding={"categories": [{"name": "day", "values": [1]}]}), "values"),
    "a pooled model beyond the file": (
        _description(pooled={"pack": 0, "offset": 10**9, "length": 1, "format": "linear", "sha256": ""}),
        "000.bin.*the pooled model",
    ),
    "a pooled model without a length": (_description(pooled={"pack": 0, "offset": 0}), "pooled"),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "fleet"
    write_packed_fleet(folder, ["a", "b", "c", "d"], formats=[LINEAR])
    return folder


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused_with_its_place(packed: Path, tmp_path: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    folder = shutil.copytree(packed, tmp_path / "fleet")
    damage(folder)
    with pytest.raises(BadInput, match=message) as raised:
        Fleet(folder)
    assert str(folder) in str(raised.value)


def test_flipped_bytes_of_a_model_are_noticed(packed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packed, tmp_path / "fleet")
    fleet = Fleet(folder)
    place = fleet.place("b")
    assert place is not None
    content = bytearray((folder / "packs" / "000.bin").read_bytes())
    content[place.offset] ^= 1
    (folder / "packs" / "000.bin").write_bytes(content)
    for opened in (fleet, Fleet(folder)):
        with pytest.raises(BadInput, match=f"000.bin.* at {place.offset}"):
            opened.payload(place)
    (folder / "packs" / "000.bin").write_bytes(b"")  # cut while it is open
    with pytest.raises(BadInput, match=r"000\.bin"):
        fleet.payload(place)


def test_an_open_fleet_survives_the_removal_of_its_folder(packed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packed, tmp_path / "fleet")
    fleet = Fleet(folder)
    shutil.rmtree(folder)
    place = fleet.place("b")
    assert place is not None
    assert len(fleet.payload(place)) == place.length


@settings(max_examples=100, deadline=None)
@given(values=st.lists(KEYS | KEYS.map(str.encode), max_size=5))
def test_keys_are_the_exact_texts(values: list[str | bytes]) -> None:
    array = np.empty(len(values), object)
    array[:] = values
    assert segment_keys("shop", array) == [value.decode() if isinstance(value, bytes) else value for value in values]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "is empty in row 1"),
        (None, "None in row 1"),
        (math.nan, "nan in row 1"),
        (3, "3 in row 1"),
        (b"\xff\xfe", "expected UTF-8"),
        ("x" * (MAX_KEY_BYTES + 1), "1,025 bytes"),
        (b"x" * 2**20, "1,048,576 bytes"),
    ],
)
def test_a_value_that_is_no_key_is_refused(value: object, message: str) -> None:
    array = np.empty(2, object)
    array[:] = ["a", value]
    with pytest.raises(BadInput, match=message) as raised:
        segment_keys("shop", array)
    assert "'shop'" in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("dtype", ["f4", "f8", "?", "M8[s]"])
def test_columns_of_other_types_have_no_keys(dtype: str) -> None:
    with pytest.raises(BadInput, match="'shop' is of the type"):
        segment_keys("shop", np.zeros(1, dtype))
    assert segment_keys("shop", np.array([2**63 - 1, -(2**63)])) == ["9223372036854775807", "-9223372036854775808"]


@pytest.mark.parametrize("form", ["bytes", "str", "arrow"])
def test_encoding_equals_that_of_each_row(form: str, tmp_path: Path) -> None:
    fleet = write_packed_fleet(tmp_path / "fleet", [], formats=[LINEAR])
    columns = random_rows(np.random.default_rng(1), 300)
    given_columns: dict[str, Any] = dict(columns)
    if form != "bytes":
        texts = [value.decode() for value in columns["day"]]
        given_columns["day"] = np.array(texts, object) if form == "str" else pa.chunked_array([pa.array(texts)])
    if form == "arrow":
        given_columns["price"] = pa.array(columns["price"], from_pandas=True)
        given_columns["size"] = pa.array(columns["size"]).dictionary_encode()
    matrix = ENCODING.encode(given_columns)
    assert matrix.shape == (300, ENCODING.width)
    numbers, categories = ("price", "price is missing", "stock"), ("day=Mon", "day=Sun", "day=Ö", "size=1", "size=2")
    assert ENCODING.names == (*numbers, *categories)
    answers = linear_answers(fleet.weights[None], matrix, "regression")
    assert answers == pytest.approx([fleet.expected("?", row_of(columns, row)) for row in range(300)])


def test_encoding_names_the_column_that_it_cannot_encode() -> None:
    good = random_rows(np.random.default_rng(1), 3)
    for name, values, message in (
        ("price", np.array([1, np.inf, 2]), "'price' is inf in row 1"),
        ("price", np.array(["1", "2", "3"], object), "'price' is of the type object"),
        ("day", np.array([1.0, 2.0, 3.0]), "'day' is of the type double"),
        ("day", np.array(["a", 1, None], object), "'day'"),
        ("size", np.array([True, False, True]), "'size' is of the type bool"),
    ):
        with pytest.raises(BadInput, match=message):
            ENCODING.encode({**good, name: values})
    with pytest.raises(BadInput, match="'size' is missing"):
        ENCODING.encode({name: values for name, values in good.items() if name != "size"})
    assert Encoding((NumberEncoding("a", 0.0, 1.0),), (CategoryEncoding("b", ()),)).width == 1


@pytest.mark.parametrize("problem", ["regression", "binary", "multiclass"])
def test_answers_of_a_row_do_not_depend_on_the_others(problem: str) -> None:
    rng = np.random.default_rng(2)
    for width in (1, 2, 7, 16, 33, 200):
        outputs = 3 if problem == "multiclass" else 1
        matrix, weights = rng.normal(size=(65, width)) * 50, rng.normal(size=(65, outputs, 1 + width))
        together = linear_answers(weights, matrix, problem)
        for rows in (np.array([5]), np.array([64, 3]), np.arange(40)):
            assert (linear_answers(weights[rows], matrix[rows], problem) == together[rows]).all(), width
        one = linear_answers(weights[5], matrix, problem)
        assert (one[5] == together[5]).all()
        assert np.isfinite(together).all()


def test_weights_that_do_not_fit_are_refused() -> None:
    weights = np.arange(6.0).reshape(2, 3)
    assert (weights_from_bytes(weights_to_bytes(weights), 2, 2) == weights).all()
    assert weights_to_bytes(np.asfortranarray(weights.astype(">f8"))) == weights_to_bytes(weights)
    payload = weights_to_bytes(weights)
    for bad, outputs, width in ((payload, 1, 2), (b"", 1, 2), (payload[:-1], 2, 2)):
        with pytest.raises(BadInput, match="bytes; expected"):
            weights_from_bytes(bad, outputs, width)
    with pytest.raises(BadInput, match="finite"):
        weights_from_bytes(weights_to_bytes(np.array([[1, np.nan]])), 1, 1)


def test_index_is_read_back_with_nulls_for_what_is_absent(tmp_path: Path) -> None:
    row = {"state": "pooled", "reason": "few rows", "rows": 3}
    write_index(tmp_path, [{**row, "segment": "b"}, {**row, "segment": "a", "loss": 1.5}])
    entries = read_index(tmp_path)
    assert [(key, entry["loss"], entry["place"]) for key, entry in entries.items()] == [
        ("a", 1.5, None),
        ("b", None, None),
    ]
    assert {*entries["a"]} == {*INDEX_SCHEMA.names}
