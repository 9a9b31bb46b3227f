"""A training on examples of an object store: its step downloads no split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import s3fs
import transformed_examples

from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.private_folders import cache_folder
from tests.ml.conftest import stage_runner
from tests.ml.training.trainings import Trainings


def test_ranks_read_remote_splits(
    s3_endpoint: str, own_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPS_LOCAL_CACHE", str(tmp_path / "cache"))
    options = {"endpoint_url": s3_endpoint, "use_listings_cache": False}
    s3fs.S3FileSystem(**options).mkdir("trainings")
    store = ArtifactStore("s3://trainings/flights", storage_options=options)
    rows = {"train": [200, 3, 98], "eval": [60]}
    write = stage_runner(store, tmp_path)
    examples = write(transformed_examples.write, kind="transformed_examples", rows=rows)

    model = Trainings(store, tmp_path, own_process)("training_functions:train", examples, epochs=1, np=2)
    assert {split: counts.rows_out for split, counts in model.rows.items()} == {"train": 301, "eval": 60}
    downloaded = {path.name for path in (tmp_path / "cache").rglob("*.parquet")}
    assert downloaded == set(), "the step has downloaded splits"
    fetched = [path for path in (cache_folder() / "files").iterdir() if not path.name.startswith(".")]
    assert len(fetched) == 4
