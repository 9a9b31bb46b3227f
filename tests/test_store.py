"""The artifact store's contract, held by a local folder, an S3 API and HDFS."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from waiting import wait_for
from world import BY as PRODUCER
from world import World, path_of, refused, write_artifact

from airflow_hops.core.artifacts.artifact import CUT_SHORT, Artifact, Producer, RowCounts, total_rows
from airflow_hops.core.errors import (
    BadInput,
    DamagedArtifact,
    HopsError,
    RowsNotConserved,
    StoreAway,
    UnreadableText,
)
from airflow_hops.core.json_files import MOST_JSON_BYTES
from airflow_hops.core.models.model_record import ModelRecord, read_record, write_record
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.steps.step_cache import find_cached, record_cached
from airflow_hops.core.store import ArtifactStore, kept_version
from airflow_hops.core.store.artifact_store import MARKER
from airflow_hops.core.store.owners import owners_of
from airflow_hops.core.training.record import read_training
from airflow_hops.runner.runtime import RuntimeHook


@pytest.fixture
def s3_store(s3_endpoint: str, tmp_path: Path) -> ArtifactStore:
    import s3fs

    bucket = f"hops-{tmp_path.name.replace('_', '-').lower()}"[:60]
    options = {"endpoint_url": s3_endpoint, "use_listings_cache": False}
    s3fs.S3FileSystem(**options).mkdir(bucket)
    return ArtifactStore(f"s3://{bucket}/hops", storage_options=options, local_cache=str(tmp_path / "cache"))


@pytest.fixture(params=["local", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """A store of each kind."""
    if request.param != "local":
        result: ArtifactStore = request.getfixturevalue(f"{request.param}_store")
        return result
    return ArtifactStore(str(tmp_path / "a store+"))


def write(store: ArtifactStore, files: dict[str, str], producer: Producer = PRODUCER, **commit: Any) -> Artifact:
    return write_artifact(store, "model", files, producer, **commit)


def overwrite(store: ArtifactStore, uri: str, text: str) -> None:
    """Writes to a place of the store, past the store."""
    if store.is_local:
        path_of(uri).write_bytes(text.encode())
    else:
        store.files.remote().fs.pipe_file(uri, text.encode())


def remove(store: ArtifactStore, uri: str) -> None:
    """Takes a file away, past the store."""
    if store.is_local:
        path_of(uri).unlink()
    else:
        store.files.remote().fs.rm_file(uri)


def fill(folder: Path) -> None:
    """Takes the last byte of a file system."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def names_in(store: ArtifactStore) -> list[str]:
    """All files of a store, relative to its root."""
    if store.is_local:
        root = path_of(store.root)
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    fs = store.files.remote().fs
    fs.invalidate_cache()
    root_key = fs._strip_protocol(store.root)
    return sorted(name.removeprefix(f"{root_key}/") for name in fs.find(root_key))


def test_artifact_round_trips_with_its_manifest(any_store: ArtifactStore) -> None:
    snapshot = Artifact("s3://elsewhere/snapshot", "snapshot", "f" * 64)
    rows = {"train": RowCounts(10, 7, {"cancelled": 3})}
    uri = any_store.address(PRODUCER, "model")
    facts: dict[str, Any] = {"inputs": {"examples": (snapshot,)}, "cache_key_parts": {"code": "c1"}}
    with any_store.create(uri, "model", PRODUCER, **facts) as writer:
        (writer.path / "saved_model").mkdir()
        (writer.path / "saved_model" / "weights").write_bytes(bytes(range(256)))
        for name, text in {"note.txt": "é", "50%41": "1", "50A": "22"}.items():
            (writer.path / name).write_text(text)
        artifact = writer.commit(rows=rows, metrics={"auc": 0.7}, properties={"label": "late"})
    assert artifact.uri == uri
    assert any_store.exists(uri)
    manifest = any_store.manifest(uri)
    assert manifest.producer == PRODUCER
    assert [(role, each.fingerprint) for role, (each,) in manifest.inputs.items()] == [("examples", "f" * 64)]
    sizes = {"50%41": 1, "50A": 2, "note.txt": 2, "saved_model/weights": 256}
    assert {file.path: file.size_bytes for file in manifest.files} == sizes
    assert (manifest.rows, manifest.metrics, manifest.properties) == (rows, {"auc": 0.7}, {"label": "late"})
    assert manifest.reference(uri) == artifact
    folder = any_store.local(artifact)
    assert (folder / "saved_model" / "weights").read_bytes() == bytes(range(256))
    assert (folder / "50%41").read_text() == "1", "a percent sign in a name is literal"
    assert b"".join(any_store.stream(any_store.file(artifact.uri, "50%41"))) == b"1"
    assert any_store.verify(artifact) == manifest


