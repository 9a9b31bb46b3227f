"""Nothing decided or acknowledged is lost when a gateway is killed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from server_process import ServerProcess, Start, versions, write_models

from tests.ml.serving.test_reliability import LONG, ROW, Kills, kills  # noqa: F401


@pytest.fixture
def upstream(start_server: Start, saved_models: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of flights 1, 2 and 3, which is never killed."""
    config = write_models(tmp_path, flights=(saved_models / "flights", versions()))
    return start_server(model_config_file=config)


def propose_split(chooser: random.Random) -> dict[str, int]:
    first, second = chooser.randint(1, 49), chooser.randint(1, 50)
    return {"1": first, "2": second, "3": 100 - first - second}


def set_split(server: ServerProcess, percents: dict[str, int]) -> None:
    status, answer = server.call("/v1/models/flights:traffic", {"percents": percents})
    assert (status, answer["percents"], answer["persisted"]) == (200, percents, True)


def captured_ids(folder: Path) -> Counter[str]:
    """Request id to its rows, over every file that is in the folder."""
    counted: Counter[str] = Counter()
    for file in folder.glob("flights/*.parquet"):
        counted.update(pq.read_table(file, columns=["request_id"])["request_id"].to_pylist())
    return counted


@pytest.mark.parametrize("kills", [3, pytest.param(None, marks=LONG)], indirect=True)
def test_killed_gateway_restores_split_and_captured_rows(
    start_server: Start,
    upstream: ServerProcess,
    tmp_path: Path,
    kills: int,  # noqa: F811
) -> None:
    traffic = tmp_path / "traffic.json"
    traffic.write_text(json.dumps({"models": {"flights": {"1": 100}}}))

    def start() -> ServerProcess:
        server = start_server(
            upstream=upstream.address,
            traffic_config_file=traffic,
            capture_base_path=tmp_path / "captured",
            capture_roll_seconds=0.3,
        )
        server.predict("flights", ROW)
        return server

    killing = Kills(
        start,
        change=set_split,
        read=lambda server: server.call("/v1/models/flights:traffic")[1]["percents"],
        propose=propose_split,
        first={"1": 100},
    )
    server = killing.run(kills)
    server.flush()
    counted = captured_ids(tmp_path / "captured")
    print(f"{kills} kills, {killing.answered} answers, {killing.changes} changes")
    assert len(killing.acknowledged) >= kills
    assert {request_id: counted.get(request_id, 0) for request_id in killing.acknowledged} == dict.fromkeys(
        killing.acknowledged, 1
    )
