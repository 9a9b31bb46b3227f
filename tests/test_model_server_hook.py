"""The hook in Airflow's environment, against the bundled server and what stands in for a remote one."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from served_models import ConnectedServer, Pipeline, Processes
from test_store import s3_store  # noqa: F401
from waiting import wait_for
from world import World, refused

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.hooks.hops import HopsHook
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.sensors.model_version import ModelVersionSensor
from airflow_hops.triggers.model_version import ModelVersionTrigger
from airflow_hops.triggers.rollout import RolloutTrigger
from airflow_hops.web.models.live import server_of

ROWS = {"carrier": ["UA", "AA"], "distance": [250.0, 750.0], "scheduled_at": [1, 2]}
OTHERS = ("config_file", "traffic_file", "capture_path", "rest_port")


def connect(monkeypatch: pytest.MonkeyPatch, server: ConnectedServer, **extra: Any) -> ModelServerHook:
    """A hook of a connection to a server."""
    outside = {"host": "127.0.0.1", "port": server.ports["port"], "password": extra.pop("token", None)}
    fields = {f"serving_{name}": value for name, value in extra.items()}
    World(ArtifactStore("/nowhere"), monkeypatch).connect("of_server", **outside, **fields)
    return ModelServerHook("of_server")


def event_of(trigger: Any) -> Any:
    """Returns what a trigger's first event says."""

    async def first_event() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(first_event())