def test_equal_contents_have_equal_fingerprints(store: ArtifactStore) -> None:
    other = dataclasses.replace(PRODUCER, run_id="later", try_number=1)
    first, second = write(store, {"a": "1"}), write(store, {"a": "1"}, other)
    changed = write(store, {"a": "2"}, dataclasses.replace(PRODUCER, run_id="last"))
    assert first.fingerprint == second.fingerprint != changed.fingerprint
    assert len({first.uri, second.uri, changed.uri}) == 3


def test_artifact_needs_a_commit(any_store: ArtifactStore) -> None:
    uri = any_store.address(PRODUCER, "model")
    with contextlib.suppress(ZeroDivisionError), any_store.create(uri, "model", PRODUCER) as writer:
        staged = writer.path
        (staged / "weights").write_text("half")
        raise ZeroDivisionError
    assert not staged.exists()
    assert not any_store.exists(uri)
    assert names_in(any_store) == []
    with pytest.raises(BadInput, match=r"no artifact found \(no manifest.json\)"):
        any_store.manifest(uri)


CRASHING = """
import json, os, sys
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.store import ArtifactStore
root, options, uri = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
store = ArtifactStore(root, storage_options=options)
with store.create(uri, "model", Producer()) as writer:
    for number in range(200):
        (writer.path / f"{number:03}").write_text("x" * 100)
    print("staged", flush=True)
    if store.is_local:
        os.kill(os.getpid(), 9)
    writer.commit()
"""


@pytest.mark.slow
def test_next_try_cleans_up_after_a_crash_before_commit(any_store: ArtifactStore) -> None:
    uri = any_store.address(PRODUCER, "model")
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING, any_store.root, json.dumps(any_store.storage_options), uri],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"staged\n"
    if not any_store.is_local:
        wait_for(lambda: names_in(any_store), "the first files", poll_s=0.01)
        process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    left = names_in(any_store)
    assert 0 < len(left) <= 200
    assert not [name for name in left if name.endswith("manifest.json")]
    assert not any_store.exists(uri)
    artifact = write(any_store, {"weights": "whole"})
    assert artifact.uri == uri
    folder = uri.removeprefix(f"{any_store.root}/")
    assert names_in(any_store) == [f"{folder}/manifest.json", f"{folder}/weights"]


def test_retry_replaces_the_previous_artifact(any_store: ArtifactStore) -> None:
    write(any_store, {})
    first = write(any_store, {"old/weights": "1", "shared": "1"})
    second = write(any_store, {"new/weights": "2", "shared": "2"}, dataclasses.replace(PRODUCER, try_number=3))
    assert first.uri == second.uri
    assert first.fingerprint != second.fingerprint
    folder = second.uri.removeprefix(f"{any_store.root}/")
    assert names_in(any_store) == [f"{folder}/{name}" for name in ("manifest.json", "new/weights", "shared")]
    assert (any_store.local(second) / "shared").read_text() == "2"
    with pytest.raises(BadInput, match=r"another model is stored there now .* its task ran again"):
        any_store.local(first)


def test_hand_edit_is_accepted_on_request(any_store: ArtifactStore) -> None:
    artifact = write(any_store, {"schema.pbtxt": "old\n", "b": "2"}, properties={"label": "late"})
    assert any_store.accept_edit(artifact.uri, "schema.pbtxt") == artifact
    overwrite(any_store, f"{artifact.uri}/schema.pbtxt", "new\r\n")
    edited = any_store.accept_edit(artifact.uri, "schema.pbtxt")
    assert edited.fingerprint != artifact.fingerprint
    assert edited.properties == artifact.properties
    any_store.verify(edited)
    assert (any_store.local(edited) / "schema.pbtxt").read_bytes() == b"new\r\n"
    remove(any_store, f"{artifact.uri}/schema.pbtxt")
    with pytest.raises(BadInput, match=r"schema.pbtxt: it is in the manifest, but was deleted"):
        any_store.accept_edit(artifact.uri, "schema.pbtxt")


