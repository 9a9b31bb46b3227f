"""Copies of artifacts of a remote store: whose they are, whether they are whole, and how much they may take."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.local_copies import BYTES_VARIABLE, _in_use
from airflow_hops.core.store.private_folders import CACHE_VARIABLE, cache_folder, private_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the copies."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    yield cache_folder() / "artifacts"
    for folder in list(_in_use):
        os.close(_in_use.pop(folder))


@pytest.fixture
def remote(tmp_path: Path) -> ArtifactStore:
    """A store that is not a local one."""
    return ArtifactStore(f"memory://{tmp_path.name}/hops")


def write(store: ArtifactStore, text: str) -> Artifact:
    return write_artifact(store, "model", {"weights": text}, Producer("dag", text[:8], "train"))


def release(folder: Path) -> None:
    """As the end of the process would."""
    os.close(_in_use.pop(folder))


def test_copy_is_private_to_its_user(remote: ArtifactStore, cache: Path) -> None:
    folder = remote.local(write(remote, "1"))
    assert folder.parent == cache
    assert [path.stat().st_mode & 0o777 for path in (cache.parent, cache)] == [0o700, 0o700]


def test_changed_copy_is_fetched_again(remote: ArtifactStore, caplog: pytest.LogCaptureFixture) -> None:
    artifact = write(remote, "1")
    folder = remote.local(artifact)
    (folder / "weights").write_text("2")
    assert (remote.local(artifact) / "weights").read_text() == "1"
    assert "is fetched again" in caplog.text
    (folder / "weights").unlink()
    assert (remote.local(artifact) / "weights").read_text() == "1"
    assert remote.local(artifact) == folder


@pytest.mark.parametrize("planted", ["link", "writable", "file"])
def test_folder_writable_by_others_is_refused(remote: ArtifactStore, cache: Path, tmp_path: Path, planted: str) -> None:
    place = cache.parent
    place.rmdir()
    if planted == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    elif planted == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o770)
    with pytest.raises(
        BadInput, match=rf"{place} (is a symbolic link|is not a folder|can be written by others).*{CACHE_VARIABLE}"
    ):
        remote.local(write(remote, "1"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_another_users_folder_is_refused(remote: ArtifactStore, cache: Path) -> None:
    os.chown(cache.parent, 12345, 12345)
    with pytest.raises(BadInput, match="belongs to user 12345; expected a folder of user 0"):
        remote.local(write(remote, "1"))


def test_least_recently_used_copies_are_removed(
    remote: ArtifactStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts = [write(remote, str(number) * 10_000) for number in range(3)]
    first, second = (remote.local(artifact) for artifact in artifacts[:2])
    time.sleep(0.05)  # a tick of the file system's clock
    remote.local(artifacts[0])
    monkeypatch.setenv(BYTES_VARIABLE, "25000")
    third = remote.local(artifacts[2])
    assert [folder.exists() for folder in (first, second, third)] == [True] * 3
    assert "that are in use take" in caplog.text
    release(third)
    shutil.rmtree(third)
    release(first)
    release(second)
    remote.local(artifacts[2])
    assert [folder.exists() for folder in (first, second, third)] == [True, False, True]


def test_copy_stays_in_use_while_its_process_lives(remote: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = remote.local(write(remote, "1" * 10_000))
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        release(folder)
        monkeypatch.setenv(BYTES_VARIABLE, "15000")
        other = remote.local(write(remote, "2" * 10_000))
        assert folder.exists()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    release(other)
    remote.local(write(remote, "3" * 10_000))
    assert not folder.exists()


def test_partial_copy_of_a_killed_process_is_removed(remote: ArtifactStore, cache: Path) -> None:
    left = cache / ".abc.def"
    left.mkdir(parents=True, mode=0o700)
    remote.local(write(remote, "1"))
    assert not left.exists()


def test_artifact_larger_than_the_cache_is_refused(remote: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = write(remote, "1" * 100)
    monkeypatch.setenv(BYTES_VARIABLE, "99")
    with pytest.raises(BadInput, match=rf"{artifact.uri} has 100 bytes, more than the 99 .*{BYTES_VARIABLE}"):
        remote.local(artifact)
    monkeypatch.setenv(BYTES_VARIABLE, "1 GB")
    with pytest.raises(BadInput, match=f"{BYTES_VARIABLE} is '1 GB'; expected a number of bytes"):
        remote.local(artifact)


def test_concurrent_processes_get_one_artifact(tmp_path: Path) -> None:
    program = (
        "import sys, os; from airflow_hops.core.artifacts.artifact import Producer\n"
        "from airflow_hops.core.store import ArtifactStore\n"
        "store = ArtifactStore('memory://one/hops')\n"
        "with store.create(store.uri('a', 'model'), 'model', Producer()) as writer:\n"
        "    (writer.path / 'weights').write_text('1' * 100_000)\n"
        "    artifact = writer.commit()\n"
        "print(flush=True); sys.stdin.readline()\n"
        "print((store.local(artifact) / 'weights').stat().st_size)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    assert [process.communicate("go\n")[0].strip() for process in processes] == ["100000"] * 2


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for name in ("new/folder", "open"):
        assert private_folder(tmp_path / name).stat().st_mode & 0o777 == 0o700
