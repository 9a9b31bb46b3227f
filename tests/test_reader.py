"""The reader: each row once an epoch in equally many steps, in an order that can be resumed, from any store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.artifacts import Artifact, Producer
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.protocol import Output, StepSpec
from airflow_hops.store import ArtifactStore

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
WAYS = ("parquet memory", "parquet streamed", "tfrecord memory", "tfrecord streamed")


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs a function of ``reader_checks``."""

    def run(name: str, **params: Any) -> Any:
        return shared_run_step(f"reader_checks:{name}", params=params, code_paths=CHECKS, launcher=warm_launcher)

    return run


@pytest.fixture(scope="module")
def both_formats(check: Any) -> Any:
    return check("shares", files=[1, 30, 0, 12], batch_size=8, size=2, everything=True)


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
def test_every_row_is_given_once_an_epoch_in_equally_many_steps(both_formats: Any, way: str) -> None:
    ranks = both_formats[way]
    assert_exact(ranks, 43)
    assert [row for rank in ranks for batch in rank["ordered"] for row in batch] == list(range(43))
    assert ranks[0]["passes"][0] != ranks[0]["passes"][1]
    assert {rank["in_memory"] for rank in ranks} == {way.endswith("memory")}


@pytest.mark.parametrize(("files", "batch_size", "size"), [([13, 0, 20], 10, 3), ([5], 2, 4), ([3], 100, 3)])
def test_few_rows_and_many_ranks_and_odd_sizes_are_shared_exactly(
    check: Any, files: list[int], batch_size: int, size: int
) -> None:
    found = check("shares", files=files, batch_size=batch_size, size=size)
    assert_exact(found["parquet memory"], sum(files))
    assert_exact(found["parquet streamed"], sum(files))


@pytest.mark.parametrize("way", WAYS)
def test_types_and_shapes_are_those_of_the_files(both_formats: Any, way: str) -> None:
    rank = both_formats[way][0]
    expected = {
        "x": ["int64", [None]],
        "wide": ["float32", [None, 3]],
        "text": ["string", [None]],
        "blob": ["string", [None]],
        "ragged": ["int64", [None, None]],
        # tf.Example has no other integers.
        "small": ["int64" if way.startswith("tfrecord") else "int8", [None]],
    }
    assert {name: [rank["dtypes"][name], rank["shapes"][name]] for name in expected} == expected


@pytest.fixture(scope="module")
def orders(check: Any) -> Any:
    return check("orders")


@pytest.mark.parametrize("mode", ["memory", "streamed"])
def test_the_order_is_of_seed_rank_and_epoch_and_a_resumed_pass_goes_on_in_it(orders: Any, mode: str) -> None:
    found = orders[mode]
    first, second, again = found["passes"]
    assert first != second == again == found["others"]["again"]
    assert found["others"]["another seed"] != second
    for step, (given, rows) in found["resumed"].items():
        assert given == second[int(step) :]
        assert rows == found["rows"]
    skipped = sum(len(batch) for batch in second[:2])
    assert [rows for rows, _ in found["counted"]] == [
        skipped + sum(size for _, size in found["counted"][: number + 1]) for number in range(len(found["counted"]))
    ]
    assert found["failure"] == "first_step is 99, but a pass has 11 steps"
    assert found["failure_is_bad_input"]
    assert found["error"] != "nothing was raised"


def test_the_transforms_parquet_and_tfrecord_files_give_the_same_batches(check: Any) -> None:
    found = check("transforms_own")
    assert found["equal"]
    assert found["batches"] == 5
    assert found["shape"] == [[None, 4], [None, 1], [None], [None]]
    assert found["row_count"] == 300
    assert found["counted"] == 3


def test_memory_does_not_grow_with_the_rows(check: Any) -> None:
    found = check("memory")
    few, many = found["150000"], found["1200000"]
    assert [few["seen"], many["seen"]] == [150_000, 1_200_000]
    assert many["file_mib"] > 100
    assert many["peak_mib"] < few["peak_mib"] + 25
    assert many["peak_mib"] < many["file_mib"] / 2


def test_images_are_decoded_and_damaged_ones_are_named(check: Any) -> None:
    found = check("images")
    for mode in ("memory", "streamed"):
        assert sorted(found[mode]["pairs"]) == [[number, number] for number in range(20)]
        assert found[mode]["shape"] == [None, 4, 5, 1]
    where = "part-0.parquet, row group 2: column 'image', row 1: "
    assert f"{where}the PNG image is cut off" in found["cut"]
    assert f"{where}the checksum of the PNG image's chunk IDAT is wrong" in found["flipped"]
    assert f"{where}this is no PNG, JPEG, GIF or BMP image (4 bytes)" in found["text"]
    assert f"{where}the JPEG image is cut off" in found["jpeg"]
    assert f"{where}the JPEG image is cut off" in found["streamed failure"]


