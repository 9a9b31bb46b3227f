"""Files over fsspec: each appears whole, and a folder with its last file, whether the store renames or not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from file_system_contract import FileSystemContract


class TestRenamingStore(FileSystemContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/store"


class TestObjectStore(FileSystemContract):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        yield f"memory://{uuid.uuid4().hex}"
        fsspec.filesystem("memory").store.clear()
