"""Images to TFRecord a second: Spark on all cores against tf.data on one."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measurement.timing import REPOSITORY, time_work

WORK = REPOSITORY / ".hops" / "benchmarks" / "images"
RUNTIME = REPOSITORY / ".venv-runtime"
MODULE = "benchmarks.measurement.image_ways"
WAYS = {"own": "this project, all cores", "tf_data": "tf.data, one core"}


def measure_images(images: int, rounds: int, console: Console) -> tuple[dict[str, float], dict[str, Any]]:
    """Measures both ways in turn.

    Args:
        images: How many JPEG files of 320 by 240 pixels.
        rounds: How often.
        console: Where the table goes.

    Returns:
        Ratios (``images_to_tfrecord``: images a second of Spark to those of tf.data) and figures, every run's included.

    Raises:
        RuntimeError: a way failed, or has not written all images.
    """
    folder = photos(images)
    runs: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            timed = time_work(RUNTIME, MODULE, way, folder)
            if timed.facts["images"] != images:
                raise RuntimeError(f"{WAYS[way]} wrote {timed.facts['images']} of {images} images")
            runs[way].append(round(images / timed.seconds, 1))
            cpu[way].append(round(timed.cpu_s, 2))
    rates = {way: median(found) for way, found in runs.items()}
    table = Table(title=f"{images:,} JPEG files of 320 by 240 to TFRecord, 96 by 96", title_justify="left")
    for name in ("way", "images/s", "CPU s"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for way, name in WAYS.items():
        table.add_row(name, f"{rates[way]:,.0f}", f"{median(cpu[way]):.1f}")
    console.print(table)
    return (
        {"images_to_tfrecord": round(rates["own"] / rates["tf_data"], 3)},
        {"images": images, "images_per_second": rates, "images_runs": runs, "images_cpu_s": cpu},
    )


def photos(images: int) -> Path:
    """A folder of that many photos, written once."""
    folder = WORK / f"photos-{images}"
    done = WORK / f"photos-{images}.done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        time_work(RUNTIME, MODULE, "write_photos", folder, images)
        done.touch()
    return folder
