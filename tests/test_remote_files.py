"""Files over fsspec: each appears whole, and a folder with its last file, whether the store renames or not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from airflow_hops.core.processes.remote_files import RemoteFiles


@pytest.fixture(params=["file", "memory"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteFiles]:
    """A folder in a store that renames, and in one of whole objects."""
    url = f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}"
    yield RemoteFiles(url)
    fsspec.filesystem("memory").store.clear()


def test_a_file_appears_whole_and_leaves_nothing_beside_it(remote: RemoteFiles) -> None:
    address = f"{remote.root}/models/one"
    for content in (b"first", b"second"):
        remote.write(address, content)
        assert remote.read(address) == content
    assert [entry["name"].rpartition("/")[2] for entry in remote.entries(f"{remote.root}/models")] == ["one"]
    remote.remove(address)
    remote.remove(address)
    assert not remote.exists(address)
    assert remote.entries(f"{remote.root}/nowhere") == []


def test_a_folder_whose_upload_fails_has_not_the_file_by_which_it_is_known(remote: RemoteFiles, tmp_path: Path) -> None:
    folder = f"{remote.root}/model"
    for name in ("manifest.json", "weights"):
        (tmp_path / name).write_text(name)
    files = {name: tmp_path / name for name in ("manifest.json", "weights")}
    with pytest.raises(FileNotFoundError):
        remote.publish({**files, "variables/gone": tmp_path / "gone"}, folder, last=["manifest.json"])
    assert not remote.exists(f"{folder}/manifest.json")
    remote.publish(files, folder, last=["manifest.json"])
    assert remote.read(f"{folder}/manifest.json") == b"manifest.json"
    remote.clear(folder, kept=["weights"])
    assert not remote.exists(f"{folder}/manifest.json") and remote.exists(f"{folder}/weights")
    remote.clear(folder, first=["manifest.json"])
    assert not remote.exists(f"{folder}/weights")
    remote.clear(folder)
