"""Random typed tables, as other libraries write them, are read back value by value, or refused by file and column."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from tests.ml.readers.random_files import differences, random_table, write

REFUSED = (
    r"row \d+, column .*: 18446744073709551615 does not fit int64.* give the column the type 'string'",
    r"row \d+, column .* does not fit timestamp\[us\].* give the column the type 'timestamp'",
    r"table 't': .* has no rows",  # CSV has empty lines for rows whose only value is missing
    r"the file has no rows",
    r"(PyArrow .* does not know this feature|Arrow reads wrongly|the file is damaged)",  # DuckDB's PARQUET_VERSION v2
    r"the backslashes of .* may be escapes, or not; give the source escape=",
    r"may be one value of several lines, or several rows; give the source quote=",
    r"the header .* is one column, and has .* in it; name what separates the columns",
    r"the first row, .*, looks like the rows below it.* header=True",
)


def ingested(source: Source, folder: Path) -> str | None:
    """Ingests a source; returns why not, if it is refused."""
    try:
        ingest_table("t", source, Window(None, None), OutputFolder(str(folder)))
    except BadInput as refusal:
        return str(refusal)
    return None


@pytest.mark.parametrize("tables", [120, pytest.param(4000, marks=pytest.mark.scheduled(part="campaigns"))])
def test_files_of_other_libraries_are_read_back(tmp_path: Path, tables: int) -> None:
    read = 0
    for seed in range(tables):
        folder = tmp_path / str(seed)
        folder.mkdir()
        random = Random(seed)
        written = write(random, random_table(random), folder)
        if written is None:
            continue
        refusal = ingested(Source(str(folder), **written.fields), tmp_path)
        if refusal is None:
            assert [*differences(written, pq.read_table(tmp_path / "t"))] == [], f"seed {seed}"
            read += 1
        else:
            assert any(re.search(words, refusal) for words in REFUSED), f"seed {seed}: {refusal}"
        shutil.rmtree(folder)
    assert read > 0.8 * tables
