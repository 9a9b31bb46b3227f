"""The file system on a client of a local folder, which fails as a name node does; test_hdfs.py has a real HDFS."""

from __future__ import annotations

import io
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from file_system_contract import FileSystemContract
from test_store import PRODUCER, write

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.sources.source_files import fingerprint_of_sources, list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.store import ArtifactStore

HDFS = "airflow_hops.extensions.hdfs.core.hdfs"


class Reader(io.FileIO):
    def file_length(self) -> int:
        return os.fstat(self.fileno()).st_size


class FolderClient:
    """hdfs-native's client, for a folder; ``failure`` is what it raises if it is asked to write."""

    folder: Path
    failure: Exception | None = None
    settings: dict[str, str]
    access_ms = 0

    def __init__(self, url: str, settings: dict[str, str]) -> None:
        self.inner, type(self).settings = self, settings

    def path(self, name: str) -> Path:
        return self.folder / name.lstrip("/")

    def get_file_info(self, name: str) -> Any:
        path = self.path(name)
        if not path.exists():
            raise FileNotFoundError(f"{name} not found")
        info = path.stat()
        return SimpleNamespace(
            path=name, length=0 if path.is_dir() else info.st_size, isdir=path.is_dir(), permission=0o644, owner="ann",
            group="", modification_time=info.st_mtime_ns // 1_000_000, access_time=self.access_ms,
        )  # fmt: skip

    def list_status(self, name: str, recursive: bool) -> Iterator[Any]:
        if not self.path(name).is_dir():
            yield self.get_file_info(name)
            return
        if name.endswith("/secret"):
            raise RuntimeError('RPCError("org.apache.hadoop.AccessControlException", "Permission denied: user=eve")')
        for path in sorted(self.path(name).iterdir()):
            yield self.get_file_info(f"{name.rstrip('/')}/{path.name}")

    def mkdirs(self, name: str, permission: int, create_parent: bool) -> None:
        self.path(name).mkdir(parents=create_parent, exist_ok=True)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        if self.path(target).exists() and not overwrite:
            raise FileExistsError(f"{target} exists")
        self.path(source).rename(self.path(target))

    def delete(self, name: str, recursive: bool) -> bool:
        shutil.rmtree(self.path(name)) if self.path(name).is_dir() else self.path(name).unlink(missing_ok=True)
        return True

    def read(self, name: str) -> Any:
        self.get_file_info(name)
        return Reader(self.path(name))

    def create(self, name: str, options: Any) -> Any:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        return Writer(self.path(name), "wb")


class Writer(io.FileIO):
    def write(self, content: Any) -> int:
        if FolderClient.failure is not None:
            raise FolderClient.failure
        return super().write(content)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(f"{HDFS}.Client", FolderClient)
    monkeypatch.setattr(FolderClient, "folder", tmp_path / "files", raising=False)
    monkeypatch.setattr(FolderClient, "failure", None)
    (tmp_path / "files").mkdir()
    return f"hdfs://{tmp_path.name.replace('_', '-')}:9000"


class TestFolder(FileSystemContract):
    @pytest.fixture
    def url(self, url: str) -> str:
        return f"{url}/contract"


def test_name_node_is_asked_four_times(url: str) -> None:
    """It would be asked for minutes."""
    open_url(url)
    assert FolderClient.settings == {"dfs.client.failover.max.attempts": "4"}


def test_streams_read_and_write_like_local_files(url: str) -> None:
    fs, path, content = open_url(url)[0], "/a b%20é?#.txt", os.urandom(2_500_000)
    with fs.open(path, "wb") as stream:
        stream.write(content[:999])
        stream.write(content[999:])
    with fs.open(path) as stream:
        assert stream.seek(-5, os.SEEK_END) == len(content) - 5 and stream.read() == content[-5:]
        assert stream.seek(1_048_570) and stream.read(20) == content[1_048_570:1_048_590]
    with fs.open(path) as stream, io.BytesIO(content) as expected:
        assert list(stream) == list(expected)
    fs.cp_file(path, "/copy")
    assert fs.cat_file("/copy") == content
    with suppress(ZeroDivisionError), fs.open("/half", "wb") as stream:
        stream.write(content)
        1 / 0  # noqa: B018
    assert [entry["name"] for entry in fs.ls("/")] == [path, "/copy"]
    with pytest.raises(FileNotFoundError, match=f"'{url}/none'"):
        fs.cat_file("/none")


