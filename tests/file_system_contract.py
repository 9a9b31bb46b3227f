"""Tests that every file system of the store passes."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import pytest

from airflow_hops.core.processes.remote_files import RemoteFiles


class FileSystemContract:
    """A subclass overrides the fixture ``url``."""

    @pytest.fixture
    @abstractmethod
    def url(self) -> str:
        """Returns the URL of a new folder, which need not exist."""

    @pytest.fixture
    def remote(self, url: str) -> RemoteFiles:
        return RemoteFiles(url)

    def test_replaces_whole_files(self, remote: RemoteFiles) -> None:
        address = f"{remote.root}/models/one"
        for content in (b"first", b"second"):
            remote.write(address, content)
            assert remote.read(address) == content
        assert [entry["name"].rpartition("/")[2] for entry in remote.entries(f"{remote.root}/models")] == ["one"]
        remote.remove(address)
        remote.remove(address)
        assert not remote.exists(address)
        assert remote.entries(f"{remote.root}/nowhere") == []

    def test_publishes_the_last_file_last(self, remote: RemoteFiles, tmp_path: Path) -> None:
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
