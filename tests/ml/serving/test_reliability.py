"""No request is lost while the server is changed, and nothing decided or acknowledged is lost when it is killed."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest
from server_process import ServerProcess, Start, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import read_config, set_model

from . import load_under_change

# The short case of each is for every run; the campaigns are as long as the command line says.
LONG = pytest.mark.scheduled(part="campaigns")


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return request.param or request.config.getoption("--kills")


@pytest.mark.parametrize("requests", [400, pytest.param(None, marks=LONG)])
def test_requests_while_versions_come_and_go(
    start_server: Start, saved_models: Path, tmp_path: Path, requests: int | None, request: pytest.FixtureRequest
) -> None:
    requests = requests or request.config.getoption("--requests")
    label = 'version_labels { key: "stable" value: 1 }'
    config = write_models(tmp_path, flights=(saved_models / "flights", f"{versions(1)} {label}"))
    server = start_server(
        model_config_file=config, model_config_file_poll_wait_seconds=0.2, traffic_config_file=tmp_path / "traffic.json"
    )
    load = load_under_change.run(server.address, server.url, saved_models / "flights", config, requests)
    assert (load.failures[:10], load.mixed[:10]) == ([], []), server.log()
    assert load.answers >= requests
    assert load.answered.keys() == {1, 2, 3}


@pytest.mark.parametrize("kills", [2, pytest.param(None, marks=LONG)], indirect=True)
def test_killed_server_restarts_with_the_last_config(
    start_server: Start, saved_models: Path, tmp_path: Path, kills: int
) -> None:
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1)))
    chooser, decided, proposed, reloads = random.Random(20261120), [1], [1], 0

    def change(server: ServerProcess) -> None:
        nonlocal decided, proposed, reloads
        values = tmp_path / "given.config"
        with contextlib.suppress(ModelServerError), ModelServerClient(server.address, timeout_s=60) as client:
            while True:
                proposed = sorted(chooser.sample([1, 2, 3], chooser.randint(1, 3)))
                set_model(values, "flights", saved_models / "flights", versions=proposed)
                client.reload_config(read_config(values))
                decided, reloads = proposed, reloads + 1

    for _ in range(kills + 1):
        server = start_server(model_config_file=config, write_back_model_config=True)
        served = server.call("/readyz")[1]["models"]["flights"]
        # A change that was under way when the server died may have been applied or not, but never by half.
        assert served in (decided, proposed), server.log()
        decided = proposed = served
        thread, wanted = threading.Thread(target=change, args=(server,)), reloads + chooser.randint(1, 3)
        thread.start()
        wait_for(lambda wanted=wanted: reloads >= wanted, server.log, poll_s=0.002)
        server.process.kill()
        server.process.wait()
        thread.join()
    assert "does not parse" not in server.log()
