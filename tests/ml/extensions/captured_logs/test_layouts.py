"""Every log of an endpoint gives the captured rows of the model server's writer."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_hops.core.errors import BadInput
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
    if way == "Databricks, older":  # with times in milliseconds
        requests = [replace(each, at_us=each.at_us // 1000 * 1000) for each in requests]
    source, survive = logs.WAYS[way](folder, requests)
    ingested, rows = logs.Ingests(make_context, tmp_path_factory.mktemp("snapshots"))(source)
    assert rows.rows_out == rows.rows_in == sum(each.rows for each in requests)
    names = [*EXPECTED, *(f"input.{name}" for name in survive), "output.probability"]
    if way.startswith("KServe records") and way != "KServe records, json":
        names.remove("captured_at")  # all of a batch have the time of its object
    own = logs.own_rows(requests)
    theirs = list(logs.sorted_rows([ingested], names))
    assert theirs == list(logs.sorted_rows(own, names))
    assert {name: ingested.schema.field(f"input.{name}").type for name in ("single", "narrow", "flag", "digits")} == {
        "single": pa.float32(), "narrow": pa.int32(), "flag": pa.bool_(), "digits": pa.string(),
    }  # fmt: skip


@pytest.mark.parametrize("way", ["bodies", "SageMaker JSON", "SageMaker BASE64", "Databricks", "KServe"])
@pytest.mark.parametrize("widths", [[1], [1, 3], [3, 1, 2]])
def test_lists_of_any_length_are_those_of_the_model_server(
    way: str, widths: list[int], make_context: Any, tmp_path: Path
) -> None:
    requests = logs.random_requests(5, 30)
    for number, each in enumerate(requests):
        each.inputs["vector"] = np.full((each.rows, widths[number % len(widths)]), number, np.float32)  # type: ignore[index]
    (tmp_path / "log").mkdir()
    ingested, _ = logs.Ingests(make_context, tmp_path)(logs.WAYS[way](tmp_path / "log", requests)[0])
    names = ["request_id", "row", "input.vector"]
    own = [
        (*key, value if isinstance(value, list) else [value])
        for *key, value in logs.sorted_rows(logs.own_rows(requests), names)
    ]
    theirs = list(logs.sorted_rows([ingested], names))
    assert [(*key, value if isinstance(value, list) else [value]) for *key, value in theirs] == own
    is_list = pa.types.is_list(ingested.schema.field("input.vector").type)
    assert is_list == (max(widths) > 1)


@pytest.mark.parametrize(
    ("values", "scale", "is_exact"),
    [(["12.10", "-0.03", None], 2, True), (["9007199254740993.0"], 1, False), (["0.12345678901234567891"], 20, False)],
)
def test_decimals_are_exact_or_refused(
    values: list[str | None], scale: int, is_exact: bool, make_context: Any, tmp_path: Path
) -> None:
    numbers = [None if value is None else Decimal(value) for value in values]
    facts = {"id": [f"r{n}" for n in range(len(values))], "t": [1_790_000_000] * len(values), "p": [1] * len(values)}
    pq.write_table(pa.table({**facts, "a": pa.array(numbers, pa.decimal128(38, scale))}), tmp_path / "log.parquet")
    columns = {"request_id": "id", "captured_at": "t", "time_unit": "s", "versions": {"": 3}}
    source = logs.CapturedSource(f"{tmp_path}/log.parquet", model="m", inputs={"a": "a"}, outputs={"p": "p"}, **columns)
    ingest = logs.Ingests(make_context, tmp_path)
    if is_exact:
        assert ingest(source)[0]["input.a"].to_pylist() == [None if value is None else float(value) for value in values]
    else:
        with pytest.raises(BadInput, match=r"'input.a' is Decimal.*is not of type double.*another type"):
            ingest(source)
        as_text = replace(source, schema={"input.a": "string"})
        assert ingest(as_text, run_id="run-1")[0]["input.a"].to_pylist() == [str(number) for number in numbers]


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


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_records_of_one_id_are_never_mixed(form: str, make_context: Any, tmp_path: Path) -> None:
    """A batch tells no order, so that of two requests of an id nobody knows which response is whose."""
    requests = logs.random_requests(3, 20)
    requests[7] = replace(requests[7], request_id=requests[4].request_id)
    (tmp_path / "log").mkdir()
    source, survive = logs.kserve_records(form, 40)(tmp_path / "log", requests)
    ingested, rows = logs.Ingests(make_context, tmp_path)(source)
    names = ["request_id", "row", *(f"input.{name}" for name in survive), "output.probability"]
    others = logs.own_rows([each for number, each in enumerate(requests) if number not in (4, 7)])
    assert list(logs.sorted_rows([ingested], names)) == list(logs.sorted_rows(others, names))
    assert rows.rejected == {"of an id whose requests and responses overlap": 2}


def test_objects_of_another_way_of_kserve_are_refused(make_context: Any, tmp_path: Path) -> None:
    """A marshaller of one's own may write anything."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "r-request.csv").write_text("Id,Bytes\nr,1\n")
    source = logs.source_of(tmp_path / "log", layout="kserve")
    with pytest.raises(BadInput, match=r"r-request\.csv: begins with b'Id,Bytes.*or KServe's CSV"):
        logs.Ingests(make_context, tmp_path)(source)
    (tmp_path / "log" / "r-request.csv").write_bytes(b"url,bytes,\xff\nr\n")
    with pytest.raises(BadInput, match=r"r-request\.csv: the file is damaged"):
        logs.Ingests(make_context, tmp_path)(source)


def test_page_lists_the_ways_that_are_read() -> None:
    page = (Path(__file__).parents[4] / "docs/extensions/captured_logs.md").read_text()
    table = page[page.index("| layout | ways |") :].partition("\n\n")[0].splitlines()[2:]
    ways = [way for row in table for way in row.split("|")[2].strip().split("; ")]
    assert sorted(ways) == sorted(logs.WAYS)
