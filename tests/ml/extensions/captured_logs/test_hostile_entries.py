"""Rows of honest clients come out exactly, once, whatever other clients send."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from tests.ml.extensions.captured_logs import logs, strangers


def ingested(folder: Path, source: Source) -> pa.Table:
    ingest_table("plain", source, Window(None, None), OutputFolder(str(folder)))
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("plain/*.parquet")))


def check(layout: str, seed: int, folder: Path, make_context: Any) -> None:
    rng = random.Random(f"{layout} {seed}")
    log = strangers.draw(rng, layout)
    source = strangers.write(layout, folder / "log", log, rng)
    plain = ingested(folder, Source(**strangers.write_plain(layout, folder / "plain-log", log)))
    table, counts = logs.Ingests(make_context, folder)(source)
    rejected = {
        next((reason for reason in log.left_out if reason in words), words): number
        for words, number in counts.rejected.items()
    }
    assert rejected == dict(log.left_out), (seed, counts.rejected)
    assert counts.rows_in == counts.rows_out + sum(rejected.values())
    columns = [f"input.{name}" for name in log.names]
    assert {name: table.schema.field(f"input.{name}").type for name in log.names} == {
        field.name: field.type for field in plain.schema
    }
    plain = plain.rename_columns(columns)
    for name, values in (("request_id", [id_ for id_, _, _ in log.rows]), ("row", [row for _, row, _ in log.rows])):
        plain = plain.append_column(name, pa.array(values))
    names = ["request_id", "row", *columns]
    assert list(logs.sorted_rows([table], names)) == list(logs.sorted_rows([plain], names)), seed


@pytest.mark.parametrize("layout", strangers.LAYOUTS)
def test_honest_rows_come_out(layout: str, make_context: Any, tmp_path: Path) -> None:
    for seed in range(17):
        (tmp_path / str(seed)).mkdir()
        check(layout, seed, tmp_path / str(seed), make_context)


@pytest.mark.scheduled(part="campaigns")
@pytest.mark.parametrize("layout", strangers.LAYOUTS)
def test_honest_rows_come_out_of_many_logs(layout: str, make_context: Any, tmp_path: Path) -> None:
    for seed in range(17, 17 + 340):
        (tmp_path / str(seed)).mkdir()
        check(layout, seed, tmp_path / str(seed), make_context)
