"""The type of a column does not depend on the order of its blocks, files and batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.readers.joined_types import Rule, join, of_batches, of_files, of_text, widened
from airflow_hops.ml.readers.text_types import LARGE_INTEGER
from airflow_hops.ml.statistics.sources import plan_source

TIMES = [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
OF_TEXT = [pa.null(), pa.int64(), LARGE_INTEGER, pa.float64(), pa.bool_(), pa.string(), *TIMES]
TYPED = [
    *OF_TEXT, pa.int8(), pa.uint64(), pa.float32(), pa.binary(), pa.large_string(), pa.large_binary(), pa.decimal128(9),
    pa.timestamp("ns", "UTC"), pa.time64("us"), pa.duration("us"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "types"), [(of_text, OF_TEXT), (of_files, TYPED), (of_batches, TYPED)])
def test_joined_types_do_not_depend_on_the_order(rule: Rule, types: list[pa.DataType]) -> None:
    lists = [pa.list_(kind) for kind in types[:4]]
    structs = [pa.struct([("x", kind)]) for kind in types[:4]]

    def joined(*kinds: pa.DataType) -> pa.DataType | None:
        one, *others = kinds
        for other in others:
            one = one and join(one, other, rule)
        return one

    for three in itertools.combinations([*types, *lists, *structs], 3):
        assert len({joined(*order) for order in itertools.permutations(three)}) == 1, three


def test_values_are_widened_to_joined_types() -> None:
    one, other = pa.array([{"x": 1, "l": [1]}, None]), pa.array([{"x": 0.5, "l": None, "y": "b"}])
    kind = join(one.type, other.type, of_files)
    rows = pa.concat_arrays([widened(one, kind), widened(other, kind)]).to_pylist()
    assert rows == [{"x": 1.0, "l": [1], "y": None}, None, {"x": 0.5, "l": None, "y": "b"}]
    large = pa.array([(1 << 53) + 1])
    with pytest.raises(pa.ArrowInvalid, match="9007199254740993"):
        widened(large, pa.float64())
    assert widened(large, pa.float64(), rounded=True).to_pylist() == [2.0**53]


def test_statistics_do_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    columns = [pa.array([True, None]), pa.array([3], pa.int8()), pa.array([0.5])]
    for number, order in enumerate(itertools.permutations(columns)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, column in zip("abc", order, strict=True):
            pq.write_table(pa.table({"x": column}), folder / f"{name}.parquet")
        plan = plan_source(folder)
        assert plan.types == {"x": pa.float64()}
        values = [value for part in plan.parts for batch in plan.read(part) for value in batch["x"].to_pylist()]
        assert sorted(value for value in values if value is not None) == [0.5, 1.0, 3.0]


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([1]), pa.array([1], pa.date32()), pa.array([0.5])],
        [pa.array([[1]]), pa.array([[[1]]]), pa.array([[1]], pa.large_list(pa.int64()))],
    ],
)
def test_days_or_deeper_lists_among_numbers_have_no_statistics(tmp_path: Path, columns: list[pa.Array]) -> None:
    for number, order in enumerate(itertools.permutations(columns)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, column in zip("abc", order, strict=True):
            pq.write_table(pa.table({"x": column}), folder / f"{name}.parquet")
        with pytest.raises(BadInput, match=r"column 'x' is .*expected one type in all files"):
            plan_source(folder)


@pytest.mark.parametrize("columns", [[[1], [[2]]], [[{"a": 1}], [{"a": [2]}]], [[[{"a": 1}]], [[{"a": [2]}]]]])
def test_single_values_count_as_lists_of_one_at_any_depth(tmp_path: Path, columns: list[list[Any]]) -> None:
    for number, order in enumerate((columns, columns[::-1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, column in zip("ab", order, strict=True):
            pq.write_table(pa.table({"x": column}), folder / f"{name}.parquet")
        plan = plan_source(folder)
        assert [batch["x"].to_pylist() for part in plan.parts for batch in plan.read(part)] == order