def test_listed_sources_are_complete_and_keep_their_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = open_url(url)[0]
    for name in ("a.csv", "deep/b.csv", "c.csv._COPYING_", "_SUCCESS", "#1?.csv"):
        fs.pipe_file(f"/raw/{name}", b"id\n1\n")
    names = [file.name.removeprefix(f"{url}/raw/") for file in list_files(Source(f"{url}/raw"))[1]]
    assert names == ["#1?.csv", "a.csv", "deep/b.csv"]
    fingerprint = fingerprint_of_sources({"raw": Source(f"{url}/raw")})
    monkeypatch.setattr(FolderClient, "access_ms", 7_200_000)  # as readers do
    assert fingerprint_of_sources({"raw": Source(f"{url}/raw")}) == fingerprint
    fs.pipe_file("/raw/a.csv", b"id\n22\n")
    assert fingerprint_of_sources({"raw": Source(f"{url}/raw")}) != fingerprint
    fs.pipe_file("/raw/secret/d.csv", b"id\n1\n")
    with pytest.raises(BadInput, match=rf"source '{url}/raw' cannot be listed \(PermissionError: .*denied: user=eve"):
        list_files(Source(f"{url}/raw"))


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (
            'RPCError("org.apache.AccessControlException", "Permission denied: user=eve\\n at")',
            BadInput,
            "denied: user",
        ),
        ('RPCError("SafeModeException", "Name node is in safe mode.")', HopsError, "Name node is in safe mode"),
        ('RPCError("hdfs.DSQuotaExceededException", "the quota of /x is exceeded: x")', OSError, "quota of /x is exc"),
        ('RPCError("IOException", "could only be replicated to 0 nodes. There are 1 datanode")', OSError, "0 nodes"),
        ('IOError("Connection refused (os error 111)")', HopsError, "the name node or a data node refuses conn"),
    ],
)
def test_failure_of_hdfs_is_named_and_leaves_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, error: type[Exception], message: str
) -> None:
    store = ArtifactStore(f"{url}/hops", local_cache=str(tmp_path / "cache"))
    monkeypatch.setattr(FolderClient, "failure", RuntimeError(failure))
    with pytest.raises(error, match=message) as raised:
        write(store, {"weights": "x" * 100}, PRODUCER)
    assert type(raised.value) is error and f"{url}/hops" in str(raised.value) and " at" not in str(raised.value)
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == []
    monkeypatch.setattr(FolderClient, "failure", None)
    assert store.verify(write(store, {"weights": "1"}))


@pytest.mark.parametrize("address", ["", "nameservice"])
def test_name_node_that_does_not_answer_is_named(address: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address or f"127.0.0.1:{free.getsockname()[1]}"
    once = {"dfs.client.failover.max.attempts": "1"}
    store = ArtifactStore(f"hdfs://{address}/hops", storage_options=once, local_cache=str(tmp_path))
    with pytest.raises(HopsError, match=f"hdfs://{address}/hops"):
        write(store, {"a": "1"})


def test_silent_name_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HDFS}.CONTACT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        store = ArtifactStore(f"hdfs://{address}/hops", local_cache=str(tmp_path))
        reason = (
            f"the name node does not answer within 0.5 s; check that it is well, and its address: 'hdfs://{address}"
        )
        with pytest.raises(HopsError, match=f"the artifact store {store.root} cannot be used .*{reason}") as failure:
            write(store, {"a": "1"})
        assert type(failure.value) is HopsError, "it may answer a retry"
