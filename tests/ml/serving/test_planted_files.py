"""Files and links that another user of the machine plants in a capture folder that both may write."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from campaigns import campaign

from airflow_hops.core.processes.files import open_own
from airflow_hops.serving.capture import capture, writer
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.spool import OPTIONS_FILE, SERVER_LOCK, STATE_FILE, WRITER_LOCK, segment_path
from tests.ml.serving.test_capture import call_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

NOBODY = 65534
KINDS = ("absent", "file", "link", "hard link", "pipe", "folder")


def as_nobody(plant: Callable[[], None]) -> None:
    """Runs a function as another user; what it is not allowed to do stays undone."""
    if (child := os.fork()) == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            plant()
        os._exit(0)
    os.waitpid(child, 0)


def plant_file(path: Path, kind: str, target: Path, content: str = "") -> None:
    with contextlib.suppress(OSError):
        if kind == "file":
            path.write_text(content)
        elif kind == "link":
            path.symlink_to(target)
        elif kind == "hard link":
            path.hardlink_to(target)
        elif kind == "pipe":
            os.mkfifo(path, 0o666)
        elif kind == "folder":
            path.mkdir()


def plant_spool(draw: random.Random, folder: Path, home: Path, base: Path) -> None:
    """A spool of another user's, whose files lead to those of the server's user."""
    if draw.random() < 0.2:
        return folder.symlink_to(home)
    folder.mkdir(exist_ok=True)
    names = (STATE_FILE, SERVER_LOCK, WRITER_LOCK, segment_path(folder, 1).name, segment_path(folder, 2).name)
    for name in names:
        plant_file(folder / name, draw.choice(KINDS), home / draw.choice(["secret", "new"]))
    options = json.dumps({"base_path": str(draw.choice([base, home]))})
    kind = draw.choice(["file", "file", *KINDS])
    plant_file(folder / OPTIONS_FILE, kind, home / OPTIONS_FILE, options)
    return None


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@campaign("draws", 100, 2000)
def test_planted_spools_change_no_file_and_get_no_row(
    shared: Path, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer's steps are taken here.
    monkeypatch.setattr(capture, "start_module", lambda *args, **kwargs: subprocess.Popen(["cat"], **kwargs))
    for number in range(draws):
        draw = random.Random(number)
        home, base = shared / f"home{number}", shared / f"captured{number}"
        home.mkdir(mode=0o700 if draw.random() < 0.5 else 0o755)
        base.mkdir()
        base.chmod(draw.choice([0o1777, 0o777]))
        for name in ("secret", "document.txt", segment_path(home, 1).name, "state"):
            (home / name).write_bytes(b"the user's own " * 20_000)
            (home / name).chmod(draw.choice([0o600, 0o666]))
        (home / OPTIONS_FILE).write_text(json.dumps({"base_path": str(base)}))
        contents_first = contents(home)

        def plant_root(draw: random.Random = draw, base: Path = base, home: Path = home) -> None:
            (base / ".spool").mkdir(mode=0o777)
            (base / ".spool").chmod(0o777)
            (base / "m0").mkdir(mode=0o777)
            (base / "m0").chmod(0o777)
            for name in ("a", "f" * 12):
                plant_spool(draw, base / ".spool" / name, home, base)

        if draw.random() < 0.8:
            as_nobody(plant_root)
        own = Capture(CaptureOptions(str(base)))
        folder = own._folder
        sent = [f"r{each}" for each in range(3) if own.offer(call_of(each))]
        assert len(sent) == 3

        def swap(draw: random.Random = draw, base: Path = base, home: Path = home, folder: Path = folder) -> None:
            for part in range(2):
                tail = f".m0-{folder.name}-0-{part}.parquet.{os.getppid()}.tmp"
                plant_file(base / "m0" / tail, draw.choice(KINDS), home / "secret")
            if draw.random() < 0.3:
                folder.rename(folder.with_name("moved"))
                plant_spool(draw, folder, home, base)

        as_nobody(swap)
        is_swapped = folder.with_name("moved").exists()
        sent += [f"r{each}" for each in range(3, 6) if own.offer(call_of(each))]
        with contextlib.suppress(OSError):
            os.close(own._server_lock)
            own._server_lock = os.open(os.devnull, os.O_RDONLY)
            written = writer.take(folder)
            if written is not None:
                written.ended = True
                written.step(everything=True, now=True)
                written.finish() if written.empty else written.leave()
        with contextlib.suppress(OSError):
            own.close(timeout_s=0)
        assert contents(home) == contents_first, number
        tables = [pq.read_table(file) for file in (base / "m0").glob("*.parquet")]
        rows = [row for table in tables for row in table["request_id"].to_pylist()]
        assert rows == sent or (is_swapped and set(rows) <= set(sent)), number
        for path in base.rglob("*"):
            status = path.lstat()
            if status.st_uid == NOBODY and path.is_file() and not path.is_symlink():
                assert status.st_size < 1000 and b"r1" not in path.read_bytes(), (number, path)
        shutil.rmtree(base)
        shutil.rmtree(home)


@pytest.mark.parametrize("kind", KINDS[2:])
def test_planted_file_is_refused(shared: Path, kind: str) -> None:
    (shared / "target").write_text("own")
    plant_file(shared / "name", kind, shared / "target")
    with pytest.raises(OSError, match=r"without links|Is a directory"):
        open_own(shared / "name", os.O_RDWR if kind != "pipe" else os.O_WRONLY)
    assert (shared / "target").read_text() == "own"
