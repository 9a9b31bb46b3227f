"""Reads 100,000 files of 10 KB in random order, one by one and from the shards that ``PackOperator`` makes of them.

Before each measurement the kernel's cache is dropped. See ``README.md`` for what each figure means. It needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

WORK = REPOSITORY / ".hops" / "benchmarks" / "packing"
SIZE_BYTES = 10_000


def write_files(folder: Path, count: int) -> None:
    """Writes files of random bytes, 1,000 to a folder."""
    noise = random.Random(1)
    for number in range(count):
        path = folder / f"{number // 1000:03d}" / f"{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise.randbytes(SIZE_BYTES))


def per_second(read: Callable[[], Iterator[bytes]], count: int) -> float:
    """Returns the files that are read in a second, with an empty cache of the kernel."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    began = time.monotonic()
    size = sum(map(len, read()))
    assert size == count * SIZE_BYTES
    return count / (time.monotonic() - began)


def main() -> None:
    """Measures, and prints a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    count = parser.parse_args().files

    from airflow_hops.core.artifacts.artifact import Producer
    from airflow_hops.core.steps.protocol import Output, StepSpec
    from airflow_hops.core.store import ArtifactStore
    from airflow_hops.extensions.images.ml.pack import run
    from airflow_hops.extensions.images.ml.packed import PackedFiles
    from airflow_hops.ml.step.context import StepContext

    shutil.rmtree(WORK, ignore_errors=True)
    write_files(WORK / "files", count)
    store, producer = ArtifactStore(str(WORK / "store")), Producer("benchmark", "run", "pack")
    output = Output(store.address(producer, "packed_files"), "packed_files")
    spec = StepSpec(step="pack", entry="pack", output=output, store=store.root, producer=producer)
    began = time.monotonic()
    packed = run(StepContext(spec, WORK), source={"uri": str(WORK / "files")}, shard_mb=256)
    figures: dict[str, Any] = {"files": count, "pack_s": round(time.monotonic() - began, 1)}

    order = random.Random(2).sample(range(count), count)
    paths = sorted((WORK / "files").rglob("*.bin"))
    files = PackedFiles(store.local(packed))
    ways = {
        "files, in order": lambda: (path.read_bytes() for path in paths),
        "packed, in order": lambda: (content for _, content in files),
        "files, shuffled": lambda: (paths[number].read_bytes() for number in order),
        "packed, shuffled": lambda: (files[number][1] for number in order),
    }
    for name, read in ways.items():
        figures[name] = round(per_second(read, count))
        print(f"{name}: {figures[name]:,} files/s", flush=True)
    shutil.rmtree(WORK)
    ratios = {order: figures[f"packed, {order}"] / figures[f"files, {order}"] for order in ("in order", "shuffled")}
    print(json.dumps({"benchmark": "packing", "figures": figures, "ratios": ratios}))


if __name__ == "__main__":
    main()
