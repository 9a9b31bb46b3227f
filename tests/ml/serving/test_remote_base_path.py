"""Models whose base path is in a store: what is served, and what happens when something is wrong with the store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from server_process import REPOSITORY, Publish, ServerProcess, Start, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models import remote_storage
from airflow_hops.serving.models.model_cache import ModelCache

from .test_models import ROW
from .test_workers import wait_for_two, workers

POLL = {"file_system_poll_wait_seconds": 0.2}


class Bucket:
    """A bucket, whose models are published as a deploy publishes them."""

    def __init__(self, endpoint: str, name: str, saved_models: Path) -> None:
        import s3fs

        from airflow_hops.ml.model_server.version_folders import RemoteFolders

        self.url = f"s3://{name}"
        self.fs = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False)
        self.fs.mkdir(name)
        self._saved_models = saved_models
        self._folders = RemoteFolders(self.url, {"endpoint_url": endpoint, "use_listings_cache": False})

    def publish(self, model: str, version: int) -> None:
        folder = self._saved_models / model / str(version)
        self._folders.publish(folder, model, version, f"{model}-{version}")

    def upload(self, model: str, version: int, *names: str) -> None:
        """Uploads some files of a version."""
        for name in names:
            source = self._saved_models / model / str(version) / name
            self.fs.pipe_file(f"{self.url}/{model}/{version}/{name}", source.read_bytes())


def bucket_name(folder: Path) -> str:
    return folder.name.replace("_", "-").lower()[:60]


@pytest.fixture
def bucket(s3_endpoint: str, saved_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket that servers find by their environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    return Bucket(s3_endpoint, bucket_name(tmp_path), saved_models)


def copies(cache: Path) -> list[str]:
    """Versions of which there is a copy."""
    return sorted(path.name.partition("-")[0] for path in cache.glob("hops-models-*/*"))


def score(server: ServerProcess, path: str = "flights") -> float:
    return float(server.predict(path, ROW)["predictions"][0]["score"][0])


def test_replaced_version_of_a_store_leaves_no_copy(start_server: Start, bucket: Bucket, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    bucket.publish("flights", 1)
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

    bucket.publish("flights", 2)
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"})
    assert score(server) == 2000.0
    wait_for(lambda: copies(cache) == ["2"], server.log)
    assert server.terminate() == 0
    assert list(cache.iterdir()) == []


def test_uploading_version_waits_and_stalled_upload_is_retried(start_server: Start, bucket: Bucket) -> None:
    bucket.publish("flights", 1)
    server = start_server(model_name="flights", model_base_path=f"{bucket.url}/flights", **POLL)
    variables = ("variables/variables.index", "variables/variables.data-00000-of-00001")
    bucket.upload("flights", 2, "saved_model.pb")
    for part in range(10):
        bucket.fs.pipe_file(f"{bucket.url}/flights/2/assets/{part}.txt", b"words")
        assert server.versions("flights") == {1: "AVAILABLE"}
        time.sleep(0.2)
    bucket.upload("flights", 2, *variables)
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"})
    assert "Version 2 of servable flights is still being written; it is loaded after" in server.log()
    assert "did not load" not in server.log()

    bucket.upload("flights", 3, "saved_model.pb")
    wait_for(lambda: "version 3 did not load" in server.log(), server.log)
    assert score(server) == 2000.0
    bucket.upload("flights", 3, *variables)
    server.wait_for_versions("flights", {3: "AVAILABLE", 2: "END", 1: "END"})


def test_faulty_base_path_is_reported_without_affecting_others(
    start_server: Start, bucket: Bucket, publish: Publish, tmp_path: Path
) -> None:
    bucket.publish("vectors", 7)
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
    assert server.versions("vectors") == {7: "AVAILABLE"}
    assert server.versions("corrupt") == {1: "END"}
    status = server.call("/v1/models/corrupt/versions/1")[1]["model_version_status"][0]["status"]
    assert "Cannot parse file" in status["error_message"]
    assert f"{bucket.url}/corrupt/1/saved_model.pb" in status["error_message"]
    no_bucket, no_library = "The specified bucket does not exist", "Please install gcsfs to access Google Storage"
    for said in (
        f"Could not find SavedModel .pb or .pbtxt at supplied export directory path: {bucket.url}/empty/1.",
        f"No versions of servable named found under base path {bucket.url}/named.",
        f"Could not find base path {bucket.url}/nothing for servable nothing: No such file or directory",
        f"Could not find base path {bucket.url}-nowhere/models for servable nowhere: {no_bucket}",
        f"Could not find base path gs://bucket/models for servable google: {no_library}",
        "Could not find base path nosuch://bucket/models for servable unknown: Protocol not known: nosuch",
    ):
        assert server.log().count(said) == 1, server.log()


def test_full_disk_fails_the_version_and_leaves_no_partial_copy(
    small_folder: Path, start_server: Start, bucket: Bucket
) -> None:
    bucket.publish("flights", 2)
    flags = {"model_name": "flights", "model_base_path": f"{bucket.url}/flights", "model_cache_path": small_folder}
    server = start_server(**flags, max_num_load_retries=0)
    assert server.versions("flights") == {2: "AVAILABLE"}
    bucket.fs.pipe_file(f"{bucket.url}/flights/3/assets/large.txt", bytes(1 << 20))
    bucket.upload("flights", 3, "saved_model.pb")
    server.wait_for_versions("flights", {3: "END", 2: "AVAILABLE"})
    status = server.call("/v1/models/flights/versions/3")[1]["model_version_status"][0]["status"]
    assert status["error_code"] == "RESOURCE_EXHAUSTED"
    assert f"Could not copy {bucket.url}/flights/3 to this machine (--model_cache_path): " in status["error_message"]
    assert "No space left on device" in status["error_message"]
    assert copies(small_folder) == ["2"]
    assert score(server) == 2000.0


def reload_s(server: ServerProcess, models: dict[str, str]) -> float:
    """Seconds that a reload of the config by RPC takes."""
    config = ModelServerConfig()
    for name, base_path in models.items():
        config.model_config_list.config.add(name=name, base_path=base_path)
    with ModelServerClient(server.address) as client:
        started_s = time.monotonic()
        client.reload_config(config, timeout_s=60)
        return time.monotonic() - started_s


@pytest.fixture
def own_s3(monkeypatch: pytest.MonkeyPatch, s3_endpoint: str, tmp_path: Path) -> Iterator[Any]:
    """An S3 API that a test may stop and start, with the session's credentials."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    command = [REPOSITORY / ".venv/bin/moto_server", "--host", "127.0.0.1", "--port", str(port)]
    servers: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "moto.log").open("ab") as log:
            servers.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the S3 API is there")
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
        server.wait()


