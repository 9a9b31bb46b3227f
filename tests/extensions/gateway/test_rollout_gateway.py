"""A rollout through a gateway: shares by RPC, versions in a server upstream, and requests all the while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served_models import ConnectedServer, Gateway, Pipeline, Upstream
from waiting import wait_for

pytestmark = pytest.mark.runtime


class Client(threading.Thread):
    """Asks one request after another until it is stopped."""

    def __init__(self, gateway: ConnectedServer, model_name: str) -> None:
        super().__init__()
        self.gateway, self.model_name = gateway, model_name
        self.asked = self.failed = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.asked += 10
            self.failed += self.gateway.ask(self.model_name, 10)

    def __enter__(self) -> Client:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.done.set()
        self.join()


@pytest.fixture
def upstream(runtime_python: Path, tmp_path: Path) -> Iterator[Upstream]:
    server = Upstream(runtime_python, tmp_path / "upstream")
    server.start()
    server.wait_until_ready()
    yield server
    server.stop()


@pytest.fixture
def behind(pipeline: Pipeline, runtime_python: Path, upstream: Upstream, tmp_path: Path) -> Iterator[Pipeline]:
    gateway = Gateway(runtime_python, tmp_path / "gateway", upstream)
    gateway.start()
    gateway.wait_until_ready()
    yield replace(pipeline, server=gateway)
    gateway.stop()


def test_rollout_through_a_gateway_drops_no_request_and_outlives_gateway_and_upstream(
    behind: Pipeline, upstream: Upstream
) -> None:
    name, gateway = behind.name, behind.server
    first = behind.deploy(behind.model("first"))
    assert first.properties["mode"] == "champion"
    with Client(gateway, name) as client:
        deployment = behind.deploy(behind.model("second"), canary_percent=25)
        wait_for(lambda: gateway.traffic(name) == {1: 75, 2: 25}, "the canary's share")
        rollout = behind.rollout(deployment)
        assert rollout.properties["decision"] == "promoted", rollout.properties
        wait_for(lambda: gateway.traffic(name) == {2: 100}, "all the traffic")
    assert client.asked > 100 and client.failed == 0
    assert behind.aliases() == {"champion": 2}

    # A canary whose gateway and upstream die; the one has its shares in a file, the other is notified again.
    deployment = behind.deploy(behind.model("third"), canary_percent=25)
    assert gateway.ask(name, 4) == 0
    assert "waiting" in behind.poll(deployment)
    for server in (gateway, upstream):
        server.process.kill()
        server.process.wait()
    assert "waiting" in behind.poll(deployment)
    for server in (upstream, gateway):
        server.start()
        server.wait_until_ready()
    assert "waiting" in behind.poll(deployment)
    wait_for(lambda: gateway.traffic(name) == {2: 75, 3: 25}, "the decided shares")
    with Client(gateway, name) as client:
        assert behind.rollout(deployment).properties["decision"] == "promoted"
    assert client.failed == 0
    assert behind.aliases() == {"champion": 3}


def test_rollout_through_a_gateway_that_speaks_the_open_inference_protocol(
    pipeline: Pipeline, runtime_python: Path, tmp_path: Path
) -> None:
    """The server behind it loads what it finds in the folder of versions, as Triton does in its mode poll."""
    polling, gateway = Upstream(runtime_python, tmp_path / "upstream"), None
    folder, policy = tmp_path / "gateway" / "models" / pipeline.name, "model_version_policy { all {} }"
    polling.config_file.write_text(
        f'model_config_list {{ config {{ name: "{pipeline.name}" base_path: "{folder}" {policy} }} }}'
    )
    try:
        polling.start()
        polling.wait_until_ready()
        gateway = Gateway(runtime_python, tmp_path / "gateway", polling, scheme="v2://")
        gateway.start()
        gateway.wait_until_ready()
        behind = replace(pipeline, server=gateway)
        behind.deploy(behind.model("first"))
        deployment = behind.deploy(behind.model("second"), canary_percent=20)
        wait_for(lambda: gateway.traffic(pipeline.name) == {1: 80, 2: 20}, "the canary's share")
        with Client(gateway, pipeline.name) as client:
            assert behind.rollout(deployment).properties["decision"] == "promoted"
        assert client.asked > 100 and client.failed == 0
        assert behind.aliases() == {"champion": 2} and gateway.traffic(pipeline.name) == {2: 100}
    finally:
        for server in filter(None, (gateway, polling)):
            server.stop()
