"""``make demo-images``: 70,000 pictures of clothes, from files to a served classifier that is asked about new ones.

Prepares them on all cores, trains a small convolutional network on two Horovod ranks, judges it on the 10,000 pictures
that were never seen, deploys it, and asks the model server about them, as a shop's web site would: PNG in, a name out.
"""

from __future__ import annotations

import base64
import gzip
import os
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from airflow_hops.core.store import ArtifactStore
from demo.airflow_api import AirflowApi
from demo.follow import follow
from demo.services import REPOSITORY, ServiceFailed, Stack
from demo.showing import Ending, arguments, show
from demo.summary import read_report, stages

DAG_ID, MODEL = "fashion_mnist", "fashion"
ASKED, PICTURES_A_REQUEST = 1000, 50


def png(pixels: bytes, height: int, width: int) -> bytes:
    """Grey pixels, a byte each, as a PNG file (https://www.w3.org/TR/png/), each row without a filter."""
    rows = b"".join(b"\0" + pixels[row * width : (row + 1) * width] for row in range(height))
    chunks = {b"IHDR": struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


def pictures(images: Path, labels: Path, count: int) -> tuple[list[bytes], list[int]]:
    """The first pictures of an IDX file, as PNG, and the numbers of their classes."""
    with gzip.open(images) as stream:
        _, _, height, width = struct.unpack(">4I", stream.read(16))
        found = [png(stream.read(height * width), height, width) for _ in range(count)]
    with gzip.open(labels) as stream:
        stream.read(8)
        return found, list(stream.read(count))


def ask(url: str, encoded: Sequence[bytes]) -> list[str]:
    """The names that the model server gives pictures.

    Raises:
        ServiceFailed: it refuses to.
    """
    body = {"inputs": {"image": [{"b64": base64.b64encode(picture).decode()} for picture in encoded]}}
    answer = httpx.post(url, json=body, timeout=30, trust_env=False)
    if answer.status_code != 200:
        raise ServiceFailed(f"{url}: status {answer.status_code}: {answer.text[:1000]}")
    return list(answer.json()["outputs"]["class"])


def perform(stack: Stack, api: AirflowApi, console: Console) -> Ending:
    """The showing; returns what is told at its end.

    Raises:
        RunFailed: the DAG run failed; the message carries the failing task's log.
        ServiceFailed: the model server did not answer.
    """
    from fashion.raw import CLASSES, FILES, images_folder

    api.wait_for_dag(DAG_ID)
    api.end_unfinished_runs(DAG_ID)
    console.print("\n[bold]From files to a served classifier[/bold]")
    tasks = follow(api, DAG_ID, api.trigger(DAG_ID), console)
    if tasks["deploy"]["state"] != "success":
        raise ServiceFailed("the model was not deployed; the evaluation's reasons say why")
    console.print(f"\n[bold]Asking the model server about {ASKED} pictures that it has never seen[/bold]")
    encoded, labels = pictures(*(images_folder() / name for name in FILES["test"]), ASKED)
    url = f"http://127.0.0.1:{stack.rest_port}/v1/models/{MODEL}:predict"
    began = time.monotonic()
    names = [
        name
        for start in range(0, ASKED, PICTURES_A_REQUEST)
        for name in ask(url, encoded[start : start + PICTURES_A_REQUEST])
    ]
    seconds = time.monotonic() - began
    truth = [CLASSES[label] for label in labels]
    right = sum(name == true for name, true in zip(names, truth, strict=True))
    for number, name in enumerate(CLASSES):
        first = labels.index(number)
        console.print(f"  picture {first:>3}, {name}: {names[first]}")
    asked = (
        f"Asked: {right} of {ASKED} pictures were answered with their class, {ASKED / seconds:,.0f} a second over REST"
    )
    store = stack.artifact_store()
    return Ending(DAG_ID, [*story(store, tasks), asked], lambda tables: print_tables(store, tasks, tables))


def story(store: ArtifactStore, tasks: dict[str, Any]) -> list[str]:
    """Tells the story of the pipeline."""
    training = read_report(store, tasks["train"]["value"], "training.json")
    figures = read_report(store, tasks["evaluate"]["value"], "evaluation.json")["splits"]["test"]["candidate"]
    prepared = tasks["images"]["value"]
    work = prepared["seconds"]["work"]
    rate = "" if prepared.get("cached") else f", {prepared['metrics']['images'] / work:,.0f} images/s on all cores"
    return [
        f"Prepared: {prepared['metrics']['images']:,.0f} images in {work:.1f} s{rate}",
        f"Trained: on {training['ranks']} ranks in {training['seconds']['training']:.1f} s, "
        f"{training['examples_per_second']:,.0f} images/s",
        f"Served: accuracy {figures['accuracy']:.4f} on {figures['rows']:,} test images (95% interval "
        f"{figures['accuracy_low']:.4f} to {figures['accuracy_high']:.4f})",
    ]


def print_tables(store: ArtifactStore, tasks: dict[str, Any], console: Console) -> None:
    """Prints the tables: stages, classes, and which class was taken for which."""
    console.print(stages([(DAG_ID, tasks)]))
    figures = read_report(store, tasks["evaluate"]["value"], "evaluation.json")["splits"]["test"]["candidate"]
    console.print(f"Log loss on the test images: {figures['log_loss']:.4f}")
    classes = Table(title="Classes of the test images", title_justify="left")
    for name in ("class", "images", "recall", "precision", "most often taken for"):
        classes.add_column(name, justify="left" if name in ("class", "most often taken for") else "right")
    for number, found in enumerate(figures["classes"]):
        others = Counter({n: c for n, c in enumerate(figures["confusion"][number]) if n != number and c})
        taken = ", ".join(f"{figures['classes'][n]['name']} ({count})" for n, count in others.most_common(2))
        classes.add_row(
            found["name"], f"{found['rows']:,}", f"{found['recall']:.3f}", f"{found['precision'] or 0:.3f}", taken
        )
    console.print(classes)
    confusion = Table(title="Rows: what they are. Columns: what they were taken for", title_justify="left")
    confusion.add_column("")
    for number in range(len(figures["classes"])):
        confusion.add_column(str(number), justify="right")
    for number, (found, counts) in enumerate(zip(figures["classes"], figures["confusion"], strict=True)):
        confusion.add_row(f"{number} {found['name']}", *(str(count) if count else "·" for count in counts))
    console.print(confusion)


def main() -> int:
    """Runs the demo; returns the exit code."""
    given = arguments("make demo-images", __doc__).parse_args()
    sys.path[:0] = [str(REPOSITORY / "dags"), str(REPOSITORY / "scripts")]
    from fashion_images import bring

    try:
        os.environ["HOPS_FASHION_MNIST"] = str(bring())
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return show(given, perform)


if __name__ == "__main__":
    sys.exit(main())