def test_lost_store_unloads_nothing_and_blocks_no_reload(
    start_server: Start, own_s3: Callable[[], Any], saved_models: Path, tmp_path: Path
) -> None:
    s3 = own_s3()
    bucket = Bucket(os.environ["AWS_ENDPOINT_URL"], bucket_name(tmp_path), saved_models)
    bucket.publish("flights", 1)
    local = str(saved_models / "fragile")
    server = start_server(model_name="fragile", model_base_path=local, **POLL)
    models = {"flights": f"{bucket.url}/flights", "fragile": local}
    reload_s(server, models)
    assert server.versions("flights") == {1: "AVAILABLE"}
    assert score(server) == 1000.0

    s3.kill()
    s3.wait()
    said = f"Could not find base path {bucket.url}/flights for servable flights: "
    wait_for(lambda: said in server.log(), server.log, 60)
    more = {**models, "vectors": str(saved_models / "vectors")}
    assert reload_s(server, more) < 5
    assert server.versions("vectors") == {7: "AVAILABLE"}
    time.sleep(2)
    assert server.log().count(said) == 1
    assert server.versions("flights") == {1: "AVAILABLE"}
    assert score(server) == 1000.0

    own_s3()
    bucket.publish("flights", 2)
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"}, 60)


def test_silent_store_delays_readiness_at_most_ten_seconds(
    start_server: Start, saved_models: Path, tmp_path: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        away = f"http://127.0.0.1:{silent.getsockname()[1]}/models"
        config = write_models(tmp_path, away=away, vectors=saved_models / "vectors")
        server = start_server(model_config_file=config, wait=False, **POLL)
        wait_for(lambda: "model vectors version 7 loaded" in server.log(), server.log, 60)
        started_s = time.monotonic()
        server.wait_until_ready()
        assert time.monotonic() - started_s < 11
        assert server.versions("vectors") == {7: "AVAILABLE"}
        models = {"away": away, "vectors": str(saved_models / "vectors"), "fragile": str(saved_models / "fragile")}
        assert reload_s(server, models) < 5
        assert server.versions("fragile") == {1: "AVAILABLE"}


def test_slow_poll_fails_and_the_next_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    store.pipe_file("/models/1/saved_model.pb", b"m")
    answers = threading.Event()
    ls = type(store).ls
    monkeypatch.setattr(type(store), "ls", lambda *given, **options: answers.wait() and ls(*given, **options))
    monkeypatch.setattr(remote_storage, "_SLOW_S", 0.1)
    monkeypatch.setattr(remote_storage, "_LONGEST_S", 0.2)
    changed, said = threading.Condition(), []
    looks = remote_storage.RemoteLooks(changed, ModelCache(tmp_path), lambda path, found: said.append(found))
    result = []
    for wait_s in (0.15, 0.15, 0.0):
        with changed:
            looks.ask({"memory://models"})
            result.append([looks.awaited, len(said)])
        time.sleep(wait_s)
    answers.set()
    with changed:
        changed.wait_for(lambda: len(said) > 1, 10)
        result += [looks.awaited, str(said[0]), [version.number for version in said[1]], len(said)]
    assert result == [[True, 0], [False, 0], [False, 1], False, "no answer for 0.2 s", [1], 2]


def test_workers_have_copies_that_end_with_them(start_server: Start, bucket: Bucket, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    bucket.publish("flights", 1)
    flags = {"model_name": "flights", "model_base_path": f"{bucket.url}/flights", "model_cache_path": cache, **POLL}
    server = start_server(workers=2, **flags)
    assert copies(cache) == ["1", "1"]
    killed = min(workers(server))
    os.kill(killed, signal.SIGKILL)
    wait_for_two(server, {killed})
    bucket.publish("flights", 2)
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"})
    assert {score(server) for _ in range(24)} == {2000.0}
    wait_for(lambda: copies(cache) == ["2", "2"], server.log)
    assert server.terminate() == 0
    assert list(cache.iterdir()) == []


def test_version_changing_during_copy_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
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
    time.sleep(1.1)
    second = look()
    results = [first.place, first.quiet, second.quiet, copy(second)]
    store.pipe_file("/models/1/variables/v", b"other")
    results += [look().quiet, copy(second)]
    changed = look()
    store.pipe_file("/models/1/assets/more", b"more")
    results.append(copy(changed))
    monkeypatch.setattr(remote_storage, "_STALLED_S", 0.2)
    monkeypatch.setattr(type(store), "cat_file", lambda *arguments, **options: time.sleep(2))
    results += [copy(look()), [path.name for path in tmp_path.glob("*/*")]]
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
