"""The DAG files of the benchmarks, which no other test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SETTINGS = {"FLIGHTS": "/flights.parquet", "SHOPS": "/shops.parquet", "SHOPS_IN_FILE": "1", "MODEL": "linear"}


@pytest.mark.parametrize("folder", sorted(path.name for path in BENCHMARKS.glob("*dags")))
def test_dag_files_are_parsed(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.syspath_prepend(BENCHMARKS / folder)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"HOPS_BENCHMARK_{name}", value)
    bag = DagBag(BENCHMARKS / folder)
    assert bag.import_errors == {}
    assert bag.dags
