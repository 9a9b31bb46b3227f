"""The reader: each row once an epoch in equally many steps, in an order that can be resumed, from any store."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from waiting import wait_for

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.training.reader import open_split, row_count
from airflow_hops.ml.training.reader.files import FileCache
from airflow_hops.ml.transform.batches import ExampleWriter
from tests.ml.conftest import Bucket

WAYS = ("parquet memory", "parquet streamed", "tfrecord memory", "tfrecord streamed")
COLUMNS = ["x", "wide", "text", "blob", "small"]
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
        with tf.io.TFRecordWriter(str(path), "GZIP" if compressed else "") as writer:
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
    feature["small"].int64_list.value.append(row % 100)
    feature["y"].int64_list.value.append(2 * row)
    serialized: bytes = example.SerializeToString()
    return serialized


def shares(folder: Path, batch_size: int, size: int, mode: str) -> list[dict[str, Any]]:
    """Returns the rows of each batch of each rank in two shuffled passes, and in the order of the files."""
    ranks = []
    for rank in range(size):
        reader = open_split(folder, COLUMNS, label="y", rank=rank, size=size, **MODES[mode])
        dataset = reader.dataset(batch_size, shuffle_seed=5)
        passes = [[_rows(element) for element in dataset] for _ in range(2)]
        rows_given = reader.rows_given()
        ranks.append(
            {
                "passes": passes,
                "ordered": [_rows(element) for element in reader.dataset(batch_size)],
                "rows": reader.rows,
                "given": rows_given,
                "totals": [reader.total_rows, reader.share.smallest_rows],
                "steps": reader.steps(batch_size),
                "cardinality": int(dataset.cardinality()),
                "in_memory": reader.in_memory,
                "types": {name: (spec.dtype.name, list(spec.shape)) for name, spec in dataset.element_spec[0].items()},
            }
        )
    return ranks


def _rows(element: Any) -> list[int]:
    """The rows of a batch; all columns must agree on them."""
    features, label = element
    rows: list[int] = features["x"].numpy().tolist()
    assert label.numpy().tolist() == [2 * row for row in rows]
    assert features["wide"].numpy().tolist() == [[float(row)] * 3 for row in rows]
    assert features["text"].numpy().tolist() == [b"text %d" % (row % 5) for row in rows]
    assert features["blob"].numpy().tolist() == [b"blob %d" % row for row in rows]
    assert features["small"].numpy().tolist() == [row % 100 for row in rows]
    return rows


def assert_exact(ranks: list[Any], rows: int) -> None:
    """Each row is given once a pass, in equally many steps by all ranks, and none has more than one row more."""
    steps = {len(batches) for rank in ranks for batches in rank["passes"]}
    assert steps == {ranks[0]["steps"]} == {rank["cardinality"] for rank in ranks}
    assert all(batch for rank in ranks for batches in rank["passes"] for batch in batches)
    for number in range(2):
        seen = [row for rank in ranks for batch in rank["passes"][number] for row in batch]
        assert sorted(seen) == list(range(rows))
    assert max(rank["rows"] for rank in ranks) - min(rank["rows"] for rank in ranks) <= 1
    assert [rank["given"] for rank in ranks] == [rank["rows"] for rank in ranks]
    assert ranks[0]["totals"] == [rows, rows // len(ranks)]


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_read_once_per_epoch(way: str, tmp_path: Path) -> None:
    format, mode = way.split()
    files = [1, 30, 0, 12]
    folder = write_parquet(tmp_path, files) if format == "parquet" else write_tfrecord(tmp_path, files, counts=True)
    ranks = shares(folder, 8, 2, mode)
    assert_exact(ranks, 43)
    assert [row for rank in ranks for batch in rank["ordered"] for row in batch] == list(range(43))
    assert ranks[0]["passes"][0] != ranks[0]["passes"][1]
    assert {rank["in_memory"] for rank in ranks} == {mode == "memory"}
    assert ranks[0]["types"] == {
        "x": ("int64", [None]),
        "wide": ("float32", [None, 3]),
        "text": ("string", [None]),
        "blob": ("string", [None]),
        "small": ("int64" if format == "tfrecord" else "int8", [None]),  # tf.Example has no other integers
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "batch_size", "size", "mode"),
    [([13, 0, 20], 10, 3, "streamed"), ([5], 2, 4, "memory"), ([3], 100, 3, "memory"), ([3], 100, 3, "streamed")],
)
def test_odd_sizes_are_shared_exactly(files: list[int], batch_size: int, size: int, mode: str, tmp_path: Path) -> None:
    assert_exact(shares(write_parquet(tmp_path, files), batch_size, size, mode), sum(files))


@pytest.mark.parametrize("mode", MODES)
def test_resumed_pass_keeps_its_order(mode: str, tmp_path: Path) -> None:
    folder = write_parquet(tmp_path, [40, 0, 61])
    place = {"epoch": 0}
    reader = open_split(folder, ["x"], rank=0, size=2, **MODES[mode])

    def ordered(seed: int, first_step: int = 0) -> Any:
        return reader.dataset(10, shuffle_seed=seed, epoch=lambda: place["epoch"], first_step=first_step)

    def batches(dataset: Any) -> list[list[int]]:
        return [batch["x"].numpy().tolist() for batch in dataset]

    dataset = ordered(7)
    first = batches(dataset)
    place["epoch"] = 1
    second = batches(dataset)
    assert first != second == batches(dataset) == batches(ordered(7))
    assert batches(ordered(8)) != second
    steps = reader.steps(10)
    for step in (1, 5, steps - 1, steps):
        assert batches(ordered(7, step)) == second[step:]
        assert reader.rows_given() == reader.rows
    values = sum(len(batch) for batch in second[:2])
    for batch in ordered(7, 2):
        values += int(batch["x"].shape[0])
        assert reader.rows_given() == values
    with pytest.raises(BadInput, match="first_step is 99, but a pass has 11 steps"):
        ordered(7, 99)


def test_labels_and_weights_follow_features(tmp_path: Path) -> None:
    columns = {"x": [1.0, 2.0, 3.0], "y": [0.5, 1.5, 2.5], "w": [1.0, 2.0, 4.0]}
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    ((features, labels, weights),) = open_split(tmp_path, ["x"], label="y", weight="w").dataset(3)
    assert list(features) == ["x"]
    assert (labels.dtype, labels.numpy().tolist()) == (tf.float32, columns["y"])
    assert (weights.dtype, weights.numpy().tolist()) == (tf.float32, columns["w"])
    with pytest.raises(BadInput, match="weight is 'w', but there is no label"):
        open_split(tmp_path, ["x"], weight="w")


@pytest.mark.parametrize("mode", MODES)
def test_batches_are_those_of_the_dataset(mode: str, tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "split", [40, 33])
    reader = open_split(folder, COLUMNS, rank=1, size=2, label="y", weight="x", **MODES[mode])
    dataset = reader.dataset(8, shuffle_seed=5, epoch=lambda: 3, first_step=2)
    pairs = list(zip(reader.batches(8, shuffle_seed=5, epoch=3, first_step=2), dataset, strict=True))
    assert len(pairs) == reader.steps(8) - 2
    for batch, expected in pairs:
        for array, tensor in zip(tf.nest.flatten(batch), tf.nest.flatten(expected), strict=True):
            assert array.dtype == tensor.numpy().dtype
            assert array.tolist() == tensor.numpy().tolist()
    with pytest.raises(BadInput, match="first_step is 99, but a pass has 10 steps"):
        next(reader.batches(8, first_step=99))


def test_parquet_and_tfrecord_give_same_batches(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    for part in range(3):
        with ExampleWriter(folder, part) as writer:
            for _ in range(2):
                outputs = {
                    "numeric": np.random.default_rng(part).normal(size=(50, 4)).astype("float32"),
                    "one": np.full((50, 1), part, "float32"),
                    "id": np.arange(50, dtype="int64") + part,
                    "text": np.array([b"a", b"bc"] * 25, object),
                }
                writer.write({**outputs, "late": np.arange(50, dtype="int64") % 2})
    specs = {"numeric": OutputSpec("float32", 4), "one": OutputSpec("float32", 1)}
    specs |= {"id": OutputSpec("int64"), "text": OutputSpec("string")}
    results = {}
    for format in ("parquet", "tfrecord"):
        reader = open_split(folder, specs, label="late", format=format, cache_dir=tmp_path / "cache")
        results[format] = [
            [{name: value.numpy().tolist().__repr__() for name, value in features.items()}, label.numpy().tolist()]
            for features, label in reader.dataset(64, shuffle_seed=1)
        ]
    assert results["parquet"] == results["tfrecord"]
    assert len(results["parquet"]) == 5
    shapes = [list(spec.shape) for spec in reader.dataset(64).element_spec[0].values()]
    assert shapes == [[None, 4], [None, 1], [None], [None]]
    assert len(list((tmp_path / "cache" / "counts").iterdir())) == 3
    assert row_count(folder) == 300


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(own_process: Any, tmp_path: Path) -> None:
    few, many = own_process(_peaks, tmp_path)
    assert [few["seen"], many["seen"]] == [60_000, 480_000]
    assert many["file_mib"] > 40
    assert many["peak_mib"] < few["peak_mib"] + many["file_mib"] / 2


def _peaks(folder: Path) -> list[dict[str, float]]:
    """Peak memory of a streamed pass, of few rows and of eight times as many."""
    peaks = []
    part = pa.table({f"c{n}": np.random.default_rng(n).random(30_000) for n in range(12)})
    for rows in (60_000, 480_000):
        path = folder / f"{rows}.parquet"
        with pq.ParquetWriter(path, part.schema, compression="none", use_dictionary=False) as writer:
            for _ in range(rows // 30_000):
                writer.write_table(part)
        reader = open_split(path, [f"c{n}" for n in range(12)], memory_bytes=0, buffer_bytes=4 << 20)
        dataset = reader.dataset(1024, shuffle_seed=1)
        for _ in dataset.take(100):  # whatever is only needed once
            pass
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
        start = _resident("VmRSS")
        seen = sum(int(batch["c0"].shape[0]) for batch in dataset)
        peaks.append({"peak_mib": _resident("VmHWM") - start, "seen": seen, "file_mib": path.stat().st_size >> 20})
    return peaks


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def test_unreadable_input_is_named(tmp_path: Path) -> None:
    root = tmp_path

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
    lists = parquet("lists", {"x": pa.array([[1, 2], [3]])})
    uneven = write_tfrecord(root / "uneven", [])
    with tf.io.TFRecordWriter(str(uneven / "part-0.tfrecord")) as writer:
        for values in ([1], [1, 2]):
            example = tf.train.Example()
            example.features.feature["x"].int64_list.value.extend(values)
            writer.write(example.SerializeToString())
    missing = parquet("missing", {"x": pa.array([1, None, 3])})
    types = parquet("types", {"x": [1]}, {"x": [1.5]})
    wide, list_of_two = {"x": OutputSpec("float32", 2)}, {"x": OutputSpec("int64", 2)}
    columns = parquet("columns", {"x": [1]}, {"z": [1]})
    times, good = parquet("times", {"t": pa.array([0], pa.timestamp("ms"))}), write_tfrecord(root / "good", [3])
    cases: dict[str, tuple[Path, Any, dict[str, Any]]] = {
        "no file matches; expected the examples of a split; ": (root / "test", ["x"], {}),
        "part-1.parquet: cannot be read": (truncated, ["x"], {}),
        "part-1.parquet: column 'x' is float64, but int64 in ": (types, ["x"], {}),
        "part-1.parquet: there is no column 'x'; it has z": (columns, ["x"], {}),
        "column 'x' is int64, but features.json says 2 x float32": (columns / "part-0.parquet", wide, {}),
        "holds 1 rows, fewer than the 2 ranks": (types / "part-0.parquet", ["x"], {"rank": 1, "size": 2}),
        "column 'x' has 1 missing values; a transform leaves none": (missing, ["x"], {}),
        "column 'x' is a list of 1 to 2 values; expected 2 in each row": (lists, list_of_two, {}),
        "and the length of its lists is unknown; write lists of one fixed size": (lists, ["x"], {}),
        "feature 'x' has 1 to 2 values in a record; expected one number of values": (uneven, ["x"], {}),
        "column 't' is of type timestamp[ms], which TensorFlow tensors do not support": (times, ["t"], {}),
        "the checksum of a record is wrong; the file is damaged (record ": (flipped, ["x"], {}),
        "part-1.tfrecord.gz, after record 0: it cannot be decompressed": (cut, ["x"], {}),
        "part-0.tfrecord holds 4 records, but 5 were counted (counts.json)": (miscounted, ["x"], {}),
        "counts.json: expected a JSON object of file names and numbers of records": (no_counts, ["x"], {}),
        "feature 'z' does not exist; there are blob, small, text, wide, x, y": (good, ["z"], {}),
    }
    for expected, (folder, names, options) in cases.items():
        with pytest.raises(BadInput) as failure:
            open_split(folder, names, **options)
        assert expected in str(failure.value)


def test_examples_of_an_object_store_are_fetched_once(bucket: Bucket, tmp_path: Path) -> None:
    uri, storage_options = f"{bucket.url}/flights", bucket.options
    folder = write_parquet(tmp_path / "split", [13, 0, 40, 8])
    for file in folder.iterdir():
        bucket.fs.put_file(str(file), f"{uri}/train/{file.name}")
    cache = tmp_path / "cache"
    options = {"storage_options": storage_options, "cache_dir": cache}
    rows = []
    for rank in range(2):
        reader = open_split(f"{uri}/train", ["x"], rank=rank, size=2, **options)
        rows += [row for batch in reader.dataset(8) for row in batch["x"].numpy().tolist()]
    assert rows == list(range(61))
    assert row_count(f"{uri}/train", storage_options=storage_options) == 61
    sizes = sorted(file.stat().st_size for file in folder.iterdir())
    # The file without rows is not fetched.
    assert sorted(file.stat().st_size for file in cache.iterdir() if not file.name.startswith(".")) == sizes[1:]
    with pytest.raises(BadInput, match="holds train"):
        open_split(f"{uri}/test", ["x"], **options)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_share_the_cache_despite_a_crash(own_process: Any, tmp_path: Path, small_folder: Path) -> None:
    own_process(_share_the_cache, tmp_path, small_folder)


def _share_the_cache(root: Path, small_folder: Path) -> None:
    """Processes that share a cache: at once, killed, out of room, and with files that change."""
    served = root / "served"
    served.mkdir()
    for number in range(4):
        (served / f"{number}.bin").write_bytes(os.urandom(400_000))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = root / "cache"

    def fetched(number: int, *, max_bytes: int = 1 << 30, folder: Path = folder) -> Path:
        fs, files = list_files(Source(f"http://127.0.0.1:{server.server_port}/{number}.bin"))
        return FileCache(fs, folder, max_bytes).fetch(files[0])

    # A process that is killed half-way through leaves nothing that the next takes for the file.
    _Files.gate.clear()
    killed = os.fork()
    if killed == 0:
        fetched(0)
        os._exit(0)
    wait_for(lambda: any(folder.glob("*.part")))
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    assert len(list(folder.glob("*.part"))) == 1
    _Files.gate.set()
    assert fetched(0).read_bytes() == (served / "0.bin").read_bytes()
    assert list(folder.glob("*.part")) == []
    # Of three at once, one downloads: a second download would put another file in the place of the first.
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            path = fetched(1)
            (root / f"inode-{number}").write_text(str(path.stat().st_ino))
            os._exit(0 if path.read_bytes() == (served / "1.bin").read_bytes() else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert len({(root / f"inode-{number}").read_text() for number in range(3)}) == 1
    # The least recently used goes first.
    first = fetched(0)
    second = fetched(1)
    fetched(0)
    third = fetched(2, max_bytes=1_000_000)
    assert [first.exists(), second.exists(), third.exists()] == [True, False, True]
    with pytest.raises(HopsError, match=r"3\.bin has 400000 bytes, more than the 100000 of the cache"):
        fetched(3, max_bytes=100_000)
    with pytest.raises(HopsError, match="No space left on device") as full:
        fetched(3, folder=small_folder)
    assert not isinstance(full.value, BadInput)
    assert [file.name for file in small_folder.iterdir() if file.suffix == ".part"] == []
    (served / "0.bin").write_bytes(b"changed")
    assert fetched(0).read_bytes() == b"changed"
    server.shutdown()
