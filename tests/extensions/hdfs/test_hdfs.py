"""Artifact store and sources in a real HDFS: whole files, and errors that say what is wrong with it."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hdfs_cluster import HAS_WEBHDFS, HdfsCluster, run_as
from test_store import PRODUCER, names_in, write

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.sources import Source
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.source_files import fingerprint_of_sources, list_files
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.testing.file_systems import FileSystemContract

pytestmark = pytest.mark.spark


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
    before = names_in(store)
    with pytest.raises(error) as artifact:
        write(store, {"weights": "x" * 100}, PRODUCER)
    assert type(artifact.value) is error
    with pytest.raises((OSError, HopsError)):
        store.write_text(f"{store.root}/state.json", "x" * 100)
    assert names_in(store) == before
    return str(artifact.value)


def test_streams_read_and_write_like_local_files(fs: Any, folder: str) -> None:
    path = f"{folder}/a b%20é?#.txt"
    content = os.urandom(2_500_000)
    with fs.open(path, "wb") as stream:
        stream.write(content[:999])
        stream.write(content[999:])
    with fs.open(path) as stream:
        assert stream.seek(-5, os.SEEK_END) == len(content) - 5 and stream.read() == content[-5:]
        assert stream.seek(1_048_570) and stream.read(20) == content[1_048_570:1_048_590]
    with fs.open(path) as stream, io.BytesIO(content) as expected:
        assert list(stream) == list(expected)
    fs.cp_file(path, f"{folder}/copy")
    assert fs.cat_file(f"{folder}/copy") == content
    with suppress(ZeroDivisionError), fs.open(f"{folder}/half", "wb") as stream:
        stream.write(content)
        1 / 0  # noqa: B018
    assert [entry["name"].rpartition("/")[2] for entry in fs.ls(folder)] == ["a b%20é?#.txt", "copy"]
    with pytest.raises(FileNotFoundError, match=f"'{folder}/none'"):
        fs.cat_file(f"{folder}/none")


def test_readers_see_whole_files_while_they_are_replaced(hdfs_store: ArtifactStore, fs: Any) -> None:
    uri = f"{hdfs_store.root}/state.json"
    texts = [str(number) * 1_500_000 for number in range(5)]
    hdfs_store.write_text(uri, texts[0])
    reads, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            reads.append(hdfs_store.read_text(uri))
            assert {
                info["size"] for name, info in fs.find(hdfs_store.root, detail=True).items() if "/." not in name
            } == {1_500_000}

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for text in texts[1:]:
            hdfs_store.write_text(uri, text)
        done.set()
        reading.result()
    assert set(reads) <= set(texts) and len(set(reads)) > 1
    assert names_in(hdfs_store) == ["state.json"]


def test_an_artifact_appears_once_it_is_complete(hdfs_store: ArtifactStore) -> None:
    uri = hdfs_store.address(PRODUCER, "model")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, hdfs_store, {f"part-{number}": "x" * 1000 for number in range(20)})
        seen = set()
        while not writing.done():
            seen.add(len(hdfs_store.names(uri)))
            assert not hdfs_store.exists(uri) or len(hdfs_store.names(uri)) == 21
    assert len(seen) > 1, "nothing was seen of the upload"
    assert hdfs_store.verify(writing.result())


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


def test_listed_sources_are_complete_and_keep_their_version(fs: Any, folder: str) -> None:
    for name in ("a.csv", "deep/b.csv", "c.csv._COPYING_", "_SUCCESS", "#1?.csv"):
        fs.pipe_file(f"{folder}/raw/{name}", b"id\n1\n")
    names = [file.name.removeprefix(f"{folder}/raw/") for file in list_files(Source(f"{folder}/raw"))[1]]
    assert names == ["#1?.csv", "a.csv", "deep/b.csv"]
    assert [file.name for file in list_files(Source(f"{folder}/raw/[a-z]*.csv"))[1]] == [f"{folder}/raw/a.csv"]
    before = fingerprint_of_sources({"raw": Source(f"{folder}/raw")})
    read_ms = int(time.time() * 1000) + 7_200_000
    fs.client.set_times(fs._strip_protocol(f"{folder}/raw/a.csv"), 2**64 - 1, read_ms)  # as a reader does
    assert fs.info(f"{folder}/raw/a.csv")["access_time"] == read_ms
    assert fingerprint_of_sources({"raw": Source(f"{folder}/raw")}) == before
    fs.pipe_file(f"{folder}/raw/a.csv", b"id\n2\n")
    assert fingerprint_of_sources({"raw": Source(f"{folder}/raw")}) != before
    with pytest.raises(BadInput, match="no file matches"):
        list_files(Source(f"{folder}/none"))


def test_folder_of_another_user_is_refused(hdfs_store: ArtifactStore, fs: Any, folder: str, tmp_path: Path) -> None:
    fs.pipe_file(f"{folder}/raw/mine/a.csv", b"id\n1\n")
    fs.client.set_permission(fs._strip_protocol(f"{folder}/raw/mine"), 0o700)
    artifact = write(hdfs_store, {"a": "1"})
    code = f"""
