"""Data sets that are fetched into stores on S3 and HDFS, by a daemon that is killed while it stores them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_store import s3_store
from waiting import wait_for

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.sharing.core.entries import DatasetRef
from tests.extensions.sharing.organisations import Organisation, random_files

__all__ = ["s3_store"]
pytestmark = [pytest.mark.runtime, pytest.mark.server]
REF = "north/numbers@1"


@pytest.mark.parametrize(
    "kind", ["s3", pytest.param("hdfs", marks=[pytest.mark.spark, pytest.mark.scheduled(part="hdfs")])]
)
def test_files_are_uploaded_to_a_remote_store_one_by_one(
    organisation: Callable[..., Organisation], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: ArtifactStore = request.getfixturevalue(f"{kind}_store")
    north, south = organisation("north"), organisation("south", store=store, download_mbit_s=0.5)
    north.trust(south)
    south.trust(north)
    files = random_files(tmp_path / "files", **{f"part-{number}": 60_000 for number in range(10)})  # a piece each
    north.share(files)
    north.start()
    south.start()
    south.ask(REF)
    place = south.records.place(DatasetRef.parse(REF))
    wait_for(lambda: len(store.files.sizes(place)) >= 1, south.log.read_text)
    assert south.records.fetched(DatasetRef.parse(REF)) is None
    south.kill()
    south.write_settings(download_mbit_s=0)
    south.start()
    south.wait_until(REF, "fetched")
    for path in files.rglob("*.parquet"):
        with store.files.open(place, path.relative_to(files).as_posix()) as stream:
            assert stream.read() == path.read_bytes()
