"""Files of statistics that the pages read: what they hold, and their limits."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.artifacts.page_files import PageIndex, RowsHeader
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics import pages as rows
from airflow_hops.ml.statistics import pages as statistics

NUMERIC = [[1.0, 2.5], [3.0, None], None, [0.1, -4.0]]


def decoded(content: bytes) -> tuple[RowsHeader, dict[str, Any]]:
    (length,) = struct.unpack("<I", content[:4])
    header, data = RowsHeader.from_dict(json.loads(content[4 : 4 + length])), content[4 + length :]
    return header, {
        each.name: np.frombuffer(data, each.type, header.rows, each.offset) for each in header.columns if each.type
    }


def test_rows_have_typed_columns_of_all_digits() -> None:
    table = pa.table(
        {
            "numeric": pa.array(NUMERIC, pa.list_(pa.float32())),
            "ids": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int64())),
            "image": pa.array([b"1", b"2", b"3", b"4"]),
            "day": pa.array([0, 1, None, 3], pa.date32()),
            "late": pa.array([True, None, False, True]),
            "at": pa.array([1_500, None, 0, 2_999_999], pa.timestamp("us")),
            "close": pa.array([1e6 + 1e-6, 1e6, 1e6, np.nan]),
            "word": pa.array(["b", "a", None, "b"]),
        }
    )
    header, columns = decoded(rows.encode_rows(table, 9))
    assert (header.rows, header.total_rows) == (4, 9)
    assert [(each.name, each.role) for each in header.columns] == [
        ("numeric[0]", "number"), ("numeric[1]", "number"), ("ids", None), ("image", None), ("day", "time"),
        ("late", "boolean"), ("at", "time"), ("close", "number"), ("word", "category"),
    ]  # fmt: skip
    np.testing.assert_array_equal(columns["numeric[0]"], np.float32([1, 3, np.nan, 0.1]))
    np.testing.assert_array_equal(columns["numeric[1]"], np.float32([2.5, np.nan, np.nan, -4]))
    np.testing.assert_array_equal(columns["day"], [0, 86_400_000, np.nan, 3 * 86_400_000])
    assert columns["late"].tolist() == [1, -1, 0, 1]
    np.testing.assert_array_equal(columns["at"], [1, np.nan, 0, 2_999])  # finer than a millisecond is cut off
    np.testing.assert_array_equal(columns["close"], [1e6 + 1e-6, 1e6, 1e6, np.nan])
    assert columns["word"].tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize("limit", ["MAX_CELLS", "MAX_BYTES"])
def test_rows_stay_below_their_limits(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(rows, limit, 1000)
    table = pa.table({"number": np.arange(2000.0), "word": [f"word {number}" for number in range(2000)]})
    content = rows.encode_rows(table, 2000)
    header, columns = decoded(content)
    assert 10 < header.rows <= 500 and header.total_rows == 2000
    assert columns["number"].tolist() == [*range(header.rows)]
    assert limit == "MAX_CELLS" or len(content) < 1600


def test_empty_split_has_columns() -> None:
    header, columns = decoded(rows.encode_rows(pa.table({"size": pa.array([], pa.float64()), "none": pa.nulls(0)}), 0))
    assert (header.rows, list(columns), len(header.columns)) == (0, ["size"], 2)


def test_page_is_bounded_and_says_what_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_SLICES", 2)
    monkeypatch.setattr(statistics, "MAX_ALL_VALUES", 10)
    words = generate_statistics(pa.table({"word": [f"word {number}" for number in range(50)], "number": range(50)}))
    both = statistics_pb2.DatasetFeatureStatisticsList()
    for name, count in (("All Examples", 50), ("a", 5), ("b", 20), ("c", 15)):
        both.datasets.add().CopyFrom(words.datasets[0])
        both.datasets[-1].name, both.datasets[-1].num_examples = name, count
    statistics.write_page(tmp_path / "train", both)
    lines = [json.loads(line) for line in (tmp_path / "train" / "page.jsonl").read_text().splitlines()]
    index = PageIndex.from_dict(lines[0])
    assert (index.rows, index.slices, index.slices_left_out) == (50, {"b": 20, "c": 15}, 1)
    assert [(view.line, view.slice) for view in index.views] == [(1, None), (4, "b"), (7, "c")]
    assert len(lines) == 10
    line = lines[2 + index.features.index("word")]
    assert lines[1]["names"] == index.features
    assert (len(line["values"]), line["other_values"]) == (10, 40)


@pytest.mark.parametrize("number", [2**53, -(2**60), 2**63 - 1])
def test_page_has_a_histogram_of_a_single_integer_next_to_which_float64_has_none(tmp_path: Path, number: int) -> None:
    statistics.write_page(tmp_path, generate_statistics(pa.table({"id": [number, number]})))
    table = json.loads((tmp_path / "page.jsonl").read_text().splitlines()[1])
    assert table["histogram"][0][2] == [10_000]
