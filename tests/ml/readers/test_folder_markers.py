"""Empty objects by which consoles and tools of Hadoop mark folders in object stores: no listing returns them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.store.artifact_store import ArtifactStore
from tests.ml.conftest import Bucket
from tests.ml.readers.reading import ingested

MARKERS = ("raw/", "raw/a/", "raw/a_$folder$", "raw/empty/", "raw/b", "raw/b/c", "raw_$folder$")
FILES = ("raw/a/x.csv", "raw/b/c/y.csv", "raw/z.csv")


@pytest.fixture
def marked(bucket: Bucket) -> Bucket:
    """A bucket with three files of one row, and markers of all kinds."""
    for key in (*MARKERS, *FILES):  # not by fsspec, which strips a slash at the end
        content = b"a\n1\n" if key in FILES else b""
        bucket.fs.call_s3("put_object", Bucket=bucket.url.removeprefix("s3://"), Key=key, Body=content)
    return bucket


def test_listing_of_a_source_skips_markers(marked: Bucket, tmp_path: Path) -> None:
    url, options = marked.url, marked.options
    for pattern, files in {
        "raw": FILES,
        "raw/": FILES,
        "raw/**": FILES,
        "r*/*": FILES[2:],
        "raw/b": FILES[1:2],
    }.items():
        listed = list_files(Source(f"{url}/{pattern}", storage_options=options))[1]
        assert [file.name for file in listed] == [f"{url}/{name}" for name in files], pattern
    assert ingested(f"{url}/raw", tmp_path, storage_options=options).num_rows == 3


def test_listing_of_a_store_skips_markers(marked: Bucket) -> None:
    url, options = marked.url, marked.options
    store = ArtifactStore(url, storage_options=options)
    assert store.names(f"{url}/raw") == ["a", "b", "empty", "z.csv"]
    assert store.files.sizes(url) == dict.fromkeys(FILES, 4)
