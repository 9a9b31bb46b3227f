"""Rows for the page that places them: which columns can be shown, vectors, and what is missing in them."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from web.conftest import Api

pytestmark = pytest.mark.runtime
NUMERIC = [[1.0, 2.5], [3.0, None], [None, 7.0], [0.1, -4.0]]


@pytest.fixture(scope="module")
def path(api: Api) -> str:
    """An artifact like those of a transform: vectors of fixed width, lists of any, bytes."""
    from airflow_hops.core.contract.artifacts import Producer

    table = pa.table(
        {
            "numeric": pa.array(NUMERIC, pa.list_(pa.float32(), 2)),
            "ids": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int64())),
            "image": pa.array([b"1", b"2", b"3", b"4"]),
            "wide": pa.array([[0] * 600] * 4, pa.list_(pa.int8(), 600)),
            "day": pa.array([0, 1, None, 3], pa.date32()),
            "late": pa.array([True, None, False, True]),
            "at": pa.array([1_500, None, 0, 2_999_999], pa.timestamp("us")),
        }
    )
    producer = Producer("pages", api.pages.run_id, "validate")
    with api.store.create(api.store.address(producer, "placed"), "placed", producer) as writer:
        (writer.path / "train").mkdir()
        pq.write_table(table, writer.path / "train" / "part-00000.parquet", row_group_size=3)
        writer.commit()
    return api.artifact_path("validate", "placed")


def test_a_split_says_what_of_it_can_be_shown(api: Api, path: str) -> None:
    train = api.get(f"{path}/splits").json()["splits"]["train"]
    assert train["rows"] == 4
    assert {column["name"]: column["role"] for column in train["columns"]} == {
        "numeric[0]": "number",
        "numeric[1]": "number",
        "ids": None,
        "image": None,
        "wide": None,
        "day": "time",
        "late": "boolean",
        "at": "time",
    }


def test_places_of_vectors_are_columns_with_what_is_missing_in_them(api: Api, path: str) -> None:
    header, columns = _columns(api.get(f"{path}/rows?split=train").content)
    assert set(header["left_out"]) == {"ids", "image", "wide"}
    np.testing.assert_array_equal(columns["numeric[0]"], np.float32([1, 3, np.nan, 0.1]))
    np.testing.assert_array_equal(columns["numeric[1]"], np.float32([2.5, np.nan, 7, -4]))
    np.testing.assert_array_equal(columns["day"], [0, 86_400_000, np.nan, 3 * 86_400_000])
    assert columns["late"].tolist() == [1, -1, 0, 1]
    np.testing.assert_array_equal(columns["at"], [1, np.nan, 0, 2_999])  # finer than a millisecond is cut off


def test_columns_come_in_parts_that_fit_together(api: Api, path: str) -> None:
    # The page asks for what the plot needs first: the rows must be the same in each answer.
    whole = _columns(api.get(f"{path}/rows?split=train&rows=2").content)[1]
    for name in ("numeric[1]", "day"):
        part = _columns(api.get(f"{path}/rows?split=train&rows=2&column={name}").content)[1]
        assert list(part) == [name]
        np.testing.assert_array_equal(part[name], whole[name])


def test_numbers_of_all_rows_are_rounded_to_place_them_and_of_one_row_come_in_full(api: Api, path: str) -> None:
    from airflow_hops.core.contract.artifacts import Producer

    random = np.random.default_rng(3)
    exact = {
        "wide": random.normal(0, 1, 100),
        "narrow": 1e6 + random.normal(0, 1e-3, 100),  # as float32 they would all be the same
        "huge": np.linspace(-1e300, 1e300, 100),
        "missing": np.where(np.arange(100) % 2, np.nan, random.normal(0, 1, 100)),
    }
    producer = Producer("pages", api.pages.run_id, "validate")
    with api.store.create(api.store.address(producer, "rounded"), "rounded", producer) as writer:
        (writer.path / "train").mkdir()
        pq.write_table(pa.table(exact), writer.path / "train" / "part-00000.parquet", row_group_size=30)
        writer.commit()
    rows = f"{api.artifact_path('validate', 'rounded')}/rows?split=train"
    header, columns = _columns(api.get(rows).content)
    types = {column["name"]: column["type"] for column in header["columns"]}
    assert types == {"wide": "float32", "narrow": "float64", "huge": "float64", "missing": "float32"}
    for name, values in exact.items():
        np.testing.assert_allclose(columns[name], values, rtol=0, atol=1e-5 * (np.nanmax(values) - np.nanmin(values)))
    drawn = _columns(api.get(f"{rows}&rows=40&column=narrow").content)[1]["narrow"]
    for row in (0, 39):
        header, columns = _columns(api.get(f"{rows}&rows=40&row={row}").content)
        (place,) = np.flatnonzero(exact["narrow"] == drawn[row])
        assert (header["rows"], header["total_rows"]) == (1, 100)
        assert all(np.array_equal(columns[name], values[[place]], equal_nan=True) for name, values in exact.items())
    answer = api.get(f"{rows}&rows=40&row=40")
    assert (answer.status_code, answer.json()["detail"]) == (422, "row is 40, expected 0 to 39, as 40 are sampled")


def test_a_vector_itself_is_no_column(api: Api, path: str) -> None:
    answer = api.get(f"{path}/rows?split=train&column=numeric")
    assert (answer.status_code, "column 'numeric' is not in split 'train'" in answer.json()["detail"]) == (422, True)


def _columns(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    data = body[4 + length :]
    return header, {
        column["name"]: np.frombuffer(data, column["type"], header["rows"], column["offset"])
        for column in header["columns"]
    }
