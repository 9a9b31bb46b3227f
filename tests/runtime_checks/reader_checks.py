"""What the reader gives of files of known rows, in whichever way it reads them."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from airflow_hops.artifacts import HopsError
from airflow_hops.hops.images import ImageSpec
from airflow_hops.hops.reader import open_split, row_count
from airflow_hops.hops.reader.cache import FileCache
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.feature_specs import OutputSpec
from airflow_hops.runtime.transform_batches import ExampleWriter
from airflow_hops.sources import Source, list_files

COLUMNS = ["x", "wide", "text", "blob", "ragged", "small"]
MODES = {"memory": {}, "streamed": {"memory_bytes": 0, "buffer_bytes": 600}}


def write_parquet(folder: Path, files: Sequence[int], *, row_group_size: int = 7) -> Path:
    """Rows numbered from 0 over all files; every column says its row's number in its own way."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(files):
        x = np.arange(first, first + rows)
        first += rows
        table = pa.table(
            {
                "x": x,
                "wide": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(x, 3).astype("float32")), 3),
                "text": pa.array([f"text {row % 5}" for row in x], pa.string()),
                "blob": pa.array([b"blob %d" % row for row in x], pa.binary()),
                "ragged": pa.array([[int(row)] * (int(row) % 4) for row in x], pa.list_(pa.int64())),
                "small": (x % 100).astype("int8"),
                "y": x * 2,
            }
        )
        path = folder / f"part-{number}.parquet"
        pq.write_table(table, path, row_group_size=row_group_size, use_dictionary=["text"])
    return folder


