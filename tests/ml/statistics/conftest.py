"""Fixtures of the tests of statistics."""

from __future__ import annotations

import pytest

from airflow_hops.ml.readers import csv as readers_csv
from airflow_hops.ml.readers import jsonl as readers_jsonl
from airflow_hops.ml.statistics.formats import layout, parquet, text


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has files of some kilobytes read in several parts and batches."""
    for module in (readers_csv, readers_jsonl, text):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4000)
    for module in (layout, parquet):
        monkeypatch.setattr(module, "BATCH_BYTES", 12_000)
    for module in (layout, parquet):
        monkeypatch.setattr(module, "BATCH_ROWS", 200)
