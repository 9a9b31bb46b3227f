"""Which versions are loaded: policies, polling, reload, labels, and versions that do not load."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from campaigns import campaign
from server_process import Publish, Start, versions, write_models
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc
from waiting import wait_for

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.loader import Loader
from airflow_hops.serving.models.memory import give_back
from airflow_hops.serving.models.traffic import TrafficTable

ROW = {"instances": [{"carrier": "AA", "distance": [0.0], "hour": 0}]}


@contextlib.contextmanager
def loading(config: Any) -> Iterator[tuple[Loader, Catalog]]:
    """A loader in this process, after its first round, and what it has loaded."""
    catalog = Catalog(TrafficTable(None))
    flags = Flags(file_system_poll_wait_seconds=0.05)
    loader = Loader(catalog, functools.partial(open_model, options=ModelOptions()), flags, config)
    loader.start()
    loader.wait_for_first_round()
    yield loader, catalog
    loader.stop()


def test_folder_without_saved_model_is_not_a_version(start_server: Start, publish: Publish, tmp_path: Path) -> None:
    base_path = tmp_path / "flights"
    publish("flights", 1, base_path)
    publish("flights", 2, tmp_path / "elsewhere").rename(base_path / "2.copying")
    (base_path / "3" / "variables").mkdir(parents=True)
    (base_path / "latest").mkdir()
    # One more than a version can be.
    publish("flights", 2, base_path, as_version=2**63)
    vectors = tmp_path / "vectors"
    publish("vectors", 7, vectors).rename(vectors / "007")
    publish("vectors", 7, vectors)
    server = start_server(
        model_config_file=write_models(tmp_path, flights=f"file://{base_path}", vectors=vectors),
        file_system_poll_wait_seconds=0.1,
    )
    assert server.versions("flights") == {1: "AVAILABLE"}
    assert (
        f"Could not find SavedModel .pb or .pbtxt at supplied export directory path: file://{base_path}/3."
        in server.log()
    )
    assert f"the same version: {vectors}/007, which is served, and {vectors}/7, which is ignored" in server.log()


def test_version_that_is_still_being_written_waits(start_server: Start, publish: Publish, tmp_path: Path) -> None:
    base_path = tmp_path / "flights"
    publish("flights", 1, base_path)
    server = start_server(model_name="flights", model_base_path=base_path, file_system_poll_wait_seconds=0.1)
    whole = publish("flights", 2, tmp_path / "elsewhere")
    # Everything that the loader asks for is there from the start; an asset grows for longer than a look takes.
    vocabulary = base_path / "2" / "assets" / "vocabulary.txt"
    vocabulary.parent.mkdir(parents=True)
    for name in ("saved_model.pb", "variables"):
        copy = shutil.copytree if (whole / name).is_dir() else shutil.copy
        copy(whole / name, base_path / "2" / name)

    def is_seen() -> bool:
        with vocabulary.open("a") as file:
            file.write("word\n")
        return "Version 2 of servable flights is still being written; it is loaded after" in server.log()

    wait_for(is_seen, server.log)
    for _ in range(10):
        is_seen()
        assert server.versions("flights") == {1: "AVAILABLE"}
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"})
    # One whose copy is interrupted is tried, and again once it is complete.
    (base_path / "3").mkdir()
    shutil.copy(whole / "saved_model.pb", base_path / "3")
    server.wait_for_versions("flights", {3: "LOADING", 2: "AVAILABLE", 1: "END"})
    assert server.predict("flights", ROW)["predictions"][0]["score"] == [2000.0]
    shutil.copytree(whole, base_path / "3", dirs_exist_ok=True)
    server.wait_for_versions("flights", {3: "AVAILABLE", 2: "END", 1: "END"})


def test_corrupt_version_and_missing_base_path_do_not_stop_the_others(
    start_server: Start, publish: Publish, saved_models: Path, tmp_path: Path
) -> None:
    base_path = tmp_path / "flights"
    publish("flights", 1, base_path)
    (publish("flights", 2, base_path) / "saved_model.pb").write_bytes(b"this is no protobuf")
    vectors = saved_models / "vectors"
    config = write_models(tmp_path, flights=(base_path, versions()), missing=tmp_path / "nowhere", vectors=vectors)
    server = start_server(model_config_file=config, max_num_load_retries=0)
    assert server.versions("flights") == {2: "END", 1: "AVAILABLE"}
    assert server.versions("vectors") == {7: "AVAILABLE"}
    assert server.versions("missing") == {}
    status = server.call("/v1/models/flights/versions/2")[1]["model_version_status"][0]["status"]
    assert status["error_code"] != "OK"
    assert "Cannot parse file" in status["error_message"]
    assert server.predict("flights", ROW)["predictions"][0]["score"] == [1000.0]
    assert f"Could not find base path {tmp_path}/nowhere for servable missing" in server.log()
    with ModelServerClient(server.address) as client:
        client.wait_until_available("flights", 1, 10)
        refused = f"model server {server.address} does not load model 'flights' version 2: .*Cannot parse file"
        with pytest.raises(ModelServerError, match=refused):
            client.wait_until_available("flights", 2, 10)
        unseen = "version 5 is not available after 0.3 s \\(the server has not seen it\\)"
        with pytest.raises(ModelServerError, match=unseen):
            client.wait_until_available("flights", 5, 0.3)


def test_version_policies_select_loaded_versions(saved_models: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ModelServerConfig()
    for name in ("latest", "two", "all", "specific"):
        config.model_config_list.config.add(name=name, base_path=str(saved_models / "flights"))
    _, two, every, specific = (model.model_version_policy for model in config.model_config_list.config)
    two.latest.num_versions = 2
    every.all.SetInParent()
    specific.specific.versions.extend([1, 3, 8])
    with loading(config) as (_, catalog):
        loaded = {name: sorted(view.servables) for name, view in catalog.views.items()}
    assert loaded == {"latest": [3], "two": [2, 3], "all": [1, 2, 3], "specific": [1, 3]}
    assert "Version 8 of servable specific, which was requested" in caplog.text


def test_polled_config_replaces_everything_unless_invalid(
    start_server: Start, saved_models: Path, tmp_path: Path
) -> None:
    config = write_models(tmp_path, flights=saved_models / "flights", vectors=saved_models / "vectors")
    server = start_server(model_config_file=config, model_config_file_poll_wait_seconds=0.1)
    config.write_text("model_config_list { config { nome: 'flights' } }")
    wait_for(lambda: "model config file ignored" in server.log(), server.log)
    assert (
        f"Invalid protobuf file: '{config}': Error parsing text-format tensorflow.serving.ModelServerConfig"
        in server.log()
    )
    assert 'no field named "nome"' in server.log()
    assert server.versions("vectors") == {7: "AVAILABLE"}
    write_models(tmp_path, flights=saved_models / "flights")
    server.wait_for_versions("vectors", {7: "END"})
    assert server.error("/v1/models/vectors:predict", {"instances": [[1, 2, 3]]})[0] == 404
    assert server.versions("flights") == {3: "AVAILABLE"}


def test_polled_label_follows_as_soon_as_its_version_is_available(
    start_server: Start, publish: Publish, tmp_path: Path
) -> None:
    """TensorFlow Serving refuses a label on a version that is still loading; a polled file has nobody to refuse."""
    base_path = tmp_path / "flights"
    publish("flights", 1, base_path)
    policy = versions() + " version_labels { key: 'live' value: "
    config = write_models(tmp_path, flights=(base_path, policy + "1 }"))
    server = start_server(
        model_config_file=config, model_config_file_poll_wait_seconds=0.1, file_system_poll_wait_seconds=0.1
    )
    wait_for(lambda: server.call("/v1/models/flights/labels/live:predict", ROW)[0] == 200, server.log)
    write_models(tmp_path, flights=(base_path, policy + "2 }"))
    wait_for(lambda: f"model config file {config} changed: applied" in server.log(), server.log)
    assert server.predict("flights/labels/live", ROW)["predictions"][0]["score"] == [1000.0]
    publish("flights", 2, base_path)
    server.wait_for_versions("flights", {1: "AVAILABLE", 2: "AVAILABLE"})
    assert server.predict("flights/labels/live", ROW)["predictions"][0]["score"] == [2000.0]


def test_reload_by_rpc_waits_for_the_models_and_refuses_labels_of_unavailable_versions(
    start_server: Start, saved_models: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"rubbish")
    server = start_server(model_name="flights", model_base_path=saved_models / "flights")
    flights = str(saved_models / "flights")
    vectors = str(saved_models / "vectors")
    broken = str(tmp_path / "broken")
    service = model_service_pb2_grpc.ModelServiceStub(grpc.insecure_channel(server.address))

    def reload(*models, custom=False):
        request = model_management_pb2.ReloadConfigRequest()
        if custom:
            request.config.custom_model_config.SetInParent()
        for name, base_path, labels in models:
            model = request.config.model_config_list.config.add(name=name, base_path=base_path)
            model.model_version_policy.all.SetInParent()
            model.version_labels.update(labels)
        try:
            return service.HandleReloadConfigRequest(request).status.error_code
        except grpc.RpcError as error:
            return [error.code().name, error.details()]

    answers = [
        reload(("vectors", vectors, {}), ("flights", flights, {"stable": 1})),
        reload(("flights", flights, {"stable": 1, "odd": 9})),
        reload(("flights", flights, {}), ("flights", flights, {})),
        reload(("flights", "relative", {})),
        reload(("broken", broken, {}), ("flights", flights, {"stable": 1})),
        reload(custom=True),
    ]
    assert answers[0] == 0
    assert answers[1] == [
        "FAILED_PRECONDITION",
        "Request to assign label odd to version 9 of model flights, which is not currently available for inference",
    ]
    assert answers[2][0] == "INVALID_ARGUMENT"
    assert "Illegal to list model flights multiple times" in answers[2][1]
    assert "Expected model flights to have an absolute path" in answers[3][1]
    assert answers[4][0] == "UNKNOWN"
    assert answers[4][1].startswith(
        "1 servable(s) did not become available: {{{name: broken version: 1} due to error: NOT_FOUND: Could not load "
    )
    assert "custom_model_config" in answers[5][1] or "ServerConfig type not supported" in answers[5][1]
    assert server.predict("flights/labels/stable", ROW)["predictions"][0]["score"] == [1000.0]
    assert server.versions("flights") == {1: "AVAILABLE", 2: "AVAILABLE", 3: "AVAILABLE"}
    assert server.versions("vectors") == {7: "END"}


def test_config_set_by_rpc_survives_restart(start_server: Start, saved_models: Path, tmp_path: Path) -> None:
    config = write_models(tmp_path, flights=saved_models / "flights")
    flags = {"model_config_file": config, "write_back_model_config": "true"}
    server = start_server(**flags)
    flights = str(saved_models / "flights")
    service = model_service_pb2_grpc.ModelServiceStub(grpc.insecure_channel(server.address))
    request = model_management_pb2.ReloadConfigRequest()
    model = request.config.model_config_list.config.add(name="flights", base_path=flights)
    model.model_version_policy.specific.versions.extend([1, 2])
    service.HandleReloadConfigRequest(request)
    model.version_labels.update({"stable": 1})
    service.HandleReloadConfigRequest(request)
    model.version_labels.update({"stable": 9})
    with pytest.raises(grpc.RpcError, match="Request to assign label stable to version 9"):
        service.HandleReloadConfigRequest(request)
    server.process.kill()
    again = start_server(**flags)
    assert again.versions("flights") == {1: "AVAILABLE", 2: "AVAILABLE"}
    assert again.predict("flights/labels/stable", ROW)["predictions"][0]["score"] == [1000.0]


@pytest.mark.slow
@campaign("reloads", 25, 100)
def test_memory_does_not_grow_with_reloads(saved_models: Path, reloads: int) -> None:
    def config(version: int) -> Any:
        made = ModelServerConfig()
        model = made.model_config_list.config.add(name="flights", base_path=str(saved_models / "flights"))
        model.model_version_policy.specific.versions.append(version)
        return made

    sizes = {}
    with loading(config(1)) as (loader, catalog):
        for reload in range(reloads + 1):
            version = 1 + reload % 2
            loader.reload(config(version))
            assert list(catalog.views["flights"].servables) == [version]
            if reload:
                other = 3 - version
                wait_for(
                    lambda other=other: catalog.statuses("flights", other)[0].state == 50, "unloaded", poll_s=0.002
                )
            if reload in (10, reloads):
                give_back()
                sizes[reload] = psutil.Process().memory_info().rss
    # A version's graph and session are about 1 MB here: those kept would show.
    assert sizes[reloads] - sizes[10] < (reloads - 10) << 19
