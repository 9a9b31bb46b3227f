"""Clients that check every answer while a model server is changed.

``flights`` answers ``distance + hour + 1000 * version`` in every row: a row of another version than the answer's own
shows.
"""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
from server_process import predict_request
from waiting import wait_for

from airflow_hops.core.serving_api import config, protocol, tensors
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import Method

GRPC_CLIENTS = REST_CLIENTS = 8
ROWS = 4
HOURS = np.arange(ROWS, dtype=np.int64)


class Load:
    """Sixteen clients, each with one request at a time."""

    def __init__(self, address: str, url: str, requests: int) -> None:
        self.address, self.url, self.requests = address, url, requests
        self.operations_done = threading.Event()
        self.answered: Counter[int] = Counter()
        self.failures: list[str] = []
        self.mixed: list[str] = []
        self.answers = 0
        self._sent = 0

    async def run(self) -> None:
        async with grpc.aio.insecure_channel(self.address) as channel, aiohttp.ClientSession() as session:
            call = channel.unary_unary(Method.PREDICT.value)
            over_grpc = [self._client(self._grpc, call, number) for number in range(GRPC_CLIENTS)]
            over_rest = [self._client(self._rest, session, number) for number in range(REST_CLIENTS)]
            await asyncio.gather(*over_grpc, *over_rest)

    async def _client(self, ask: Any, connection: Any, number: int) -> None:
        while self._sent < self.requests or not self.operations_done.is_set():
            self._sent += 1
            try:
                # Half the clients of each kind ask for what the split chooses, the others for the label.
                named, scores = await ask(connection, number, "stable" if number % 2 else None)
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}"[:500])
                continue
            self.answers += 1
            versions = (np.asarray(scores).reshape(-1) - HOURS - 0.5) / 1000
            first = int(versions[0])
            self.answered[first] += 1
            if len(versions) != ROWS or not np.all(versions == (named or first)):
                self.mixed.append(f"version {named}: {scores}")

    async def _grpc(self, call: Any, number: int, label: str | None) -> tuple[int, Any]:
        inputs = {"carrier": np.full(ROWS, b"AA", object), "distance": np.full((ROWS, 1), 0.5, np.float32)}
        request = predict_request("flights", **inputs, hour=HOURS)
        if label:
            request.model_spec.version_label = label
        sticky = (("x-sticky-key", f"client-{number}"),) if number % 4 == 0 else None
        answer = await call(request.SerializeToString(), timeout=300, metadata=sticky)
        response = protocol.PredictResponse.FromString(answer)
        return response.model_spec.version.value, tensors.from_proto(response.outputs["score"])

    async def _rest(self, session: aiohttp.ClientSession, number: int, label: str | None) -> tuple[int, Any]:
        path = f"flights/labels/{label}" if label else "flights"
        body = {"inputs": {"carrier": ["AA"] * ROWS, "distance": [[0.5]] * ROWS, "hour": HOURS.tolist()}}
        async with session.post(f"{self.url}/v1/models/{path}:predict", json=body) as response:
            document = await response.json()
            if response.status != 200:
                raise RuntimeError(f"{response.status} {document}")
            return 0, document["outputs"]["score"]


class Operations:
    """Changes of the server during the load."""

    def __init__(self, load: Load, folder: str, config_file: str) -> None:
        self._load, self._folder, self._config_file = load, folder, config_file
        self.done: list[str] = []

    def run(self) -> None:
        try:
            with ModelServerClient(self._load.address, timeout_s=120) as client:
                self._go(client)
        except Exception:
            self._load.failures.append(f"operations: {traceback.format_exc()}")
        self._load.operations_done.set()

    def _go(self, client: ModelServerClient) -> None:
        self._serve(client, [1, 2], {"stable": 1})
        self.done.append("loaded 2")
        for percent in (5, 50, 100):
            self._split({"1": 100 - percent, "2": percent})
            self._wait_for(self._load.requests // 8)
        self._serve(client, [1, 2], {"stable": 2})
        self._serve(client, [2], {"stable": 2})
        self._split(None)
        self.done.append("promoted 2, unloaded 1")
        self._wait_for(self._load.requests // 8)
        self._serve(client, [1, 2, 3], {"stable": 2})
        self._split({"1": 20, "2": 30, "3": 50})
        self._wait_for(self._load.requests // 8)
        self._serve(client, [1, 2, 3], {"stable": 1})
        self._split({"1": 100})
        self._serve(client, [1], {"stable": 1})
        self.done.append("rolled back to 1, unloaded 2 and 3")
        self._wait_for(self._load.requests // 8)
        for versions in ([1, 3], [1], [1, 2], [1]):
            text = ", ".join(map(str, versions))
            client.reload_config(
                config.parse_config(
                    f'model_config_list {{ config {{ name: "flights" base_path: "{self._folder}" '
                    f"model_version_policy {{ specific {{ versions: [{text}] }} }} "
                    'version_labels { key: "stable" value: 1 } } }',
                    "reload",
                )
            )
            self.done.append(f"reloaded by RPC: {text}")
            self._wait_for(self._load.requests // 32)

    def _serve(self, client: ModelServerClient, versions: list[int], labels: dict[str, int]) -> None:
        config.set_model(self._config_file, "flights", self._folder, versions=versions, labels=labels)
        for version in versions:
            client.wait_until_available("flights", version, timeout_s=120)
        # A label has moved, and an unloaded version has gone, when the server says so.
        inputs = {"carrier": ["AA"], "distance": [[0.0]], "hour": [0]}
        label = labels["stable"]
        wait_for(lambda: client.predict("flights", inputs, label="stable").version == label, "the label", 60, 0.02)
        wait_for(lambda: self._loaded() == set(versions), lambda: f"{versions}: {self._loaded()}", 60, 0.02)

    def _loaded(self) -> set[int]:
        return set(self._get("/readyz")["models"]["flights"])

    def _split(self, percents: dict[str, int] | None) -> None:
        self._get("/v1/models/flights:traffic", {"percents": percents})
        self.done.append(f"split {percents}")

    def _wait_for(self, answers: int) -> None:
        wanted = self._load.answers + answers
        wait_for(lambda: self._load.answers >= wanted, "answers", 120, 0.02)

    def _get(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self._load.url + path, data), timeout=60) as response:
            return json.load(response)


def run(address: str, url: str, folder: Path, config_file: Path, requests: int) -> Load:
    """Asks so many requests at least, while all is done to the server."""
    load = Load(address, url, requests)
    operations = Operations(load, str(folder), str(config_file))
    thread = threading.Thread(target=operations.run)
    thread.start()
    asyncio.run(load.run())
    thread.join()
    print(f"{load.answers} answers, {dict(load.answered)} by version; {operations.done}")
    return load
