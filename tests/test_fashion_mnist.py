"""``make demo-images``, run as a user runs it: from Debian's files to a served classifier of what it never saw."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

TIMEOUT_S = 500
SCRIPTS = str(REPOSITORY / "scripts")


@pytest.fixture(scope="module")
def fashion_images() -> Path:
    """Folder of the four files, brought if need be; skips where they cannot be had."""
    program = f"import sys; sys.path.insert(0, {SCRIPTS!r}); import fashion_images; print(fashion_images.bring())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"dataset-fashion-mnist cannot be had here: {answer.stderr.splitlines()[-1]}")
    return Path(answer.stdout.splitlines()[-1])


def every_nth(source: Path, target: Path, nth: int) -> int:
    """Writes every n-th entry of an IDX file (http://yann.lecun.com/exdb/mnist/); returns how many that are."""
    content = gzip.decompress(source.read_bytes())
    count, *shape = struct.unpack_from(f">{content[3]}I", content, 4)
    start, size = 4 + 4 * content[3], math.prod(shape)
    begins = range(start, start + count * size, nth * size)
    entries = [content[begin : begin + size] for begin in begins]
    heading = content[:4] + struct.pack(">I", len(entries)) + content[8:start]
    target.write_bytes(gzip.compress(heading + b"".join(entries), 1))
    return len(entries)


@pytest.fixture(scope="module")
def some_images(
    tmp_path_factory: pytest.TempPathFactory, fashion_images: Path, pytestconfig: pytest.Config
) -> tuple[Path, dict[str, int]]:
    """Folder of the files with every n-th picture (``--pictures-every``), and how many there are by file."""
    folder, nth = tmp_path_factory.mktemp("pictures"), pytestconfig.getoption("pictures_every")
    return folder, {path.name: every_nth(path, folder / path.name, nth) for path in fashion_images.glob("*-ubyte.gz")}


@pytest.fixture(scope="module")
def minimum(pytestconfig: pytest.Config) -> float:
    """The accuracy that is expected of so many pictures."""
    return 0.88 if pytestconfig.getoption("pictures_every") == 1 else 0.75


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, runtime: Path, some_images: tuple[Path, Any], minimum: float
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The demo, shown once; its folder and what it printed."""
    home = tmp_path_factory.mktemp("demo-images")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    answer = subprocess.run(
        [sys.executable, "-m", "demo.images", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env={
            **kept,
            "HOPS_DEMO_EXIT": "1",
            "HOPS_FASHION_MNIST": str(some_images[0]),
            "HOPS_FASHION_MINIMUM": str(minimum),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(answer.stdout[-20000:], answer.stderr[-5000:])
    assert answer.returncode == 0
    return home, answer


def manifest(home: Path, task_id: str) -> dict[str, Any]:
    (path,) = home.glob(f"store/fashion_mnist/*/{task_id}/*/manifest.json")
    return dict(json.loads(path.read_text()))


@pytest.mark.runtime
@pytest.mark.airflow
def test_two_ranks_learn_to_name_pictures_that_they_never_saw(shown: Any, some_images: Any, minimum: float) -> None:
    home, _ = shown
    images, model, evaluation = (manifest(home, task_id) for task_id in ("images", "train", "evaluate"))
    rows = images["rows"]
    assert rows["train"]["rows_out"] + rows["eval"]["rows_out"] == some_images[1]["train-labels-idx1-ubyte.gz"]
    assert rows["test"]["rows_out"] == some_images[1]["t10k-labels-idx1-ubyte.gz"]
    assert model["properties"]["ranks"] == 2 and model["properties"]["synchronized"] is True
    assert evaluation["metrics"]["test_accuracy"] >= minimum
    assert (
        evaluation["properties"]["blessed"] is True
        and evaluation["rows"]["test"]["rows_in"] == rows["test"]["rows_out"]
    )


@pytest.mark.runtime
@pytest.mark.airflow
def test_the_server_names_pictures_that_come_as_png(shown: Any, minimum: float) -> None:
    home, answer = shown
    found = re.search(r"(\d+) of 1000 pictures were answered with their class", answer.stdout)
    assert found is not None and int(found[1]) >= 1000 * minimum - 10
    record = json.loads((home / "store" / "_models" / "fashion.json").read_text())
    assert record["champion"]["fingerprint"] == manifest(home, "train")["fingerprint"]
    for title in ("Rows and seconds of each stage", "Classes of the test images", "Columns: what they were taken for"):
        assert title in (home / "fashion_mnist.txt").read_text()


def test_where_the_files_are_missing_the_error_says_how_to_get_them(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "fashion_images.py")],
        env={**os.environ, "HOPS_FASHION_MNIST": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1
    assert f"{tmp_path}/train-images-idx3-ubyte.gz: there is no such file" in answer.stderr
    assert "apt-get install dataset-fashion-mnist" in answer.stderr and "apt-get download" in answer.stderr
