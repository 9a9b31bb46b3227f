"""Windows without rows: prepared, scored and captured as nothing, whatever the columns would have been."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_hops.ml.prepare import stage as prepare
from tests.ml.extensions.scoring.test_scores import Scoring, scoring
from tests.ml.world import World

__all__ = ["scoring"]


def test_window_that_becomes_empty_replaces_its_rows(scoring: Scoring, world: World) -> None:
    scoring.serve(scoring.model(0), scoring.model(1))
    window = ["2026-11-01T00:00:00+00:00", "2026-11-02T00:00:00+00:00"]
    scoring.score(scoring.examples())
    assert len(scoring.captured()) == 600
    snapshot = world.snapshot({"day": pa.table({})}, window=window)
    options: dict[str, Any] = {"prepare": "unlabelled_rows:prepare", "label": "", "key": "id", "engine": "duckdb"}
    examples = world.run(prepare, tables=snapshot, **options)
    assert (examples.rows["rows"].rows_out, examples.properties["window"]) == (0, window)
    scores = scoring.score(examples)
    assert scores.metrics == {"rows": 0, "rows_version_1": 0, "rows_version_2": 0}
    assert not list(scoring.folder.glob("m/*.parquet"))
