"""No request is lost while the server is changed, and nothing decided or acknowledged is lost when it is killed."""

from __future__ import annotations

import contextlib
import random
import threading
import urllib.error
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, Start, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import read_config, set_model

from . import load_under_change

ROW = {"instances": [{"carrier": "AA", "distance": [0.0], "hour": 0}]}


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


class Kills:
    """A server that is killed again and again while it is asked and changed.

    Args:
        start: Starts it with the same flags as ever.
        change: Has it take a decision, and returns once it has.
        read: Reads what it holds of that.
        propose: Makes up another decision.
        first: The decision at the start.
    """

    def __init__(
        self,
        start: Callable[[], ServerProcess],
        change: Callable[[ServerProcess, Any], None],
        read: Callable[[ServerProcess], Any],
        propose: Callable[[random.Random], Any],
        first: Any,
    ) -> None:
        self.start, self.change, self.read, self.propose = start, change, read, propose
        self.random = random.Random(20261120)
        self.decided = self.proposed = first
        self.acknowledged: set[str] = set()
        self.answered = self.changes = 0

    def run(self, kills: int) -> ServerProcess:
        """Kills it so many times; returns it started once more."""
        for number in range(kills):
            server = self.start()
            held = self.read(server)
            # A change that was under way when the server died may have been taken or not, but never by half.
            assert held in (self.decided, self.proposed), (number, held, self.decided, self.proposed, server.log())
            self.decided = self.proposed = held
            threads = [
                threading.Thread(target=self._ask, args=(server, number)),
                threading.Thread(target=self._change, args=(server,)),
            ]
            for thread in threads:
                thread.start()
            wanted, changed = self.answered + self.random.randint(0, 60), number > 0
            wait_for(
                lambda wanted=wanted, changed=changed: self.answered >= wanted and (changed or self.changes),
                server.log,
                poll_s=0.002,
            )
            server.process.kill()
            server.process.wait()
            for thread in threads:
                thread.join()
        server = self.start()
        assert self.read(server) in (self.decided, self.proposed)
        return server

    def _ask(self, server: ServerProcess, number: int) -> None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, HTTPException):
            for count in range(100_000):
                request_id = f"{number}-{count}"
                server.predict("flights", ROW, headers={"x-request-id": request_id})
                self.answered += 1
                if server.headers["x-captured"] == "1":
                    self.acknowledged.add(request_id)

    def _change(self, server: ServerProcess) -> None:
        chooser = random.Random(self.random.random())
        with contextlib.suppress(urllib.error.URLError, ConnectionError, HTTPException, ModelServerError):
            while True:
                self.proposed = self.propose(chooser)
                self.change(server, self.proposed)
                self.decided = self.proposed
                self.changes += 1


@pytest.mark.parametrize("kills", [8, pytest.param(None, marks=LONG)], indirect=True)
def test_killed_server_restarts_with_the_last_config(
    start_server: Start, saved_models: Path, tmp_path: Path, kills: int
) -> None:
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1)))

    def start() -> ServerProcess:
        return start_server(model_config_file=config, write_back_model_config=True)

    def reload(server: ServerProcess, numbers: list[int]) -> None:
        values = tmp_path / "given.config"
        set_model(values, "flights", saved_models / "flights", versions=numbers)
        with ModelServerClient(server.address, timeout_s=60) as client:
            client.reload_config(read_config(values))

    def read(server: ServerProcess) -> list[int]:
        return list(server.call("/readyz")[1]["models"]["flights"])

    killing = Kills(
        start,
        change=reload,
        read=read,
        propose=lambda chooser: sorted(chooser.sample([1, 2, 3], chooser.randint(1, 3))),
        first=[1],
    )
    server = killing.run(kills // 4)
    assert "does not parse" not in server.log()
    assert killing.changes >= 1
    print(f"{kills // 4} kills, {killing.answered} answers, {killing.changes} reloads")