def test_reader_always_finds_an_artifact_during_replacement(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    artifact = write(store, {"a": "0"})
    stop, missed, looks = threading.Event(), [], [0]

    def look() -> None:
        while not stop.is_set():
            looks[0] += 1
            if not store.exists(artifact.uri):
                missed.append(looks[0])

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in itertools.count():
            write(store, {"a": str(number)})
            if number > 100 and looks[0] > 500:
                break
    finally:
        stop.set()
        reader.join()
    assert not missed
    assert names_in(store) == [
        "dag/manual__2026-01-01T00~00~00+00~00/train/model/a",
        "dag/manual__2026-01-01T00~00~00+00~00/train/model/manifest.json",
    ]


def test_lost_rows_are_not_published(store: ArtifactStore) -> None:
    with pytest.raises(RowsNotConserved, match=r"model 'train': 10 rows in, but 6 out and 3 rejected.*; 1 unaccounted"):
        write(store, {"a": "1"}, rows={"train": RowCounts(10, 6, {"cancelled": 3})})
    assert names_in(store) == [MARKER]


def test_a_flipped_byte_and_a_lost_file_are_found(any_store: ArtifactStore, tmp_path: Path) -> None:
    artifact = write(any_store, {"a": "1", "b/c": "2"})
    overwrite(any_store, f"{artifact.uri}/b/c", "3")
    with pytest.raises(HopsError, match=r"model/b/c: found SHA-256 .*, the manifest says"):
        any_store.verify(artifact)
    if any_store.is_local:
        (path_of(artifact.uri) / "a").unlink()
        (path_of(artifact.uri) / "a").mkdir()
    else:
        with pytest.raises(HopsError, match=r"model/b/c: found SHA-256 .*, the manifest says"):
            any_store.local(artifact)
        any_store.files.remote().fs.rm_file(f"{artifact.uri}/a")
        with pytest.raises(HopsError, match="model/a: it is in the manifest, but was deleted"):
            any_store.local(artifact)
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]
    with pytest.raises(HopsError, match="model/a: it is in the manifest, but was deleted"):
        any_store.verify(artifact)


def flip(path: Path) -> None:
    """Flips a bit of the first byte: the size stays, and so does the time of the last change."""
    stat = path.stat()
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_flipped_bit_is_found_wherever_the_artifact_is_used(store: ArtifactStore) -> None:
    artifact = write(store, {"saved_model/weights": "10"})
    parts = {"code": "c1"}
    record_cached(store, PRODUCER, parts, artifact)
    folder = store.local(artifact)
    time.sleep(0.1)
    assert store.local(artifact) == folder
    assert find_cached(store, PRODUCER, parts)[0] is not None
    flip(folder / "saved_model" / "weights")
    with pytest.raises(DamagedArtifact) as caught:
        store.local(artifact)
    for named in (f"{artifact.uri}/saved_model/weights", "task 'train'", f"run '{PRODUCER.run_id}'", "DAG 'dag'"):
        assert named in str(caught.value)
    assert not caught.value.retryable
    result, why = find_cached(store, PRODUCER, parts)
    assert result is None
    assert "weights: found SHA-256" in why
    assert store.local(artifact, checked=False) == folder
    again = write(store, {"saved_model/weights": "10"})
    assert store.local(again) == folder


def test_flipped_bit_is_harmless_if_the_version_is_retained(store: ArtifactStore) -> None:
    artifact = write(store, {"a": "1"})
    retained = path_of(kept_version(artifact.uri, artifact.fingerprint))
    shutil.copytree(path_of(artifact.uri), retained)
    flip(path_of(artifact.uri) / "a")
    assert store.local(artifact) == retained
    flip(retained / "a")
    with pytest.raises(DamagedArtifact):
        store.local(artifact)


