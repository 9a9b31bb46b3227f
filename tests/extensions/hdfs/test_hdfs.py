"""Artifact store and sources in a real HDFS: whole files, and errors that say what is wrong with it."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from file_system_contract import FileSystemContract
from hdfs_cluster import HAS_WEBHDFS, HdfsCluster, run_as
from test_store import PRODUCER, names_in, write

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = [pytest.mark.spark, pytest.mark.scheduled(part="hdfs")]


@pytest.fixture
def fs(hdfs_store: ArtifactStore) -> Any:
    return open_url(hdfs_store.root)[0]


@pytest.fixture
def folder(hdfs_store: ArtifactStore) -> str:
    return hdfs_store.root.rpartition("/")[0]


class TestHdfs(FileSystemContract):
    @pytest.fixture
    def url(self, folder: str) -> str:
        return f"{folder}/contract"


def refused(error: type[Exception], store: ArtifactStore) -> str:
    """The message with which neither an artifact nor a text is written; asserts that both leave nothing."""
    names = names_in(store)
    with pytest.raises(error) as artifact:
        write(store, {"weights": "x" * 100}, PRODUCER)
    assert type(artifact.value) is error
    with pytest.raises((OSError, HopsError)):
        store.write_text(f"{store.root}/state.json", "x" * 100)
    assert names_in(store) == names
    return str(artifact.value)


def test_one_of_several_writers_creates_a_text(hdfs_store: ArtifactStore) -> None:
    uri = f"{hdfs_store.root}/claim"

    def create(number: int) -> bool:
        try:
            hdfs_store.create_text(uri, str(number) * 100)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        created = list(pool.map(create, range(6)))
    assert sum(created) == 1
    assert hdfs_store.read_text(uri) == str(created.index(True)) * 100
    assert names_in(hdfs_store) == ["claim"]


def test_forks_use_the_store_and_end(hdfs_store: ArtifactStore) -> None:
    hdfs_store.write_text(f"{hdfs_store.root}/text", "text")
    code = f"""
import os, signal, sys
from airflow_hops.core.store import ArtifactStore
store = ArtifactStore({hdfs_store.root!r})
store.read_text(store.root + "/text")
pid = os.fork()
signal.alarm(60)
print(store.read_text(store.root + "/text"), flush=True)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0)
"""
    assert run_as("anybody", code).split() == ["text", "text"]


def test_folder_of_another_user_is_refused(hdfs_store: ArtifactStore, fs: Any, folder: str, tmp_path: Path) -> None:
    fs.pipe_file(f"{folder}/raw/mine/a.csv", b"id\n1\n")
    fs.client.set_permission(fs._strip_protocol(f"{folder}/raw/mine"), 0o700)
    artifact = write(hdfs_store, {"a": "1"})
    code = f"""
from test_store import write
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.sources.source_files import list_files
store = ArtifactStore({hdfs_store.root!r}, local_cache={str(tmp_path)!r})
print(len(store.artifacts(store.root)))
for call in lambda: write(store, {{"a": "2"}}), lambda: list_files(Source("{folder}/raw")):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""
    count, written, listed = run_as("eve", code).splitlines()
    assert count == "1"
    assert written.startswith(f"BadInput the artifact store {hdfs_store.root} cannot be used (PermissionError: ")
    assert "Permission denied: user=eve, access=WRITE" in written
    assert listed.startswith(f"BadInput source '{folder}/raw' cannot be listed (PermissionError: ")
    assert "user=eve, access=READ_EXECUTE" in listed and f"'{folder}/raw/mine'" in listed
    assert hdfs_store.verify(artifact)


@pytest.mark.parametrize(
    ("refuse", "allow", "error", "reason"),
    [
        (["-safemode", "enter"], ["-safemode", "leave"], HopsError, "Name node is in safe mode"),
        (["-setSpaceQuota", "100k", "{}"], ["-clrSpaceQuota", "{}"], OSError, "quota of {} is exceeded"),
    ],
    ids=["safe mode", "full"],
)
def test_hdfs_that_accepts_no_files_is_reported(
    hdfs: HdfsCluster, hdfs_store: ArtifactStore, refuse: list[str], allow: list[str], error: Any, reason: str
) -> None:
    hdfs_store.write_text(f"{hdfs_store.root}/text", "text")
    place = hdfs_store.root.removeprefix(hdfs.url)
    hdfs.admin(*(argument.format(place) for argument in refuse))
    try:
        message = refused(error, hdfs_store)
        assert hdfs_store.read_text(f"{hdfs_store.root}/text") == "text"
    finally:
        hdfs.admin(*(argument.format(place) for argument in allow))
    assert reason.format(place) in message and f"'{hdfs_store.root}/" in message
    assert hdfs_store.verify(write(hdfs_store, {"a": "1"}))


def test_data_node_that_dies_leaves_no_half_file(
    hdfs: HdfsCluster, hdfs_store: ArtifactStore, fs: Any, folder: str
) -> None:
    artifact = write(hdfs_store, {"a": "1"}, replace(PRODUCER, run_id="before"))
    stream = fs.open(f"{folder}/half", "wb")
    stream.write(os.urandom(3 << 20))
    hdfs.kill("datanode")
    try:
        with pytest.raises(OSError, match=f"All nodes failed for write: '{folder}/half'"), stream:
            stream.write(os.urandom(9 << 20))
        assert "data node" in refused(HopsError, hdfs_store)
        with pytest.raises(OSError, match=f"All DataNodes failed: '{artifact.uri}/"):
            hdfs_store.verify(artifact)
    finally:
        hdfs.start("datanode")
    assert fs.ls(folder, detail=False) == [fs._strip_protocol(hdfs_store.root)]
    assert hdfs_store.verify(artifact)


@pytest.mark.skipif(not HAS_WEBHDFS, reason="needs libjersey1-servlet-java, libhttpclient-java, libjaxb-api-java")
def test_store_at_the_address_of_a_webhdfs_connection(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = hdfs.web_address
    open_url(hdfs.url)[0].mkdir(f"/{tmp_path.name}")
    open_url(hdfs.url)[0].client.set_permission(f"/{tmp_path.name}", 0o777)
    connection = {"conn_type": "webhdfs", "host": host, "port": port, "login": "ann"}
    extra = {"store": f"webhdfs://{host}:{port}/{tmp_path.name}/hops", "storage_conn_id": "webhdfs_default"}
    monkeypatch.setenv("AIRFLOW_CONN_WEBHDFS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    monkeypatch.setenv("HOPS_LOCAL_CACHE", str(tmp_path))
    store = RuntimeHook().store
    uri = f"{store.root}/_state/text.json"
    for text in ("first", "second"):
        store.write_text(uri, text)
        assert store.read_text(uri) == text
    with pytest.raises(FileExistsError, match="already exists"):
        store.create_text(uri, "third")
    assert store.read_text(uri) == "second" and store.names(f"{store.root}/_state") == ["text.json"]
    write(store, {"folder/a": "1", "b": ""})
    artifact = write(store, {"folder/a": "2", "c": "x" * 3_000_000})
    store.verify(artifact)
    assert (store.local(artifact) / "folder" / "a").read_text() == "2"
    assert store.names(artifact.uri) == ["c", "folder", "manifest.json"]
    assert open_url(hdfs.url)[0].info(f"/{tmp_path.name}/hops/_state/text.json")["owner"] == "ann"
    store.remove_folder(artifact.uri)
    assert not store.exists(artifact.uri)
