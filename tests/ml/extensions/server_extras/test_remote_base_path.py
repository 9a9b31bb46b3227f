"""Models whose base path is in a store: what is served, and what happens when something is wrong with the store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from server_process import Publish, ServerProcess, Start, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.extensions.server_extras.serving import remote_storage
from airflow_hops.extensions.server_extras.serving.model_cache import ModelCache
from airflow_hops.ml.model_server.version_folders import RemoteFolders
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.catalog import Catalog
from tests.ml.conftest import Bucket
from tests.ml.serving.test_models import ROW, loading

POLL = {"file_system_poll_wait_seconds": 0.2}


@pytest.fixture
def publish_remote(bucket: Bucket, saved_models: Path) -> Callable[[str, int], None]:
    """Publishes a version in the bucket as a deploy does."""
    folders = RemoteFolders(bucket.url, bucket.options)

    def publish(model: str, version: int) -> None:
        folders.publish(saved_models / model / str(version), model, version, f"{model}-{version}")

    return publish


def copies(cache: Path) -> list[str]:
    """Versions of which there is a copy."""
    return sorted(path.name.partition("-")[0] for path in cache.glob("hops-models-*/*"))


def score(server: ServerProcess, path: str = "flights") -> float:
    return float(server.predict(path, ROW)["predictions"][0]["score"][0])


def test_replaced_version_of_a_store_leaves_no_copy(
    start_server: Start, bucket: Bucket, publish_remote: Any, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    publish_remote("flights", 1)
    server = start_server(model_name="flights", model_base_path=f"{bucket.url}/flights", model_cache_path=cache, **POLL)
    assert server.versions("flights") == {1: "AVAILABLE"}
    with ModelServerClient(server.address) as client:
        answer = client.predict("flights", {"carrier": ["UA"], "distance": [[5.0]], "hour": [7]})
    answered = [answer.version, answer.outputs["score"].tolist(), answer.outputs["carrier_id"].tolist()]
    assert answered == [1, [[1012.0]], [2]]
    assert f"{bucket.url}/flights/1 copied in" in server.log()
    assert "botocore" not in server.log(), "what libraries tell of each request is not for this log"
    assert "loaded in" in server.log() and f"from {bucket.url}/flights/1" in server.log()
    assert copies(cache) == ["1"]

    publish_remote("flights", 2)
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"})
    assert score(server) == 2000.0
    wait_for(lambda: copies(cache) == ["2"], server.log)
    assert server.terminate() == 0
    assert list(cache.iterdir()) == []


def test_faulty_base_path_is_reported_without_affecting_others(
    start_server: Start, bucket: Bucket, publish_remote: Any, publish: Publish, tmp_path: Path
) -> None:
    publish_remote("vectors", 7)
    bucket.fs.pipe_file(f"{bucket.url}/corrupt/1/saved_model.pb", b"this is no protobuf")
    bucket.fs.pipe_file(f"{bucket.url}/empty/1/readme.txt", b"no model")
    bucket.fs.pipe_file(f"{bucket.url}/named/latest/saved_model.pb", b"no number")
    publish("flights", 1, tmp_path / "flights")
    config = write_models(
        tmp_path,
        **{name: f"{bucket.url}/{name}" for name in ("vectors", "corrupt", "empty", "named", "nothing")},
        nowhere=f"{bucket.url}-nowhere/models",
        google="gs://bucket/models",
        unknown="nosuch://bucket/models",
        folder=f"local://{tmp_path}/flights",
        flights=tmp_path / "flights",
    )
    server = start_server(model_config_file=config, max_num_load_retries=0, **POLL)
    assert server.versions("flights") == server.versions("folder") == {1: "AVAILABLE"}
    server.wait_for_versions("vectors", {7: "AVAILABLE"})
    assert server.versions("corrupt") == {1: "END"}
    status = server.call("/v1/models/corrupt/versions/1")[1]["model_version_status"][0]["status"]
    assert "Cannot parse file" in status["error_message"]
    assert f"{bucket.url}/corrupt/1/saved_model.pb" in status["error_message"]
    no_bucket, no_library = "The specified bucket does not exist", "Please install gcsfs to access Google Storage"
    for problem in (
        f"Could not find SavedModel .pb or .pbtxt at supplied export directory path: {bucket.url}/empty/1.",
        f"No versions of servable named found under base path {bucket.url}/named.",
        f"Could not find base path {bucket.url}/nothing for servable nothing: No such file or directory",
        f"Could not find base path {bucket.url}-nowhere/models for servable nowhere: {no_bucket}",
        f"Could not find base path gs://bucket/models for servable google: {no_library}",
        "Could not find base path nosuch://bucket/models for servable unknown: Protocol not known: nosuch",
    ):
        assert server.log().count(problem) == 1, server.log()


def test_full_disk_fails_the_version_and_leaves_no_partial_copy(
    small_folder: Path, start_server: Start, bucket: Bucket, publish_remote: Any
) -> None:
    publish_remote("flights", 2)
    flags = {"model_name": "flights", "model_base_path": f"{bucket.url}/flights", "model_cache_path": small_folder}
    server = start_server(**flags, max_num_load_retries=0)
    assert server.versions("flights") == {2: "AVAILABLE"}
    bucket.fs.pipe_file(f"{bucket.url}/flights/3/assets/large.txt", bytes(1 << 20))
    bucket.fs.pipe_file(f"{bucket.url}/flights/3/saved_model.pb", b"no model")
    server.wait_for_versions("flights", {3: "END", 2: "AVAILABLE"})
    status = server.call("/v1/models/flights/versions/3")[1]["model_version_status"][0]["status"]
    assert status["error_code"] == "RESOURCE_EXHAUSTED"
    assert f"Could not copy {bucket.url}/flights/3 to this machine (--model_cache_path): " in status["error_message"]
    assert "No space left on device" in status["error_message"]
    assert copies(small_folder) == ["2"]
    assert score(server) == 2000.0


def models(**base_paths: object) -> Any:
    config = ModelServerConfig()
    for name, base_path in base_paths.items():
        config.model_config_list.config.add(name=name, base_path=str(base_path))
    return config


@pytest.fixture
def memory() -> Iterator[Any]:
    """The store ``memory://`` of this process, empty."""
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def store(memory: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The store ``memory://`` in this process: lost while the event is not set, and ``memory://silent`` for ever."""
    there, ended = threading.Event(), threading.Event()
    kind, ls = type(memory), type(memory).ls

    def answer(self: Any, path: str, *given: Any, **options: Any) -> Any:
        if "silent" in path:
            ended.wait()
        if not there.is_set():
            raise OSError("the store is lost")
        return ls(self, path, *given, **options)

    monkeypatch.setattr(kind, "ls", answer)
    monkeypatch.setattr(remote_storage, "_SLOW_S", 0.3)
    there.set()
    yield there
    ended.set()


def upload(memory: Any, saved_models: Path, version: int, names: str = "**/*") -> None:
    """Uploads the files of a version of flights, or some of them."""
    folder = saved_models / "flights" / str(version)
    for file in folder.glob(names):
        if file.is_file():
            memory.pipe_file(f"/lost/flights/{version}/{file.relative_to(folder)}", file.read_bytes())


def loaded(catalog: Catalog, name: str = "flights") -> list[int]:
    return list(catalog.views[name].servables) if name in catalog.views else []


def test_uploading_version_waits_and_stalled_upload_is_retried(
    memory: Any, saved_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upload(memory, saved_models, 1)
    with loading(models(flights="memory://lost/flights")) as (_, catalog):
        wait_for(lambda: loaded(catalog) == [1])
        upload(memory, saved_models, 2, "saved_model.pb")
        parts = itertools.count()

        def is_seen() -> bool:
            memory.pipe_file(f"/lost/flights/2/assets/{next(parts)}.txt", b"words")
            assert loaded(catalog) == [1]
            return "Version 2 of servable flights is still being written; it is loaded after" in caplog.text

        wait_for(is_seen, lambda: caplog.text)
        upload(memory, saved_models, 2, "variables/*")
        wait_for(lambda: loaded(catalog) == [2], lambda: caplog.text)
        assert "did not load" not in caplog.text
        upload(memory, saved_models, 3, "saved_model.pb")
        wait_for(lambda: "version 3 did not load" in caplog.text, lambda: caplog.text)
        assert loaded(catalog) == [2]
        upload(memory, saved_models, 3, "variables/*")
        wait_for(lambda: loaded(catalog) == [3], lambda: caplog.text)


def test_lost_or_silent_store_unloads_nothing_and_blocks_no_reload(
    memory: Any, store: threading.Event, saved_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upload(memory, saved_models, 1)
    places = {"flights": "memory://lost/flights", "silent": "memory://silent/models"}
    local = saved_models / "fragile"
    with loading(models(**places, fragile=local)) as (loader, catalog):
        assert loaded(catalog, "fragile") == [1]
        wait_for(lambda: loaded(catalog) == [1], "the version of the store")
        store.clear()
        problem = "Could not find base path memory://lost/flights for servable flights: "
        wait_for(lambda: problem in caplog.text, lambda: caplog.text)
        loader.reload(models(**places, fragile=local, vectors=saved_models / "vectors"))
        assert (loaded(catalog, "vectors"), loaded(catalog)) == ([7], [1])
        assert caplog.text.count(problem) == 1
        store.set()
        upload(memory, saved_models, 2)
        wait_for(lambda: loaded(catalog) == [2], lambda: caplog.text)


def test_slow_poll_fails_and_the_next_one_counts(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe_file("/models/1/saved_model.pb", b"m")
    answers, ls = threading.Event(), type(memory).ls
    monkeypatch.setattr(type(memory), "ls", lambda *given, **options: answers.wait() and ls(*given, **options))
    monkeypatch.setattr(remote_storage, "_SLOW_S", 0.5)
    monkeypatch.setattr(remote_storage, "_LONGEST_S", 1.0)
    changed, problems = threading.Condition(), []
    looks = remote_storage.RemoteLooks(changed, ModelCache(tmp_path), lambda path, found: problems.append(found))

    def ask() -> list[Any]:
        with changed:
            looks.ask({"memory://models"})
        return problems

    ask()
    assert looks.awaited
    wait_for(lambda: not looks.awaited, "the poll is slow")
    assert problems == []
    wait_for(ask, "the poll has failed")
    assert (str(problems[0]), looks.awaited) == ("no answer for 1 s", False)
    answers.set()
    with changed:
        assert changed.wait_for(lambda: len(problems) > 1, 60)
    assert [version.number for version in problems[1]] == [1]


def test_version_changing_during_copy_is_abandoned(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory
    files = {"1/saved_model.pb": b"m", "1/assets/nothing": b"", "1/variables/v": bytes(range(256)) * 40_000}
    for name, content in files.items():
        store.pipe_file(f"/models/{name}", content)
    cache = ModelCache(tmp_path)
    base_path = remote_storage.RemoteBasePath("memory://models/", cache)

    def look():
        (version,) = base_path.look()
        return version

    def copy(version):
        try:
            copied = base_path.copy(version)
        except ServingError as error:
            return [error.code.name, error.message]
        same = all((copied / name.removeprefix("1/")).read_bytes() == content for name, content in files.items())
        cache.remove(copied)
        return same

    first = look()
    monkeypatch.setattr(remote_storage, "QUIET_S", 0.0)
    second = look()
    monkeypatch.setattr(remote_storage, "QUIET_S", 60.0)
    results = [first.place, first.quiet, second.quiet, copy(second)]
    store.pipe_file("/models/1/variables/v", b"other")
    results += [look().quiet, copy(second)]
    changed = look()
    store.pipe_file("/models/1/assets/more", b"more")
    results.append(copy(changed))
    stalled = threading.Event()
    monkeypatch.setattr(remote_storage, "_STALLED_S", 0.2)
    monkeypatch.setattr(type(store), "cat_file", lambda *arguments, **options: stalled.wait())
    results += [copy(look()), [path.name for path in tmp_path.glob("*/*")]]
    stalled.set()
    assert results == [
        "memory://models/1",
        False,
        True,
        True,
        False,
        ["ABORTED", "/models/1/variables/v changed while it was read"],
        ["ABORTED", "memory://models/1 changed while it was read"],
        [
            "UNAVAILABLE",
            "Could not copy memory://models/1 to this machine (--model_cache_path): "
            "TimeoutError: nothing came for 0.2 s",
        ],
        [],
    ]


def test_listing_of_a_model_skips_markers_of_folders(bucket: Bucket, tmp_path: Path) -> None:
    name = bucket.url.removeprefix("s3://")
    for key in ("m/", "m/1/", "m/1/variables_$folder$", "m/1/variables", "m/1/variables/index", "m/1/saved_model.pb"):
        content = b"m" if key.endswith(("index", "pb")) else b""
        bucket.fs.call_s3("put_object", Bucket=name, Key=key, Body=content)
    (version,) = remote_storage.RemoteBasePath(f"{bucket.url}/m", ModelCache(tmp_path / "cache")).look()
    assert [file.name for file in version.files] == ["saved_model.pb", "variables/index"]
