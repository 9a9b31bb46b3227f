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
import zlib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from shown_demo import ShownDemo, minimum_accuracy
from step_runner import REPOSITORY

from demo.airflow_api import AirflowApi
from demo.images import main, perform, pictures
from demo.services import Stack
from demo.showing import tell

SCRIPTS = str(REPOSITORY / "scripts")


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


@pytest.mark.runtime
@pytest.mark.spark
@pytest.mark.last(2)
@pytest.mark.scheduled(part="images")
def test_two_ranks_train_a_classifier_that_is_served(
    shown_demo: ShownDemo, runtime: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    program = f"import sys; sys.path.insert(0, {SCRIPTS!r}); import fashion_images; print(fashion_images.bring())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"dataset-fashion-mnist cannot be had here: {answer.stderr.splitlines()[-1]}")
    images, folder = Path(answer.stdout.splitlines()[-1]), Path(shown_demo.airflow_settings()["HOPS_FASHION_MNIST"])
    nth, minimum = pytestconfig.getoption("pictures_every"), minimum_accuracy(pytestconfig)
    counts = {path.name: every_nth(path, folder / path.name, nth) for path in images.glob("*-ubyte.gz")}

    home, output = shown_demo.home, io.StringIO()
    stack = Stack(home, runtime, REPOSITORY / "dags")
    stack.rest_port = json.loads((stack.serving / "ready.json").read_text())["rest_api_port"]
    console = Console(file=output, width=140)
    shown_demo.go_on()
    monkeypatch.setenv("HOPS_FASHION_MNIST", str(folder))
    monkeypatch.syspath_prepend(str(REPOSITORY / "dags"))
    api = AirflowApi(shown_demo.airflow_settings()["AIRFLOW__API__BASE_URL"])
    tell(perform(stack, api, console), console, home, verbose=False, seconds=0)
    print(output.getvalue())

    def manifest(task_id: str) -> dict[str, Any]:
        (path,) = home.glob(f"store/fashion_mnist/*/{task_id}/*/manifest.json")
        return dict(json.loads(path.read_text()))

    prepared, model, evaluation = map(manifest, ("images", "train", "evaluate"))
    rows = prepared["rows"]
    assert rows["train"]["rows_out"] + rows["eval"]["rows_out"] == counts["train-labels-idx1-ubyte.gz"]
    assert rows["test"]["rows_out"] == counts["t10k-labels-idx1-ubyte.gz"] == evaluation["rows"]["test"]["rows_in"]
    assert model["properties"]["ranks"] == 2 and model["properties"]["synchronized"] is True
    assert evaluation["metrics"]["test_accuracy"] >= minimum and evaluation["properties"]["blessed"] is True
    match = re.search(r"(\d+) of 1000 pictures were answered with their class", output.getvalue())
    assert match is not None and int(match[1]) >= 1000 * minimum - 10
    record = json.loads((home / "store" / "_models" / "fashion.json").read_text())
    assert record["champion"]["fingerprint"] == model["fingerprint"]
    for title in ("Rows and seconds of each stage", "Classes of the test images", "Columns: what they were taken for"):
        assert title in (home / "fashion_mnist.txt").read_text()


def test_pictures_of_idx_files_become_png(tmp_path: Path) -> None:
    pixels = bytes(range(2 * 3 * 4))
    images, labels = tmp_path / "images.gz", tmp_path / "labels.gz"
    images.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 2, 3, 4) + pixels))
    labels.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 2) + bytes([7, 9])))
    encoded, classes = pictures(images, labels, 2)
    assert classes == [7, 9]
    for number, picture in enumerate(encoded):
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        chunks, place = {}, 8
        while place < len(picture):
            size, name = struct.unpack_from(">I4s", picture, place)
            data, crc = picture[place + 8 : place + 8 + size], picture[place + 8 + size : place + 12 + size]
            assert crc == struct.pack(">I", zlib.crc32(name + data))
            chunks[name], place = data, place + 12 + size
        assert struct.unpack(">2I5B", chunks[b"IHDR"]) == (4, 3, 8, 0, 0, 0, 0)  # width first, 8 bits of grey
        rows = zlib.decompress(chunks[b"IDAT"])
        assert b"".join(rows[begin + 1 : begin + 5] for begin in (0, 5, 10)) == pixels[12 * number :][:12]


def test_demo_explains_how_to_get_missing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOPS_FASHION_MNIST", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["demo.images"])
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main() == 1
    report = capsys.readouterr().err
    assert f"{tmp_path}/train-images-idx3-ubyte.gz: there is no such file" in report
    assert "apt-get install dataset-fashion-mnist" in report and "apt-get download" in report
