"""Reads sources as ingest and as statistics do; one that cannot be read is refused by both in the same words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import AnySource, Source
from airflow_hops.ml.ingest import Window, ingest_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.sources import TypesDoNotFit, plan_source


def snapshot(source: AnySource | Path | str, folder: Path, **fields: Any) -> Path:
    """Returns the folder of a source's snapshot, below a folder; fields are those of a source at a path."""
    source = Source(str(source), **fields) if isinstance(source, Path | str) else source
    ingest_table("t", source, Window(None, None), OutputFolder(str(folder)))
    return folder / "t"


def ingested(source: AnySource | Path | str, folder: Path, **fields: Any) -> pa.Table:
    """Returns the rows of a source's snapshot."""
    return pq.read_table(snapshot(source, folder, **fields))


def read_for_statistics(source: Source | str) -> pa.Table:
    """Returns the rows that statistics are of."""
    plan = plan_source(source)
    for _ in range(3):
        try:
            batches = [batch for part in plan.parts for batch in plan.read(part)]
            return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote=True)
        except TypesDoNotFit as misfit:
            plan = plan.widen(misfit)
    raise AssertionError("types did not fit a third time")


def by_ingest(source: Source) -> None:
    snapshot(source, Path(source.uri).parent / "snapshot")


READERS: tuple[Callable[[Source], Any], ...] = (by_ingest, generate_statistics)


def check_refused(
    path: Path, words: str, content: str | bytes | None = None, readers: Iterable[Any] = READERS, **fields: Any
) -> None:
    """Asserts that a file, if given with its content, is refused by name in these words."""
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for read in readers:
        with pytest.raises(BadInput, match=re.escape(words)) as refused:
            read(Source(str(path), **fields))
        assert str(path) in str(refused.value)