from test_store import write
from airflow_hops.core.contract.sources import Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.source_files import list_files
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


@pytest.mark.parametrize("address", ["", "nohost.invalid:9000", "nameservice", "127.0.0.1"])
def test_name_node_that_does_not_answer_is_named(address: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address or f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    store = ArtifactStore(f"hdfs://{address}/hops", local_cache=str(tmp_path))
    with pytest.raises(HopsError, match=f"hdfs://{address}/hops"):
        write(store, {"a": "1"})
    with pytest.raises(HopsError, match=f"hdfs://{address}/raw"):
        list_files(Source(f"hdfs://{address}/raw"))
    assert time.monotonic() - began < 90


def test_silent_name_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_hops.extensions.hdfs.core.hdfs.CONTACT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        store = ArtifactStore(f"hdfs://{address}/hops", local_cache=str(tmp_path))
        reason = f"the name node does not answer within 2 s; check that it is well, and its address: 'hdfs://{address}"
        with pytest.raises(HopsError, match=f"the artifact store {store.root} cannot be used .*{reason}") as failure:
            write(store, {"a": "1"})
        assert type(failure.value) is HopsError, "it may answer a retry"
        with pytest.raises(HopsError, match=f"hdfs://{address}/raw.*{reason}"):
            list_files(Source(f"hdfs://{address}/raw"))


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


@pytest.mark.runtime
def test_pipeline_runs_from_hdfs_into_hdfs(
    hdfs_store: ArtifactStore,
    fs: Any,
    folder: str,
    flights_raw: Path,
    runtime: Path,
    run_dag: Any,
    hops: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("flights.csv.zip", "weather.csv", "planes.csv", "airports.csv"):
        fs.put_file(str(flights_raw / name), f"{folder}/raw/{name}")
    extra = {"store": hdfs_store.root, "runtime": str(runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    conf = {"raw": f"{folder}/raw", "start": "2013-01-01", "end": "2013-02-01"}
    results = []
    for _ in range(2):
        tasks = {task.task_id: task for task in run_dag("ingest_prepare", conf).get_task_instances()}
        assert {name: str(task.state) for name, task in tasks.items()} == {"ingest": "success", "prepare": "success"}
        results.append({name: task.xcom_pull(task_ids=name) for name, task in tasks.items()})
    assert [[result[task]["cached"] for task in tasks] for result in results] == [[False, False], [True, True]]
    assert hdfs_store.manifest(results[0]["prepare"]["uri"]).rows["flights"].rows_in == 26_865
    code, _, said = hops("store", "verify", hdfs_store.root)
    assert (code, f"2 artifacts in {hdfs_store.root}: none damaged" in said) == (0, True), said
    code, _, said = hops("store", "gc", "--keep-days=1", "--keep-runs=0", "--delete")
    assert (code, "2 items, 1.6 MB, are kept" in said) == (0, True), said