@pytest.mark.runtime
def test_hook_queries_and_controls_by_grpc_and_rest(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    name, server = pipeline.name, pipeline.server
    pipeline.deploy(pipeline.model("first"))
    pipeline.deploy(pipeline.model("second"))
    config_file = str(server.config_file)
    hook = connect(monkeypatch, server, rest_port=server.ports["rest_api_port"], config_file=config_file)

    answers, message = hook.test_connection()
    assert answers
    assert message.startswith(f"Model server 127.0.0.1:{server.ports['port']} answers; models: ")
    assert f"{name} (version 2 AVAILABLE, version 1 AVAILABLE)" in message

    for version, slope in ((1, 1.0), (2, 1.2)):
        expected = 1 / (1 + np.exp(1 - slope * np.array([0.25, 0.75])))
        by_grpc = hook.predict(name, ROWS, version=version)
        assert by_grpc.version == version
        np.testing.assert_allclose(by_grpc.outputs["probability"], expected, rtol=1e-5)
        by_rest = hook.address.rest_client().predict(name, ROWS, version=version)
        np.testing.assert_allclose(by_rest.outputs["outputs"], expected, rtol=1e-5)
    assert hook.predict(name, ROWS, label="canary").version == 2
    for client in (hook, hook.address.rest_client()):
        assert {v.version: v.state for v in client.status(name)} == {1: "AVAILABLE", 2: "AVAILABLE"}
        assert client.status("nobody") == []
    assert hook.set_traffic(name, {1: 30, 2: 70}).percents == {1: 30, 2: 70} == hook.get_traffic(name).percents
    assert set(hook.metadata(name, version=1).signatures["serving_default"].inputs) == set(ROWS)
    assert hook.stats()["models"][name]["versions"]["2"]["requests"] >= 2

    with pytest.raises(BadInput, match=r"Serving signature key .nothing. not found"):
        hook.predict(name, {}, signature="nothing")
    with pytest.raises(BadInput, match="input 'distance' has dtype object"):
        hook.predict(name, {**ROWS, "distance": ["far", "near"]})
    with pytest.raises(HopsError, match="Servable not found"):
        hook.predict("nobody", ROWS)


@pytest.mark.runtime
def test_sensor_waits_for_version_and_label_here_and_in_the_triggerer(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.deploy(pipeline.model("first"))
    connect(monkeypatch, pipeline.server)

    def sensor(**arguments: Any) -> ModelVersionSensor:
        values = {"model_name": pipeline.name, "hops_conn_id": "of_server", "poke_interval": 0.1}
        return ModelVersionSensor(task_id="ready", **{**values, **arguments})

    assert sensor(version="1", label="stable", deferrable=False).execute({}) == 1
    assert sensor().poke({}).xcom_value == 1
    for waits in ({"version": 2}, {"version": 1, "label": "canary"}, {"model_name": "nobody"}):
        assert not sensor(**waits).poke({}).is_done
    with pytest.raises(TaskDeferred) as deferred:
        sensor(version=2, label="canary", deferrable=True).execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert "serving_token" not in json.dumps(arguments)
    trigger = pkgutil.resolve_name(path)(**json.loads(json.dumps(arguments)))
    with ThreadPoolExecutor(1) as triggerer:
        event = triggerer.submit(event_of, trigger)
        pipeline.deploy(pipeline.model("second"))
        assert sensor().resume({}, event.result(60)) == 2
    with pytest.raises(AirflowFailException, match="PERMISSION_DENIED"):
        sensor().resume({}, {"error": "model server: PERMISSION_DENIED"})


def test_unreachable_server_and_wrong_fields_are_named(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        world.connect("away", host="127.0.0.1", port=port, serving_timeout=1, serving_rest_port=port)
        answers, text = HopsHook("away").test_connection()
    assert not answers
    assert f"127.0.0.1:{port}" in text
    world.connect("bad", serving_kind="torchserve")
    assert "'serving_kind' is 'torchserve'" in ModelServerHook("bad").test_connection()[1]
    world.connect("tf", serving_kind="tensorflow_model_server")
    with pytest.raises(BadInput, match="tensorflow_model_server, which does not split traffic; put the bundled"):
        ModelServerHook("tf").set_traffic("flights", {1: 100})
    with pytest.raises(BadInput, match="percents names version '1'; expected a positive integer"):
        ModelServerHook("away").set_traffic("flights", {"1": 100})  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def remote(
    processes: Processes, s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectedServer]:
    """Stands in for ``tensorflow_model_server``: an empty config that it looks at once, no traffic file, no capture."""
    folder = tmp_path_factory.mktemp("remote")
    config = folder / "empty.config"
    config.write_text("model_config_list {}\n")
    flags = {"model_config_file": config, "file_system_poll_wait_seconds": 0.1}
    server = ConnectedServer(processes.server.python, folder, flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        server.start()
        server.wait_until_ready()
        yield server
        server.stop()


def services_of(server: ConnectedServer, base_path: Path | str, **fields: str) -> dict[str, str]:
    """A connection's fields, and none of the session's server."""
    return {
        **{f"serving_{name}": "" for name in OTHERS},
        "serving_port": str(server.ports["port"]),
        "serving_base_path": str(base_path),
        **{f"serving_{name}": value for name, value in fields.items()},
    }


@pytest.mark.runtime
def test_remote_server_is_controlled_by_persistent_config(pipeline: Pipeline, remote: ConnectedServer) -> None:
    name = pipeline.name
    services = services_of(remote, remote.base_path, kind="tensorflow_model_server")
    pipeline.deploy(pipeline.model("first"), services=services)
    assert remote.available(name) == [1]
    record = pipeline.record()
    with refused(r"does not split traffic\. Put the bundled server in front of it"):
        pipeline.deploy(pipeline.model("second"), services=services)
    assert pipeline.record() == record
    with refused("does not load model"):
        pipeline.deploy(pipeline.model("broken"), services=services, canary_percent=100)
    assert (remote.available(name), pipeline.record()) == ([1], record)
    deployed = pipeline.deploy(pipeline.model("second"), services=services, canary_percent=100)
    second = deployed.properties["version"]
    assert remote.available(name) == [1, second]
    with refused("neither splits traffic nor counts by version; use PromoteModelOperator"):
        pipeline.poll(deployed, services=services)
    assert pipeline.decide("promote", services=services, version=None)["champion"] == second

    # It was started with an empty config, and has forgotten everything; the next decision tells it again.
    remote.process.send_signal(signal.SIGKILL)
    remote.process.wait(10)
    remote.start()
    remote.wait_until_ready()
    assert remote.available(name) == []
    decisions: list[tuple[str, dict[str, Any], list[int]]] = [
        ("promote", {"version": second}, [1, second]),
        ("roll_back", {"to_version": None}, [1]),
        ("undeploy", {"version": None, "force": True}, []),
    ]
    for decision, options, served in decisions:
        assert pipeline.decide(decision, services=services, **options)["served"] == served
        assert remote.available(name) == served


def secured(folder: Path) -> dict[str, Any]:
    """Flags of a server with TLS on both ports that asks for tokens."""
    folder.mkdir()
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=gateway"
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *request.split(), *files], check=True, capture_output=True)
    key, cert = (json.dumps((folder / name).read_text()) for name in ("key.pem", "cert.pem"))
    (folder / "ssl.config").write_text(f"server_key: {key}\nserver_cert: {cert}\nclient_verify: false\n")
    (folder / "token").write_text("open-sesame\n")
    (folder / "prediction").write_text("oracle\n")
    files = {"ssl_config_file": "ssl.config", "control_token_file": "token", "prediction_token_file": "prediction"}
    return {"rest_api_enable_ssl": True, **{name: folder / file for name, file in files.items()}}


@pytest.mark.runtime
def test_gateway_splits_the_traffic_of_a_remote_server(
    pipeline: Pipeline, remote: ConnectedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = pipeline.name
    flags = {"upstream": f"127.0.0.1:{remote.ports['port']}", **secured(tmp_path / "secured")}
    ca_file = str(tmp_path / "secured" / "cert.pem")
    gateway = ConnectedServer(remote.python, tmp_path / "gateway", flags)
    gateway.start()
    try:
        gateway.wait_until_ready()
        rest = {"rest_port": str(gateway.ports["rest_api_port"]), "rest_tls": "true", "ca_file": ca_file}
        services = services_of(gateway, remote.base_path, token="open-sesame", **rest)
        with refused(r"model server .* refuses: UNAUTHENTICATED"):
            pipeline.deploy(pipeline.model("first"), services={**services, "serving_token": ""})
        pipeline.deploy(pipeline.model("first"), services=services)
        pipeline.deploy(pipeline.model("second"), services=services, canary_percent=25)
        assert remote.available(name) == [1, 2]
        with pytest.raises(BadInput, match="UNAUTHENTICATED"):
            connect(monkeypatch, gateway, ca_file=ca_file).set_traffic(name, {1: 100})
        hook = connect(monkeypatch, gateway, prediction_token="oracle", token="open-sesame", **rest)
        assert hook.get_traffic(name).percents == {1: 75, 2: 25}
        with hook.address.client() as client:
            answered = [client.predict(name, ROWS).version for _ in range(100)]
        assert set(answered) == {1, 2} and 5 <= answered.count(2) <= 50
        assert hook.address.rest_client().predict(name, ROWS).outputs
        counted = hook.stats()["models"][name]["versions"]["2"]["requests"]

        # What is not a task asks with the connection's tokens, too, and keeps none of them.
        assert server_of("of_server")[0].stats()["models"].keys() >= {name}
        arguments = {"model_name": name, "hops_conn_id": "of_server", "version": 3}
        with pytest.raises(TaskDeferred) as deferred:
            ModelVersionSensor(task_id="ready", deferrable=True, **arguments).execute({})
        _, retained = deferred.value.trigger.serialize()
        assert not any(secret in json.dumps(retained) for secret in ("open-sesame", "oracle"))
        assert event_of(ModelVersionTrigger(**{**retained, "version": 2})) == {"version": 2}
        waits = {"url": f"{hook.address.rest_client().address}/v1/stats", "model_name": name, "version": 2}
        rollout = RolloutTrigger(**waits, until=time.time() + 30, requests=counted, poll_s=0.1, conn_id="of_server")
        assert asyncio.run(rollout.wait()) == "requests"

        assert pipeline.decide("set_traffic", services=services, percents={"1": 50, "2": 50})["changed"] is True
        assert hook.get_traffic(name).percents == {1: 50, 2: 50}
        assert pipeline.decide("promote", services=services, version=None)["traffic"] == {"2": 100}
        wait_for(lambda: hook.predict(name, ROWS).version == 2, "all to the promoted")
        assert hook.predict(name, ROWS, label="stable").version == 2
    finally:
        gateway.stop()


@pytest.mark.runtime
def test_bundled_server_serves_from_an_s3_store(
    pipeline: Pipeline,
    s3_store: ArtifactStore,  # noqa: F811
    remote: ConnectedServer,
) -> None:
    name, base_path = pipeline.name, f"{s3_store.root}/models"
    options = {"key": "testing", "secret": "testing", "endpoint_url": s3_store.storage_options["endpoint_url"]}
    services = services_of(remote, base_path, storage_options=json.dumps(options))
    for kind, served in (("first", [1]), ("second", [1, 2])):
        pipeline.deploy(pipeline.model(kind), services=services, canary_percent=25)
        assert remote.available(name) == served
    assert f"model {name} version 2 loaded in" in remote.log()
    assert f"from {base_path}/{name}/2" in remote.log()
    assert remote.ask(name, 20) == 0
    assert pipeline.decide("promote", services=services, version=None)["traffic"] == {"2": 100}
    pipeline.decide("undeploy", services=services, version=None, force=True)
    assert remote.available(name) == []


def test_object_store_versions_appear_complete_and_once(s3_store: ArtifactStore, tmp_path: Path) -> None:  # noqa: F811
    from airflow_hops.ml.model_server.version_folders import RemoteFolders

    def model(name: str) -> Path:
        folder = tmp_path / name
        (folder / "variables").mkdir(parents=True)
        (folder / "saved_model.pb").write_text(name)
        (folder / "variables" / "variables.index").write_text(f"{name}'s variables")
        return folder

    base_path = f"{s3_store.root}/models"
    folders = RemoteFolders(base_path, s3_store.storage_options)
    fs = s3_store.files.remote().fs
    half = f"{base_path}/flights/1"
    fs.pipe_file(f"{half}/variables/variables.data", b"of a try that was killed")  # and never wrote saved_model.pb
    assert not folders.has("flights", 1)
    assert folders.publish(model("first"), "flights", 1, "f" * 64) is True
    assert folders.publish(tmp_path / "first", "flights", 1, "f" * 64) is False
    root = fs._strip_protocol(half)
    assert sorted(path.removeprefix(f"{root}/") for path in fs.find(root)) == [
        "assets.extra/hops.json",
        "saved_model.pb",
        "variables/variables.index",
    ]
    with pytest.raises(BadInput, match="holds another model"):
        folders.publish(model("second"), "flights", 1, "e" * 64)
    assert fs.cat_file(f"{half}/saved_model.pb") == b"first"
    folders.unpublish("flights", 1)
    assert not folders.has("flights", 1)
    assert fs.find(root) == []
