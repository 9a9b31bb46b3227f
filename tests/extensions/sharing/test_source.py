"""The contract of sources, for data sets."""

from __future__ import annotations

from airflow_hops.testing.sources import SourceContract


class TestDataset(SourceContract):
    fields = {"uri": "dataset://north/flights@1#planes", "licences": ["CC0-1.0"], "schema": {"delay": "float64"}}
