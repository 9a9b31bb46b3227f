"""Every log of an endpoint gives the captured rows of the model server's writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ml.extensions.captured_logs import logs

EXPECTED = ["request_id", "row", "model", "version", "captured_at"]


@pytest.mark.parametrize("way", logs.WAYS)
@settings(
    max_examples=10, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(seed=st.integers(0, 2**32))
def test_rows_equal_those_of_the_model_server(
    way: str, seed: int, make_context: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    requests = logs.random_requests(seed, 100)
    source, survive = logs.WAYS[way](folder, requests)
    ingested, rows = logs.Ingests(make_context, tmp_path_factory.mktemp("snapshots"))(source)
    assert rows.rows_out == rows.rows_in == sum(each.rows for each in requests)
    names = [*EXPECTED, *(f"input.{name}" for name in survive), "output.probability"]
    own = logs.own_rows(requests)
    theirs = list(logs.sorted_rows([ingested], names))
    assert theirs == list(logs.sorted_rows(own, names))
    assert {name: ingested.schema.field(f"input.{name}").type for name in ("single", "narrow", "flag", "digits")} == {
        "single": pa.float32(), "narrow": pa.int32(), "flag": pa.bool_(), "digits": pa.string(),
    }  # fmt: skip


def test_logs_are_read_from_every_folder(tmp_path: Path, make_context: Any) -> None:
    """Types that nobody gives are inferred from all rows, not from the first."""
    lines = [
        {"id": f"r{number}", "t": 1_790_000_000 + number, "v": 3, "a": number if number < 700 else 0.5, "p": 1}
        for number in range(1000)
    ]
    logs.append(tmp_path / "x" / "log", lines)
    columns = {"request_id": "id", "captured_at": "t", "time_unit": "s", "version": "v"}
    source = logs.CapturedSource(str(tmp_path), model="m", inputs={"a": "a"}, outputs={"p": "p"}, **columns)
    table, _ = logs.Ingests(make_context, tmp_path / "x")(source)
    assert table.schema.field("input.a").type == pa.float64() and table.schema.field("output.p").type == pa.int64()