def write_tfrecord(folder: Path, files: Sequence[int], *, counts: bool = False) -> Path:
    """The same rows as tf.Example, every other file compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    names = {}
    for number, rows in enumerate(files):
        compressed = number % 2 == 1
        path = folder / f"part-{number}.tfrecord{'.gz' if compressed else ''}"
        options = tf.io.TFRecordOptions(compression_type="GZIP" if compressed else "")
        with tf.io.TFRecordWriter(str(path), options) as writer:
            for row in range(first, first + rows):
                writer.write(_example(row))
        names[path.name] = rows
        first += rows
    if counts:
        (folder / "counts.json").write_text(json.dumps(names))
    return folder


def _example(row: int) -> bytes:
    example = tf.train.Example()
    feature = example.features.feature
    feature["x"].int64_list.value.append(row)
    feature["wide"].float_list.value.extend([row] * 3)
    feature["text"].bytes_list.value.append(b"text %d" % (row % 5))
    feature["blob"].bytes_list.value.append(b"blob %d" % row)
    feature["ragged"].int64_list.value.extend([row] * (row % 4))
    feature["small"].int64_list.value.append(row % 100)
    feature["y"].int64_list.value.append(2 * row)
    serialized: bytes = example.SerializeToString()
    return serialized


def shares(
    context: StepContext, *, files: list[int], batch_size: int, size: int, everything: bool = False
) -> dict[str, Any]:
    """By format and mode, what each rank is given in two passes: the rows of each batch.

    ``everything``: of TFRecord too, and in the order of the files.
    """
    folders = {"parquet": write_parquet(context.scratch / "parquet", files)}
    if everything:
        folders["tfrecord"] = write_tfrecord(context.scratch / "tfrecord", files, counts=True)
    found: dict[str, Any] = {}
    for format, folder in folders.items():
        for mode, settings in MODES.items():
            ranks = []
            for rank in range(size):
                reader = open_split(folder, COLUMNS, label="y", rank=rank, size=size, **settings)
                dataset = reader.dataset(batch_size, shuffle_seed=5)
                passes = [[_rows(element) for element in dataset] for _ in range(2)]
                given = reader.rows_given()
                ordered = [_rows(element) for element in reader.dataset(batch_size)] if everything else None
                ranks.append(
                    {
                        "passes": passes,
                        "ordered": ordered,
                        "rows": reader.rows,
                        "given": given,
                        "totals": [reader.total_rows, reader.smallest_rows],
                        "steps": reader.steps(batch_size),
                        "cardinality": int(dataset.cardinality()),
                        "in_memory": reader.in_memory,
                        "dtypes": {name: value.dtype.name for name, value in dataset.element_spec[0].items()},
                        "shapes": {name: list(value.shape) for name, value in dataset.element_spec[0].items()},
                    }
                )
            found[f"{format} {mode}"] = ranks
    return found


def _rows(element: Any) -> list[int]:
    """The rows of a batch; all columns must agree on them."""
    features, label = element
    rows: list[int] = features["x"].numpy().tolist()
    assert label.numpy().tolist() == [2 * row for row in rows]
    assert features["wide"].numpy().tolist() == [[float(row)] * 3 for row in rows]
    assert features["text"].numpy().tolist() == [b"text %d" % (row % 5) for row in rows]
    assert features["blob"].numpy().tolist() == [b"blob %d" % row for row in rows]
    assert features["ragged"].to_list() == [[row] * (row % 4) for row in rows]
    assert features["small"].numpy().tolist() == [row % 100 for row in rows]
    return rows


def orders(context: StepContext) -> dict[str, Any]:
    """The order of rows by mode, seed, rank and epoch; and what a resumed pass gives from each step on."""
    folder = write_parquet(context.scratch / "split", [40, 0, 61])
    found: dict[str, Any] = {}
    for mode, settings in MODES.items():
        at = {"epoch": 0, "step": 0}

        def ordered(
            rank: int, seed: int, at: dict[str, int] = at, settings: Mapping[str, Any] = settings
        ) -> tuple[Any, Any]:
            reader = open_split(folder, ["x"], rank=rank, size=2, **settings)
            return reader, reader.dataset(
                10, shuffle_seed=seed, epoch=lambda: at["epoch"], first_step=lambda: at["step"]
            )

        reader, dataset = ordered(0, 7)
        passes = []
        for at["epoch"] in (0, 1, 1):
            passes.append([batch["x"].numpy().tolist() for batch in dataset])
        resumed = {}
        for at["step"] in (1, 5, reader.steps(10) - 1, reader.steps(10)):
            given = [batch["x"].numpy().tolist() for batch in dataset]
            resumed[str(at["step"])] = [given, reader.rows_given()]
        counted = []
        at["step"] = 2
        for batch in dataset:
            counted.append([reader.rows_given(), int(batch["x"].shape[0])])
        at.update(epoch=1, step=0)
        others = {
            "again": [batch["x"].numpy().tolist() for batch in ordered(0, 7)[1]],
            "another seed": [batch["x"].numpy().tolist() for batch in ordered(0, 8)[1]],
        }
        at["step"] = 99
        error = _error(lambda dataset=dataset: list(dataset))
        found[mode] = {
            "passes": passes,
            "resumed": resumed,
            "counted": counted,
            "others": others,
            "rows": reader.rows,
            "error": error,
            "failure": str(reader.failure),
            "failure_is_bad_input": not getattr(reader.failure, "retryable", True),
        }
    return found


def transforms_own(context: StepContext) -> dict[str, Any]:
    """What the transform writes, read from its Parquet and from its TFRecord files."""
    folder = context.scratch / "train"
    for part in range(3):
        with ExampleWriter(folder, part) as writer:
            for _ in range(2):
                outputs = {
                    "numeric": np.random.default_rng(part).normal(size=(50, 4)).astype("float32"),
                    "one": np.full((50, 1), part, "float32"),
                    "id": np.arange(50, dtype="int64") + part,
                    "text": np.array([b"a", b"bc"] * 25, object),
                }
                writer.write(outputs, np.arange(50, dtype="int64") % 2, "late")
            writer.commit()
    specs = {
        "numeric": OutputSpec("float32", 4),
        "one": OutputSpec("float32", 1),
        "id": OutputSpec("int64"),
        "text": OutputSpec("string"),
    }
    found = {}
    for format in ("parquet", "tfrecord"):
        reader = open_split(folder, specs, label="late", format=format, cache_dir=context.scratch / "cache")
        found[format] = [
            [{name: value.numpy().tolist().__repr__() for name, value in features.items()}, label.numpy().tolist()]
            for features, label in reader.dataset(64, shuffle_seed=1)
        ]
    return {
        "equal": found["parquet"] == found["tfrecord"],
        "batches": len(found["parquet"]),
        "shape": [list(value.shape) for value in reader.dataset(64).element_spec[0].values()],
        "counted": len(list((context.scratch / "cache" / "counts").iterdir())),
        "row_count": row_count(folder),
    }


def memory(context: StepContext) -> dict[str, Any]:
    """Peak memory of a streamed pass, of few rows and of eight times as many."""
    peaks = {}
    for rows in (150_000, 1_200_000):
        path = context.scratch / f"{rows}.parquet"
        with pq.ParquetWriter(path, pa.schema([(f"c{n}", pa.float64()) for n in range(12)]), compression="none") as w:
            for _ in range(rows // 30_000):
                w.write_table(pa.table({f"c{n}": np.random.default_rng(n).random(30_000) for n in range(12)}))
        reader = open_split(path, [f"c{n}" for n in range(12)], memory_bytes=0, buffer_bytes=4 << 20)
        dataset = reader.dataset(1024, shuffle_seed=1)
        for _ in dataset.take(100):  # whatever is only needed once
            pass
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
        before = _resident("VmRSS")
        seen = sum(int(batch["c0"].shape[0]) for batch in dataset)
        peaks[rows] = {"peak_mib": _resident("VmHWM") - before, "seen": seen, "file_mib": path.stat().st_size >> 20}
    return {str(rows): peak for rows, peak in peaks.items()}


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def images(context: StepContext) -> dict[str, Any]:
    """Encoded images, decoded; and damaged ones."""
    encoded = [tf.io.encode_png(np.full((4, 5, 1), number, "uint8")).numpy() for number in range(20)]
    specs = {"image": OutputSpec("float32", image=ImageSpec(4, 5, 1))}
    folder = context.scratch / "images"
    folder.mkdir()

    def write(images: Sequence[bytes]) -> None:
        table = pa.table({"image": pa.array(images, pa.binary()), "y": np.arange(len(images))})
        pq.write_table(table, folder / "part-0.parquet", row_group_size=6)

    write(encoded)
    found: dict[str, Any] = {}
    for mode, settings in MODES.items():
        dataset = open_split(folder, specs, label="y", threads=2, **settings).dataset(7, shuffle_seed=1)
        pairs = [
            [round(float(image[0, 0, 0]) * 255), int(y)]
            for features, ys in dataset
            for image, y in zip(features["image"].numpy(), ys.numpy(), strict=True)
        ]
        found[mode] = {"pairs": pairs, "shape": list(dataset.element_spec[0]["image"].shape)}
    damages = {
        "cut": encoded[13][:-9],
        "flipped": encoded[13][:45] + bytes([encoded[13][45] ^ 1]) + encoded[13][46:],
        "text": b"text",
        "jpeg": b"\xff\xd8\xff" + b"a" * 30,
    }
    for name, damage in damages.items():
        write([*encoded[:13], damage, *encoded[14:]])
        found[name] = _error(lambda: open_split(folder, specs, label="y"))
    streamed = open_split(folder, specs, label="y", **MODES["streamed"])
    _error(lambda: list(streamed.dataset(7)))
    found["streamed failure"] = str(streamed.failure)
    return found


def refused(context: StepContext) -> dict[str, str]:
    """What cannot be read, and the message that says so."""
    root = context.scratch

    def parquet(name: str, *tables: Any) -> Path:
        (root / name).mkdir()
        for number, table in enumerate(tables):
            pq.write_table(pa.table(table), root / name / f"part-{number}.parquet")
        return root / name

    truncated = write_parquet(root / "truncated", [5, 5])
    (truncated / "part-1.parquet").write_bytes((truncated / "part-1.parquet").read_bytes()[:-20])
    flipped = write_tfrecord(root / "flipped", [30, 30])
    data = bytearray((flipped / "part-0.tfrecord").read_bytes())
    data[-6] ^= 1  # in the last record
    (flipped / "part-0.tfrecord").write_bytes(bytes(data))
    cut = write_tfrecord(root / "cut", [0, 30])
    (cut / "part-1.tfrecord.gz").write_bytes((cut / "part-1.tfrecord.gz").read_bytes()[:-20])
    miscounted = write_tfrecord(root / "miscounted", [4])
    (miscounted / "counts.json").write_text('{"part-0.tfrecord": 5}')
    no_counts = write_tfrecord(root / "no_counts", [4])
    (no_counts / "counts.json").write_text("[4]")
    (root / "empty").mkdir()
    (root / "empty" / "readme.txt").write_text("nothing")
    lists = parquet("lists", {"x": pa.array([[1, 2], [3]])})
    missing = parquet("missing", {"x": pa.array([1, None, 3])})
    types = parquet("types", {"x": [1]}, {"x": [1.5]})
    cases: dict[str, Callable[[], Any]] = {
        "split": lambda: open_split(root / "test", ["x"]),
        "empty": lambda: open_split(root / "empty", ["x"]),
        "format": lambda: open_split(root / "types", ["x"], format="csv"),
        "truncated": lambda: open_split(truncated, ["x"]),
        "types": lambda: open_split(types, ["x"]),
        "columns": lambda: open_split(parquet("columns", {"x": [1]}, {"z": [1]}), ["x"]),
        "specs": lambda: open_split(root / "columns" / "part-0.parquet", {"x": OutputSpec("float32", 2)}),
        "rows": lambda: open_split(root / "types" / "part-0.parquet", ["x"], rank=1, size=2),
        "rank": lambda: open_split(root / "types" / "part-0.parquet", ["x"], rank=2, size=2),
        "missing": lambda: open_split(missing, ["x"]),
        "fill": lambda: open_split(missing, ["x"], fill_values={"x": "none"}),
        "width": lambda: open_split(lists, {"x": OutputSpec("int64", 2)}),
        "timestamp": lambda: open_split(parquet("times", {"t": pa.array([0], pa.timestamp("ms"))}), ["t"]),
        "flipped": lambda: open_split(flipped, ["x"]),
        "cut": lambda: open_split(cut, ["x"]),
        "miscounted": lambda: open_split(miscounted, ["x"]),
        "no_counts": lambda: open_split(no_counts, ["x"]),
        "feature": lambda: open_split(write_tfrecord(root / "good", [3]), ["z"]),
        "batch_size": lambda: open_split(root / "types" / "part-0.parquet", ["x"]).dataset(0),
    }
    filled = open_split(missing, ["x"], fill_values={"x": -1}).dataset(3)
    return {
        **{name: _error(case) for name, case in cases.items()},
        "filled": str([batch["x"].numpy().tolist() for batch in filled]),
    }


def _error(action: Callable[[], Any]) -> str:
    try:
        action()
    except HopsError as error:
        return f"{type(error).__name__}: {error}"
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0]}"
    return "nothing was raised"


def remote(context: StepContext, *, uri: str, storage_options: dict[str, Any]) -> dict[str, Any]:
    """A split of an object store, read by two ranks through one cache."""
    import fsspec

    folder = write_parquet(context.scratch / "split", [13, 0, 40, 8])
    fs, path = fsspec.url_to_fs(uri, **storage_options)
    for file in folder.iterdir():
        fs.put_file(str(file), f"{path}/train/{file.name}")
    cache = context.scratch / "cache"
    options = {"storage_options": storage_options, "cache_dir": cache}
    rows = []
    for rank in range(2):
        reader = open_split(f"{uri}/train", ["x"], rank=rank, size=2, **options)
        rows += [row for batch in reader.dataset(8) for row in batch["x"].numpy().tolist()]
    return {
        "rows": rows,
        "cached": sorted(file.stat().st_size for file in cache.iterdir() if not file.name.startswith(".")),
        "sizes": sorted(file.stat().st_size for file in folder.iterdir()),
        "row_count": row_count(f"{uri}/train", storage_options=storage_options),
        "unknown": _error(lambda: open_split(f"{uri}/test", ["x"], **options)),
    }


class _Files(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; waits in the middle of a file until the gate is open."""

    gate = threading.Event()

    def log_message(self, *_: Any) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        outputfile.write(data[: len(data) // 2])
        outputfile.flush()
        self.gate.wait(60)
        outputfile.write(data[len(data) // 2 :])


def cache(context: StepContext, *, small_folder: str) -> dict[str, Any]:
    """Processes that share a cache: at once, killed, out of room, and with files that change."""
    served = context.scratch / "served"
    served.mkdir()
    for number in range(4):
        (served / f"{number}.bin").write_bytes(os.urandom(400_000))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = context.scratch / "cache"

    def fetched(number: int, *, max_bytes: int = 1 << 30, folder: Path = folder) -> Path:
        fs, files = list_files(Source(f"http://127.0.0.1:{server.server_port}/{number}.bin"))
        return FileCache(fs, folder, max_bytes).fetch(files[0])

    # A process that is killed half-way through leaves nothing that the next takes for the file.
    _Files.gate.clear()
    killed = os.fork()
    if killed == 0:
        fetched(0)
        os._exit(0)
    _wait_for(lambda: any(folder.glob("*.part")))
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    left = [file.name for file in folder.glob("*.part")]
    _Files.gate.set()
    found: dict[str, Any] = {
        "left by the killed": len(left),
        "after the killed": fetched(0).read_bytes() == (served / "0.bin").read_bytes(),
        "parts": len(list(folder.glob("*.part"))),
    }
    # Of three at once, one downloads: a second download would put another file in the place of the first.
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            path = fetched(1)
            (context.scratch / f"inode-{number}").write_text(str(path.stat().st_ino))
            os._exit(0 if path.read_bytes() == (served / "1.bin").read_bytes() else 1)
        children.append(child)
    found["at once"] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    found["files"] = sorted({(context.scratch / f"inode-{number}").read_text() for number in range(3)})
    # The least recently used goes first.
    first = fetched(0)
    second = fetched(1)
    fetched(0)
    third = fetched(2, max_bytes=1_000_000)
    found["kept"] = [first.exists(), second.exists(), third.exists()]
    found["too large"] = _error(lambda: fetched(3, max_bytes=100_000))
    found["full"] = _error(lambda: fetched(3, folder=Path(small_folder)))
    found["left on the full"] = [file.name for file in Path(small_folder).iterdir() if file.suffix == ".part"]
    (served / "0.bin").write_bytes(b"changed")
    found["changed"] = fetched(0).read_bytes().decode()
    server.shutdown()
    return found


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