STRAYS = (
    "examples/eval/extra.parquet", "examples/eval/.hidden.parquet", "examples/eval/_SUCCESS.parquet",
    "examples/eval/.#part.parquet", "examples/eval/#part#.parquet", "examples/other/part.parquet",
    "assets/deep/er/vocabulary", "weights.crc", "checkpoint-3/state",
)  # fmt: skip


def test_file_that_no_manifest_lists_is_damage(any_store: ArtifactStore) -> None:
    files = {"examples/eval/part.parquet": "1", "assets/tokens": "2"}
    uses = (any_store.verify, any_store.local, lambda it: any_store.local(it, without=["examples"], checked=False))
    for added in STRAYS if any_store.is_local else STRAYS[:1]:
        artifact = write(any_store, files)
        record_cached(any_store, PRODUCER, {"code": "c1"}, artifact)
        folder = any_store.local(artifact)
        if any_store.is_local:
            (folder / added).parent.mkdir(parents=True, exist_ok=True)
        overwrite(any_store, f"{artifact.uri}/{added}", "x")
        message = re.escape(f"{artifact.uri}/{added}: it is not in the manifest")
        for use in uses:
            with pytest.raises(DamagedArtifact, match=message) as error:
                use(artifact)
            assert not error.value.retryable
            assert "remove it" in str(error.value)
        assert added in find_cached(any_store, PRODUCER, {"code": "c1"})[1]
    any_store.verify(write(any_store, files))


@pytest.mark.parametrize("replaced", ["train/other.parquet", "new", "train"])
def test_link_that_no_manifest_lists_is_damage(store: ArtifactStore, tmp_path: Path, replaced: str) -> None:
    artifact = write(store, {"train/part.parquet": "1"})
    folder = store.local(artifact)
    outside = tmp_path / "outside"
    shutil.copytree(folder / "train", outside)
    (outside / "more.parquet").write_text("2")
    with store.create(store.uri("linked"), "model", PRODUCER) as writer:
        (writer.path / "assets").symlink_to(outside)
        with pytest.raises(BadInput, match="assets is a link to the folder"):
            writer.commit()
    if (folder / replaced).is_dir():
        shutil.rmtree(folder / replaced)
    (folder / replaced).symlink_to(outside)
    with pytest.raises(DamagedArtifact, match="more.parquet" if replaced == "train" else replaced):
        store.local(artifact)


def test_files_of_file_systems_and_editors_are_ignored(store: ArtifactStore) -> None:
    names = {"train/part.parquet": "1", "schema.pbtxt": "2", "weights.crc": "3", "_SUCCESS_rates.json": "4"}
    artifact = write(store, names)
    folder = store.local(artifact)
    assert {name: (folder / name).read_text() for name in names} == names, "names like those of markers are data"
    for name in ("train/_SUCCESS", "train/.part.parquet.crc", "train/._SUCCESS.crc", ".nfs00000000037c1b4200000001",
                 "schema.pbtxt~", ".schema.pbtxt.swp", "#schema.pbtxt#", ".#schema.pbtxt", ".schema.pbtxt.un~",
                 ".DS_Store", "train_$folder$", ".manifest.json.0123456789ab"):  # fmt: skip
        (folder / name).write_text("")
    (folder / "empty" / "folder").mkdir(parents=True)
    store.verify(artifact)
    assert store.local(artifact) == folder


def test_long_names_of_models_are_refused(store: ArtifactStore) -> None:
    write_record(store, "m" * 220, ModelRecord())
    with pytest.raises(BadInput, match="at most 220"):
        write_record(store, "m" * 221, ModelRecord())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 100_000, "values within values, more than 100 deep"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "values within values, more than 100 deep"),
        (b" " * (MOST_JSON_BYTES + 1), f"the file has more than {MOST_JSON_BYTES} bytes"),
        (b"9" * 5000, "Exceeds the limit"),
        (b'"' + b"x" * 100, "Unterminated string"),
        (b"\xff", "expected text in UTF-8"),
    ],
    ids=["deep list", "deep object", "large", "long number", "open text", "not UTF-8"],  # not the contents
)
def test_invalid_json_is_refused_with_its_file(store: ArtifactStore, content: bytes, says: str) -> None:
    uri = store.uri("state", "record.json")
    store.files.write(uri, content)
    with pytest.raises(UnreadableText, match=rf"{re.escape(uri)}: .*{says}"):
        store.read_json(uri)
    store.write_text(uri, '{"a": NaN, "b": ' + "[" * 90 + "]" * 90 + "}")
    assert store.read_json(uri)["a"] != 0


