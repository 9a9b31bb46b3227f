"""Fixtures of both environments' tests: places in which there is little room."""

from __future__ import annotations

import gc
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        gc.collect()
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """``cgroup.procs`` of a control group: the kernel kills what asks for more than 64 MiB within it."""
    root = Path("/sys/fs/cgroup")
    parent, limit = (root / "memory", "memory.limit_in_bytes") if (root / "memory").is_dir() else (root, "memory.max")
    group = parent / f"hops-tests-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        try:
            (group / limit).write_text(str(64 << 20))
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        pytest.skip(f"no control group of limited memory can be made here: {error}")
    yield group / "cgroup.procs"
    group.rmdir()
