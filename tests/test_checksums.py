"""Checksums of local files: read once, and again when a file has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_hops.core.store import checksums
from airflow_hops.core.store.checksums import remembered_checksums
from airflow_hops.core.store.private_folders import CACHE_VARIABLE, cache_folder

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The contents that were read, in their order."""
    results: list[bytes] = []

    def read(stream: object) -> str:
        content = stream.read()  # type: ignore[attr-defined]
        results.append(content)
        return hashlib.sha256(content).hexdigest()

    monkeypatch.setattr(checksums, "sha256_of", read)
    return results


def checksum(path: Path, *, reread: bool = False) -> str:
    with remembered_checksums() as result:
        return result.of(path, reread=reread)


def settled(path: Path, content: bytes) -> Path:
    """A file that was written a while ago."""
    path.write_bytes(content)
    time.sleep(0.06)
    return path


def test_file_is_read_once_until_it_changes(tmp_path: Path, reads: list[bytes]) -> None:
    (tmp_path / "staging").mkdir()
    path = settled(tmp_path / "staging" / "file", b"one")
    assert checksum(path) == checksum(path) == hashlib.sha256(b"one").hexdigest()
    path = path.parent.rename(tmp_path / "artifact") / "file"
    assert checksum(path) == hashlib.sha256(b"one").hexdigest()
    assert reads == [b"one"]
    stat = path.stat()
    settled(path, b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert checksum(path) == hashlib.sha256(b"two").hexdigest()
    assert reads == [b"one", b"two"]


def test_recently_changed_file_is_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_state", lambda status: str(status.st_size))  # a clock that stands still
    path = tmp_path / "file"
    for content in (b"one", b"two", b"six"):
        path.write_bytes(content)
        assert checksum(path) == hashlib.sha256(content).hexdigest()


def test_checksum_is_shared_between_processes(tmp_path: Path, reads: list[bytes]) -> None:
    path = settled(tmp_path / "file", b"one")
    program = (
        "import sys, pathlib; from airflow_hops.core.store.checksums import remembered_checksums\n"
        "with remembered_checksums() as found: print(found.of(pathlib.Path(sys.argv[1])))"
    )
    process = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, cwd=REPOSITORY)
    assert process.stdout.strip() == checksum(path), process.stderr
    assert reads == []


@pytest.mark.parametrize("cause", ["it is reread", "the cache is damaged", "others could write the cache"])
def test_checksum_cache_can_be_bypassed(
    tmp_path: Path, cache: Path, reads: list[bytes], caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    path = settled(tmp_path / "file", b"one")
    checksum(path)
    if cause == "the cache is damaged":
        (cache / "checksums.db").write_bytes(b"no database" * 1000)
    elif cause != "it is reread":
        cache.chmod(0o777)
    assert checksum(path, reread=cause == "it is reread") == hashlib.sha256(b"one").hexdigest()
    assert reads == [b"one", b"one"]
    assert (f"{cache} can be written by others (mode 777)" in caplog.text) is cause.startswith("others")
    if cause == "the cache is damaged":
        assert checksum(path) == hashlib.sha256(b"one").hexdigest()
        assert len(reads) == 2, "it was created again"


def test_checksum_cache_is_bounded(tmp_path: Path, reads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_MOST_FILES", 3)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    time.sleep(0.06)
    for path in [*paths, *reversed(paths)]:
        checksum(path)
    assert reads == [b"0", b"1", b"2", b"3", b"4", b"1", b"0"]
