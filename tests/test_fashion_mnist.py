"""``make demo-images``, run as a user runs it: from Debian's files to a served classifier of what it never saw."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

TIMEOUT_S = 1500
SCRIPTS = str(REPOSITORY / "scripts")


@pytest.fixture(scope="module")
def fashion_images() -> Path:
    """Folder of the four files, brought if need be; skips where they cannot be had."""
    program = f"import sys; sys.path.insert(0, {SCRIPTS!r}); import fashion_images; print(fashion_images.bring())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"dataset-fashion-mnist cannot be had here: {answer.stderr.splitlines()[-1]}")
    return Path(answer.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, runtime: Path, fashion_images: Path
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The demo, shown once; its folder and what it printed."""
    home = tmp_path_factory.mktemp("demo-images")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    answer = subprocess.run(
        [sys.executable, "-m", "demo.images", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env={**kept, "HOPS_DEMO_EXIT": "1", "HOPS_FASHION_MNIST": str(fashion_images)},
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
@pytest.mark.spark
def test_two_ranks_learn_to_name_at_least_88_in_100_pictures_that_they_never_saw(shown: Any) -> None:
    home, _ = shown
    images, model, evaluation = (manifest(home, task_id) for task_id in ("images", "train", "evaluate"))
    rows = images["rows"]
    assert rows["train"]["rows_out"] + rows["eval"]["rows_out"] == 60_000 and rows["test"]["rows_out"] == 10_000
    assert model["properties"]["ranks"] == 2 and model["properties"]["synchronized"] is True
    assert evaluation["metrics"]["test_accuracy"] >= 0.88
    assert evaluation["properties"]["blessed"] is True and evaluation["rows"]["test"]["rows_in"] == 10_000


@pytest.mark.runtime
@pytest.mark.spark
def test_the_server_names_pictures_that_come_as_png(shown: Any) -> None:
    home, answer = shown
    found = re.search(r"(\d+) of 1000 pictures were answered with their class", answer.stdout)
    assert found is not None and int(found[1]) >= 870
    record = json.loads((home / "store" / "_models" / "fashion.json").read_text())
    assert record["champion"]["fingerprint"] == manifest(home, "train")["fingerprint"]
    for title in ("Rows and seconds of each stage", "Classes of the test images", "Columns: what they were taken for"):
        assert title in answer.stdout


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
