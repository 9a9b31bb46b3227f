"""The demo of pictures, by the services of the other: from Debian's files to a served classifier of unseen ones."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from shown_demo import ShownDemo, minimum_accuracy
from step_runner import REPOSITORY

from demo.airflow_api import AirflowApi
from demo.services import Stack
from demo.showing import tell

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
    shown_demo: ShownDemo, fashion_images: Path, pytestconfig: pytest.Config
) -> tuple[Path, dict[str, int]]:
    """Folder of the files with every n-th picture (``--pictures-every``), and how many there are by file."""
    folder, nth = Path(shown_demo.airflow_settings()["HOPS_FASHION_MNIST"]), pytestconfig.getoption("pictures_every")
    return folder, {path.name: every_nth(path, folder / path.name, nth) for path in fashion_images.glob("*-ubyte.gz")}


@pytest.fixture(scope="module")
def minimum(pytestconfig: pytest.Config) -> float:
    """The accuracy that is expected of so many pictures."""
    return minimum_accuracy(pytestconfig)


@pytest.fixture(scope="module")
def shown(shown_demo: ShownDemo, runtime: Path, some_images: tuple[Path, Any]) -> tuple[Path, str]:
    """The images' demo, shown once by the services of the other; its folder and what it printed."""
    from demo.images import perform

    home, said = shown_demo.home, io.StringIO()
    stack = Stack(home, runtime, REPOSITORY / "dags")
    stack.rest_port = json.loads((stack.serving / "ready.json").read_text())["rest_api_port"]
    console = Console(file=said, width=140)
    shown_demo.go_on()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPS_FASHION_MNIST", str(some_images[0]))
        patch.syspath_prepend(str(REPOSITORY / "dags"))
        api = AirflowApi(shown_demo.airflow_settings()["AIRFLOW__API__BASE_URL"])
        tell(perform(stack, api, console), console, home, verbose=False, seconds=0)
    print(said.getvalue())
    return home, said.getvalue()


def manifest(home: Path, task_id: str) -> dict[str, Any]:
    (path,) = home.glob(f"store/fashion_mnist/*/{task_id}/*/manifest.json")
    return dict(json.loads(path.read_text()))


@pytest.mark.runtime
@pytest.mark.spark
@pytest.mark.last(1)
def test_two_ranks_train_a_classifier_of_unseen_images(shown: Any, some_images: Any, minimum: float) -> None:
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
@pytest.mark.spark
@pytest.mark.last(1)
def test_server_classifies_png_images(shown: Any, minimum: float) -> None:
    home, said = shown
    match = re.search(r"(\d+) of 1000 pictures were answered with their class", said)
    assert match is not None and int(match[1]) >= 1000 * minimum - 10
    record = json.loads((home / "store" / "_models" / "fashion.json").read_text())
    assert record["champion"]["fingerprint"] == manifest(home, "train")["fingerprint"]
    for title in ("Rows and seconds of each stage", "Classes of the test images", "Columns: what they were taken for"):
        assert title in (home / "fashion_mnist.txt").read_text()


def test_demo_explains_how_to_get_missing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from demo.images import main

    monkeypatch.setenv("HOPS_FASHION_MNIST", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["demo.images"])
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main() == 1
    report = capsys.readouterr().err
    assert f"{tmp_path}/train-images-idx3-ubyte.gz: there is no such file" in report
    assert "apt-get install dataset-fashion-mnist" in report and "apt-get download" in report