def test_cleared_download_is_repeated(s3_store: ArtifactStore) -> None:
    artifact = write(s3_store, {"a": "1", "b/c": "2"})
    folder = s3_store.local(artifact)
    shutil.rmtree(folder / "b")
    assert s3_store.local(artifact) == folder
    assert (folder / "b" / "c").read_text() == "2"


def test_addresses_outside_the_store_are_refused(any_store: ArtifactStore) -> None:
    for tail in ("/../x", "/a/../../x", "/%2e%2e/x", "/a/%2E%2E/%2e%2e/x", "x", ""):
        uri = f"{any_store.root}{tail}"
        for use in (
            lambda uri: any_store.create(uri, "model", PRODUCER),
            lambda uri: any_store.write_text(uri, "x"),
            lambda uri: any_store.local(Artifact(uri, "model", "f")),
            any_store.manifest,
            any_store.exists,
            any_store.read_text,
        ):
            with pytest.raises(BadInput, match="is not inside the store"):
                use(uri)


def test_damaged_manifest_is_named(store: ArtifactStore) -> None:
    artifact = write(store, {"inside": "1"})
    path = f"{artifact.uri}/manifest.json"
    value = json.loads(store.read_text(path))
    for name in ("../../outside", "/etc/passwd", "a/../../outside"):
        value["files"][0]["path"] = name
        overwrite(store, path, json.dumps(value))
        for use in (store.local, store.verify):
            with pytest.raises(BadInput, match=r"the manifest names the file '.*', which is outside the artifact"):
                use(artifact)
    for text in ("", "{}", '{"format_version": 99}', "[1]"):
        overwrite(store, path, text)
        with pytest.raises(BadInput, match=r"model/manifest.json: (not an artifact manifest|format_version is 99)"):
            store.manifest(artifact.uri)


def test_text_that_is_not_utf_8_is_named(store: ArtifactStore) -> None:
    artifact = write(store, {"state.json": "{"})
    path = f"{artifact.uri}/state.json"
    with pytest.raises(UnreadableText, match=rf"{re.escape(path)}: expected JSON \(Expecting"):
        store.read_json(path)
    for name in ("state.json", "manifest.json"):
        uri = f"{artifact.uri}/{name}"
        store.files.write(uri, b"ab\xff")
        with pytest.raises(BadInput, match=rf"{re.escape(uri)}: expected text in UTF-8, found byte 0xff at 2"):
            store.read_text(uri)
    with pytest.raises(BadInput, match=r"manifest.json: expected text in UTF-8"):
        store.local(artifact)
    record_cached(store, PRODUCER, {"code": "c"}, artifact)
    result, why = find_cached(store, PRODUCER, {"code": "c"})
    assert result is None
    assert "manifest.json: expected text in UTF-8" in why


def test_the_cache_explains_hits_and_misses(store: ArtifactStore) -> None:
    parts = {"code": "c1", "parameters": "p1", "input examples": "e1"}
    result, why = find_cached(store, PRODUCER, parts)
    assert (result, why) == (None, "the task has not run before")
    artifact = write(store, {"a": "1"})
    record_cached(store, PRODUCER, parts, dataclasses.replace(artifact, properties={CUT_SHORT: "ann stopped it"}))
    assert find_cached(store, PRODUCER, parts) == (None, "the task has not run before")
    record_cached(store, PRODUCER, parts, artifact)

    later = dataclasses.replace(PRODUCER, run_id="later")
    result, why = find_cached(store, later, parts)
    assert result == dataclasses.replace(artifact, cached=True)
    assert why == f"same code, input examples, parameters as in run {PRODUCER.run_id}"
    result, why = find_cached(store, later, {**parts, "code": "c2", "input examples": "e2"})
    assert (result, why) == (None, f"changed since run {PRODUCER.run_id}: code, input examples")
    result, why = find_cached(store, dataclasses.replace(later, task_id="other"), parts)
    assert (result, why) == (None, "the task has not run before")

    remove(store, f"{artifact.uri}/a")
    result, why = find_cached(store, later, parts)
    assert (result, why) == (None, f"{artifact.uri}/a: it is in the manifest, but was deleted")
    write(store, {"a": "changed"})
    result, why = find_cached(store, later, parts)
    assert (result, why) == (None, f"{artifact.uri} has changed since it was recorded")
    overwrite(store, f"{artifact.uri}/manifest.json", "")
    assert find_cached(store, later, parts)[0] is None
    (entry,) = [name for name in names_in(store) if name.startswith("_cache") and "latest" not in name]
    overwrite(store, f"{store.root}/{entry}", "{")
    result, why = find_cached(store, later, parts)
    assert result is None
    assert "cannot be read" in why