REFUSED = {
    "split": "no file matches; expected the examples of a split; ",
    "empty": "there are no files that end in .parquet, .tfrecord, .tfrecords, .tfrecord.gz, .tfrecords.gz",
    "format": "format is 'csv', expected one of parquet, tfrecord",
    "truncated": "part-1.parquet: not a readable Parquet file",
    "types": "part-1.parquet: column 'x' is float64, but int64 in ",
    "columns": "part-1.parquet: there is no column 'x'; it has z",
    "specs": "part-0.parquet: column 'x' is int64, but features.json says 2 x float32",
    "rows": "holds 1 rows, fewer than the 2 ranks; give it more rows, or lower np",
    "rank": "rank is 2 of 2; expected 0 to size - 1",
    "missing": "column 'x' has 1 missing values; a transform leaves none",
    "fill": "column 'x': fill_values has 'none', which is no int64",
    "width": "column 'x' is a list of 1 to 2 values; expected 2 in each row",
    "timestamp": "column 't' is of type timestamp[ms], which TensorFlow has no tensors of",
    "flipped": "the checksum of a record is wrong; the file is damaged (record ",
    "cut": "part-1.tfrecord.gz, after record 0: it cannot be decompressed",
    "miscounted": "part-0.tfrecord holds 4 records, but 5 were counted (counts.json)",
    "no_counts": "counts.json: expected a JSON object of file names and numbers of records",
    "feature": "part-0.tfrecord: feature 'z' is not there; there are blob, ragged, small, text, wide, x, y",
    "batch_size": "batch_size is 0, expected 1 row or more",
}


def test_what_cannot_be_read_is_named(check: Any) -> None:
    found = check("refused")
    for name, expected in REFUSED.items():
        assert found[name].startswith("BadInput: "), (name, found[name])
        assert expected in found[name], (name, found[name])
    assert found["filled"] == "[[1, -1, 3]]"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """A bucket of an S3-compatible service."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="examples")
        credentials = {"key": "test", "secret": "test"}
        yield "s3://examples/flights", {"endpoint_url": endpoint, "use_listings_cache": False, **credentials}
    finally:
        server.stop()


def test_examples_of_an_object_store_are_fetched_once(check: Any, bucket: tuple[str, dict[str, Any]]) -> None:
    uri, storage_options = bucket
    found = check("remote", uri=uri, storage_options=storage_options)
    assert found["rows"] == list(range(61))
    assert found["row_count"] == 61
    # The file without rows is not fetched.
    assert found["cached"] == found["sizes"][1:]
    assert "holds train" in found["unknown"]


def test_ranks_read_the_splits_of_a_remote_store_by_themselves(
    bucket: tuple[str, dict[str, Any]],
    runtime: Path,
    warm_launcher: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, storage_options = bucket
    store = ArtifactStore(uri, storage_options=storage_options, local_cache=str(tmp_path / "mine"))
    monkeypatch.setenv("HOPS_LOCAL_CACHE", str(tmp_path / "cache"))
    extra = {"store": uri, "storage_options": storage_options, "runtime": str(runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))

    def run(entry: str, kind: str, params: dict[str, Any], inputs: dict[str, Any]) -> Artifact:
        producer = Producer("remote", "run", kind)
        output = Output(store.address(producer, kind), kind)
        spec = StepSpec(kind, entry, params=params, inputs=inputs, output=output, producer=producer, code_paths=CHECKS)
        return Artifact.from_dict(RuntimeHook().run(spec, launcher=warm_launcher, cache=False).value)

    rows = {"train": [200, 3, 98], "eval": [60]}
    examples = run("transformed_examples:write", "transformed_examples", {"rows": rows}, {})
    params = {"train": "training_functions:train", "params": {"epochs": 1}, "np": 2}
    model = run("airflow_hops.runtime.train:run", "model", params, {"examples": (examples,)})
    assert {split: counts.rows_out for split, counts in model.rows.items()} == {"train": 301, "eval": 60}
    downloaded = {path.name for path in (tmp_path / "cache").rglob("*.parquet")}
    assert downloaded == set(), "the step has downloaded splits"
    fetched = [path for path in (tmp_path / "cache" / "files").iterdir() if not path.name.startswith(".")]
    assert len(fetched) == 4


def test_processes_share_the_cache_whatever_happens_to_one(check: Any, small_folder: Path) -> None:
    found = check("cache", small_folder=str(small_folder))
    assert found["left by the killed"] == 1
    assert found["after the killed"] is True
    assert found["parts"] == 0
    assert found["at once"] == [0, 0, 0]
    assert len(found["files"]) == 1
    assert found["kept"] == [True, False, True]
    assert "3.bin has 400000 bytes, more than the 100000 of the cache" in found["too large"]
    assert found["full"].startswith("HopsError: ") and "No space left on device" in found["full"]
    assert found["left on the full"] == []
    assert found["changed"] == "changed"