@pytest.mark.slow
@pytest.mark.runtime
def test_ingest_step_writes_to_and_reads_from_s3(
    s3_store: ArtifactStore, runtime: Path, flights_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, options = s3_store.root.removesuffix("/hops"), s3_store.storage_options
    s3_store.files.remote().fs.put_file(str(flights_raw / "planes.csv"), f"{bucket}/raw/planes.csv")
    World(s3_store, monkeypatch).connect("s3")
    source = Source(f"{bucket}/raw/*.csv", storage_options=options)
    snapshot = _ingest("s3", s3_store, source)
    assert snapshot.rows["planes"] == RowCounts(3322, 3322)
    assert s3_store.verify(snapshot)
    assert pq.read_table(s3_store.local(snapshot) / "planes").num_rows == 3322
    again = _ingest("s3", s3_store, source, run_id="again")
    assert (again.uri, again.cached) == (snapshot.uri, True)
    copied = _ingest("s3", s3_store, Source(f"{snapshot.uri}/planes", storage_options=options), run_id="copied")
    assert copied.fingerprint == snapshot.fingerprint


@pytest.mark.slow
@pytest.mark.runtime
def test_full_disk_is_reported_and_leaves_nothing(
    small_folder: Path, runtime: Path, flights_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = World(ArtifactStore(str(small_folder)), monkeypatch).connect("small").store
    with refused("no space left on the device that holds", retried=True):
        _ingest("small", store, Source(str(flights_raw / "flights.csv.zip")))
    assert {name.partition("/")[0] for name in names_in(store)} == {"_runs", MARKER}


def test_full_disk_leaves_no_manifest_or_partial_text(small_folder: Path) -> None:
    store = ArtifactStore(str(small_folder))
    uri = store.uri("dag", "run", "task", "model")
    store.write_text(f"{store.root}/state.json", "before")
    with store.create(uri, "model", PRODUCER) as writer:
        (writer.path / "weights").write_bytes(bytes(1000))
        fill(small_folder)
        with pytest.raises(OSError, match="No space left on device"):
            writer.commit()
    assert not store.exists(uri)
    with pytest.raises(OSError, match="No space left on device"):
        store.write_text(f"{store.root}/state.json", "x" * 200_000)
    assert names_in(store) == ["filler", "state.json"]
    assert store.read_text(f"{store.root}/state.json") == "before"


@pytest.mark.slow
@pytest.mark.runtime
def test_committed_artifact_stays_without_space_for_its_cache_entry(
    small_folder: Path, tmp_path: Path, runtime: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.connect("small", store=str(small_folder))
    (tmp_path / "last_bytes.py").write_text(
        "def run(context, place):\n"
        "    with context.output() as writer:\n"
        "        artifact = writer.commit()\n"
        "    with open(place, 'wb', buffering=0) as stream:\n"
        "        try:\n"
        "            while True:\n"
        "                stream.write(bytes(4096))\n"
        "        except OSError:\n"
        "            return artifact\n"
    )
    store = ArtifactStore(str(small_folder))
    output, params = Output(store.address(PRODUCER, "model"), "model"), {"place": str(small_folder / "filler")}
    spec = StepSpec("step", "last_bytes:run", params, output=output, producer=PRODUCER, code_paths=(str(tmp_path),))
    artifact = Artifact.from_dict(RuntimeHook("small").run(spec).value)
    assert store.verify(artifact)
    assert [name for name in names_in(store) if name.startswith("_cache")] == []
    assert "not be found in the cache by the next run" in capsys.readouterr().out


def test_the_command_finds_all_damage_and_exits_with_1(world: World, hops: Any) -> None:
    store = world.connect("checked").store

    def verify(*named: str) -> tuple[int, str, str]:
        result: tuple[int, str, str] = hops("store", "verify", *named, "--hops-conn-id", "checked", "--output", "json")
        return result

    code, _, err = verify()
    assert (code, f"{store.root}: no artifact found" in err) == (1, True)
    whole = write(store, {"a": "1", "inner/manifest.json": "data"})
    producers = [dataclasses.replace(PRODUCER, run_id=f"run-{number}") for number in range(3)]
    changed, lost, unread = (write(store, {"a": "1", "b": "2", "c": "3"}, producer) for producer in producers)
    assert "4 artifacts in" in verify()[2]
    for name in ("a", "c"):
        overwrite(store, f"{changed.uri}/{name}", "x")
    remove(store, f"{lost.uri}/b")
    overwrite(store, f"{lost.uri}/added", "x")
    store.files.write(f"{unread.uri}/manifest.json", b"\xff")
    code, out, err = verify()
    assert code == 1
    results = {(row["artifact"], row["file"]): (row["expected"], row["found"]) for row in json.loads(out)}
    damaged = [(changed, "a"), (changed, "c"), (lost, "b"), (lost, "added"), (unread, "manifest.json")]
    assert set(results) == {(artifact.uri, name) for artifact, name in damaged}
    assert results[changed.uri, "a"] == tuple(f"SHA-256 {hashlib.sha256(text).hexdigest()}" for text in (b"1", b"x"))
    assert results[lost.uri, "b"][1] == "nothing"
    assert results[lost.uri, "added"] == ("nothing", "a file")
    assert "expected text in UTF-8" in results[unread.uri, "manifest.json"][1]
    assert "3 damaged" in err
    whole_run, damaged_run = "dag/manual__2026-01-01T00:00:00+00:00", "dag/run-1"
    assert [verify(named)[0] for named in (whole_run, whole.uri, damaged_run)] == [0, 0, 1]


def _ingest(connection: str, store: ArtifactStore, source: Source, run_id: str = "first") -> Artifact:
    producer = Producer("tests", run_id, "ingest")
    output, params = Output(store.address(producer, "snapshot"), "snapshot"), {"sources": {"planes": source.to_dict()}}
    spec = StepSpec("ingest", "airflow_hops.ml.ingest:run", params, output=output, producer=producer)
    return Artifact.from_dict(RuntimeHook(connection).run(spec).value)


@pytest.mark.parametrize(
    ("rows", "properties", "total"),
    [
        ({}, {"splits": ["train"]}, None),
        ({"train": RowCounts(9, 8, {"late": 1}), "eval": RowCounts(2, 2)}, {"splits": ["train", "eval"]}, (11, 10, 1)),
        (
            {"flights": RowCounts(12, 10, {"late": 2}), "train": RowCounts(8, 8), "eval": RowCounts(2, 2)},
            {"splits": ["train", "eval"]},
            (12, 10, 2),
        ),
        ({"flights": RowCounts(12, 12), "planes": RowCounts(3, 2, {"late": 1})}, {}, (15, 14, 1)),
    ],
    ids=["none", "splits", "a table and its splits", "tables"],
)
def test_every_row_is_counted_once(rows: dict[str, RowCounts], properties: dict[str, Any], total: Any) -> None:
    result = total_rows(rows, properties)
    assert (result and (result.rows_in, result.rows_out, result.rows_rejected)) == total


@pytest.mark.parametrize("mode", [None, 0o2770])
def test_new_store_is_private_and_existing_mode_is_unchanged(tmp_path: Path, mode: int | None) -> None:
    root = tmp_path / "above" / "store"
    if mode is not None:
        root.mkdir(parents=True)
        root.chmod(mode)
    umask = os.umask(0o022)
    try:
        store = ArtifactStore(str(root))
        producer = Producer("dag", "run", "task")
        with store.create(store.address(producer, "rows"), "rows", producer) as writer:
            (writer.path / "rows.txt").write_text("secret\n")
            writer.commit()
    finally:
        os.umask(umask)
    assert stat.S_IMODE(root.stat().st_mode) == (mode or 0o700)
    assert stat.S_IMODE((root / "dag").stat().st_mode) & 0o055 == 0o055, "what is below is as the umask says"


def test_a_missing_artifact_names_the_task_to_clear(store: ArtifactStore) -> None:
    artifact = write(store, {"a": "1"})
    store.remove_folder(artifact.uri)
    words = "clear the task 'train' of DAG 'dag' in run 'manual__2026-01-01T00:00:00+00:00', with its downstream tasks"
    for use in (store.local, store.find):
        with pytest.raises(BadInput, match=re.escape(words)):
            use(artifact)
    with pytest.raises(
        BadInput, match=re.escape("clear the task 'schema' of DAG 'flights', with its downstream tasks")
    ):
        store.manifest(store.frozen_schema("flights", "schema"))


FIELD = "cannot be used .*; correct the field 'store' of the connection of type hops"


def test_unwritable_store_names_the_field(tmp_path: Path, s3_store: ArtifactStore) -> None:
    (tmp_path / "file").touch()
    options = s3_store.storage_options
    unreachable = {**options, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    for root, settings, error in (
        (str(tmp_path / "file" / "hops"), {}, BadInput),
        ("/proc/none/hops", {}, BadInput),
        ("s3://no-such-bucket-at-all/hops", options, BadInput),
        ("s3://bucket/hops", unreachable, HopsError),
    ):
        store = ArtifactStore(root, storage_options=settings, local_cache=str(tmp_path / "cache"))
        with pytest.raises(HopsError, match=f"the artifact store {re.escape(store.root)} {FIELD}") as refused:
            write(store, {"a": "1"})
        assert type(refused.value) is error


def test_step_with_an_unusable_store_is_not_retried(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    world.connect("small", store=str(tmp_path / "file" / "hops"))
    hook = RuntimeHook("small")
    output = Output(world.store.uri("d", "r", "t", "model"), "model")
    with pytest.raises(BadInput, match=FIELD):
        hook.run(StepSpec("step", "nowhere:nothing", output=output, producer=PRODUCER))


OPERATIONS = {
    "read": lambda store: store.read_text(f"{store.root}/_models/flights.json"),
    "record": lambda store: read_record(store, "flights"),
    "training": lambda store: read_training(store, "dag", "0" * 32),
    "owners": lambda store: owners_of(store, "dataset", "flights"),
    "names": lambda store: store.names(f"{store.root}/_trainings"),
    "exists": lambda store: store.exists(f"{store.root}/d/r/t/model"),
    "manifest": lambda store: store.manifest(f"{store.root}/d/r/t/model"),
    "artifacts": lambda store: store.artifacts(store.root),
    "write": lambda store: store.write_text(f"{store.root}/_models/flights.json", "{}"),
    "create": lambda store: store.create_text(f"{store.root}/_owners/a.json", "{}"),
    "lock": lambda store: store.lock(f"{store.root}/_trainings"),
    "artifact": lambda store: write(store, {"a": "1"}),
}


@pytest.mark.parametrize("place", ["renamed", "empty", "lost+found", "photos/2026"])
def test_nothing_is_missing_from_a_store_that_is_away(any_store: ArtifactStore, place: str) -> None:
    write(any_store, {"a": "1"})
    opened = ArtifactStore(any_store.root, storage_options=any_store.storage_options)
    opened.check()  # also a store that a version without the marker made
    assert MARKER not in names_in(any_store)  # which a look leaves as it is
    opened.make()
    assert MARKER in names_in(any_store)
    assert read_record(opened, "flights") == ModelRecord()
    if any_store.is_local:
        root = path_of(any_store.root)
        root.rename(root.with_name("moved"))
        if place != "renamed":
            (root / place).mkdir(parents=True) if place != "empty" else root.mkdir()
    else:
        any_store.files.remote().fs.rm(any_store.root, recursive=True)
    for operation in OPERATIONS.values():
        with pytest.raises(StoreAway, match="is away, or new"):
            operation(opened)
    with pytest.raises(StoreAway):
        ArtifactStore(any_store.root, storage_options=any_store.storage_options).check()
    assert names_in(any_store) == []
    if any_store.is_local and place == "empty":
        root.rmdir()
        root.with_name("moved").rename(root)
        assert opened.artifacts(opened.root)
