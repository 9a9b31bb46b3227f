"""Shares of versions among requests that name none."""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from server_process import Publish, ServerProcess, Start, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.gateway.serving.shadow import compare
from airflow_hops.serving.models.traffic import TrafficTable, deal_slots

ROW = {"instances": [{"carrier": "AA", "distance": [0.0], "hour": 0}]}


def answering_version(server: ServerProcess, path: str = "flights", sticky_key: str | None = None) -> int:
    headers = {"X-Sticky-Key": sticky_key} if sticky_key else None
    return int(server.predict(path, ROW, headers=headers)["predictions"][0]["score"][0] / 1000)


def shares(server: ServerProcess) -> dict[str, float]:
    counted = server.call("/v1/stats")[1]["models"]["flights"]["versions"]
    return {version: result["traffic_percent"] for version, result in counted.items()}


def wait_for_shares(server: ServerProcess, wanted: dict[str, float]) -> None:
    wait_for(lambda: shares(server) == wanted, lambda: f"{shares(server)} is not {wanted}")


@pytest.fixture
def traffic_file(tmp_path: Path) -> Path:
    return tmp_path / "traffic.json"


@pytest.fixture
def server(start_server: Start, saved_models: Path, traffic_file: Path, tmp_path: Path) -> ServerProcess:
    """All three versions of flights, with 90 to 10 between the first two."""
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2)))
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 90, "2": 10}}}))
    return start_server(
        model_config_file=config,
        model_config_file_poll_wait_seconds=0.1,
        traffic_config_file=traffic_file,
        traffic_config_file_poll_wait_seconds=0.1,
    )


def test_shares_are_exact_keys_are_sticky_and_requests_are_counted(server: ServerProcess) -> None:
    assert Counter(answering_version(server) for _ in range(100)) == {1: 90, 2: 10}
    same_id = [server.predict("flights", ROW, headers={"x-request-id": "r"}) for _ in range(100)]
    assert Counter(int(answer["predictions"][0]["score"][0] / 1000) for answer in same_id) == {1: 90, 2: 10}
    first = [answering_version(server, sticky_key=f"k{n}") for n in range(200)]
    again = [answering_version(server, sticky_key=f"k{n}") for n in range(200)]
    assert first == again
    assert 5 <= Counter(first)[2] <= 40
    client, inputs = ModelServerClient(server.address), {"carrier": ["AA"], "distance": [[0.0]], "hour": [0]}
    over_grpc = [client.predict("flights", inputs, sticky_key=f"k{n}").version for n in range(40)]
    assert over_grpc == first[:40]
    assert {answering_version(server, "flights/versions/2") for _ in range(20)} == {2}

    def counted() -> dict[str, Any]:
        models = server.call("/v1/stats")[1]["models"]
        assert list(models) == ["flights"]
        return dict(models["flights"]["versions"]["1"])

    before = counted()
    for _ in range(3):
        server.predict("flights/versions/1", {"instances": ROW["instances"] * 4})
    server.error("/v1/models/flights/versions/1:predict", {"instances": [1]})
    server.error("/v1/models/odd:predict", {"instances": [1]})
    after = counted()
    assert {name: after[name] - before[name] for name in ("requests", "rows", "errors", "client_errors")} == {
        "requests": 4, "rows": 12, "errors": 0, "client_errors": 1,
    }  # fmt: skip
    assert 0 < after["latency_ms_p50"] <= after["latency_ms_p99"]


def test_changed_split_is_applied_and_a_wrong_one_is_not(server: ServerProcess, traffic_file: Path) -> None:
    assert shares(server) == {"1": 90.0, "2": 10.0}
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 0, "2": 100}}}))
    wait_for_shares(server, {"1": 0.0, "2": 100.0})
    assert {answering_version(server) for _ in range(20)} == {2}
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 50, "2": 49}}}))
    said = f"{traffic_file}: models.flights has percents {{1: 50, 2: 49}} that sum to 99; expected 100"
    wait_for(lambda: said in server.log(), server.log)
    assert shares(server) == {"1": 0.0, "2": 100.0}
    traffic_file.unlink()
    wait_for_shares(server, {"1": 0.0, "2": 100.0})


def test_share_of_a_version_that_is_not_loaded_goes_to_the_others(server: ServerProcess, traffic_file: Path) -> None:
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 30, "2": 10, "9": 60}}}))
    wait_for_shares(server, {"1": 75.0, "2": 25.0})
    assert Counter(answering_version(server) for _ in range(100)) == {1: 75, 2: 25}
    assert "versions (9,) have traffic but are not loaded" in server.log()


def test_keys_move_only_from_shares_that_shrink_to_shares_that_grow() -> None:
    steps = [
        {1: 100},
        {1: 90, 2: 10},
        {1: 60, 2: 20, 3: 20},
        {1: 40, 2: 20, 3: 40},
        {2: 70, 3: 30},
        {2: 30, 3: 70},
        {1: 34, 2: 33, 3: 33},
        {4: 100},
    ]
    dealt: list[Any] = []
    for step in steps:
        dealt.append(deal_slots(step, dealt[-1] if dealt else None))
    assert [dict(Counter(slots)) for slots in dealt] == steps
    for (old, new), (before, after) in zip(pairwise(steps), pairwise(dealt), strict=True):
        for giver, taker in zip(before, after, strict=True):
            if giver != taker:
                assert new.get(giver, 0) < old.get(giver, 0)
                assert new.get(taker, 0) > old.get(taker, 0)


def test_every_share_is_met_exactly_by_a_hundred_requests() -> None:
    for percent in range(1, 100):
        table = TrafficTable(None)
        table.set_split("m", {1: percent, 2: 100 - percent})
        split = table.split("m", {1: None, 2: None})
        dealt = Counter(table.choose("m", split, None) for _ in range(100))
        assert dealt == {1: percent, 2: 100 - percent}


def test_two_versions_are_dealt_after_a_restart_as_before() -> None:
    grown = None
    for percent in (0, 5, 25, 50, 100, 30, 1):
        grown = deal_slots({1: 100 - percent, 2: percent}, grown)
        assert grown == deal_slots({1: 100 - percent, 2: percent})


def shadow_of(server: ServerProcess, version: str, requests: int, model: str = "flights") -> dict[str, Any]:
    """Returns the counts of a version's copies, once that many of them have been answered or dropped."""

    def counted() -> dict[str, Any]:
        counts = server.get("/v1/stats")["models"][model].get("shadow", {}).get(version, {})
        return dict(counts) if counts and counts["requests"] + counts["dropped"] >= requests else {}

    return wait_for(counted, server.log)


def test_shadow_answers_are_compared_and_never_returned(server: ServerProcess, traffic_file: Path) -> None:
    document = {"models": {"flights": {"1": 100}}, "shadow": {"flights": {"2": 50}}}
    traffic_file.write_text(json.dumps(document))
    wait_for_shares(server, {"1": 100.0, "2": 0.0})
    rows = {"instances": ROW["instances"] * 3}
    for _ in range(40):
        assert server.predict("flights", rows)["predictions"][0]["score"] == [1000.0]
    counted = shadow_of(server, "2", 20)
    assert (counted["requests"], counted["errors"], counted["dropped"], counted["rows"]) == (20, 0, 0, 60)
    assert counted["compared_with"] == {"1": 20}
    assert 0 < counted["latency_ms_p50"] <= counted["latency_ms_p99"]
    assert counted["outputs"] == {
        "carrier_id": {
            "rows": 60,
            "rows_differing": 0,
            "share_differing": 0.0,
            "max_difference": 0.0,
            "mean_difference": 0.0,
        },
        "score": {
            "rows": 60,
            "rows_differing": 60,
            "share_differing": 1.0,
            "max_difference": 1000.0,
            "mean_difference": 1000.0,
        },
    }
    by_version = server.call("/v1/stats")[1]["models"]["flights"]["versions"]
    assert (by_version["1"]["requests"], by_version["2"]["requests"]) == (40, 0)
    # What the shadow answers itself needs no copy.
    for _ in range(10):
        server.predict("flights/versions/2", ROW)
    status, set_to = server.call("/v1/models/flights:shadow", {"percents": {"9": 100}})
    assert (status, set_to["percents"], set_to["persisted"]) == (200, {"9": 100}, True)
    assert json.loads(traffic_file.read_text()) == {**document, "shadow": {"flights": {"9": 100}}}
    assert server.predict("flights", ROW)["predictions"][0]["score"] == [1000.0]
    assert shadow_of(server, "9", 1)["codes"] == {"NOT_FOUND": 1}
    assert shadow_of(server, "2", 20)["requests"] == 20
    assert server.error("/v1/models/flights:shadow", {"percents": {"1": 200}}) == (
        400,
        "shadow.flights.1 is 200; expected an integer percent from 0 to 100",
    )
    assert server.call("/v1/models/flights:shadow", {"percents": None})[1]["percents"] is None
    server.predict("flights", ROW)
    assert server.call("/v1/models/flights:shadow")[1]["versions"]["9"]["requests"] == 1


def test_shadow_that_cannot_keep_up_drops_copies_and_delays_no_answer(
    start_server: Start, publish: Publish, traffic_file: Path, tmp_path: Path
) -> None:
    base_path = tmp_path / "vectors"
    for version in (7, 8):
        publish("vectors", 7, base_path, version)
    label = 'version_labels { key: "canary" value: 8 }'
    config = write_models(tmp_path, vectors=(base_path, f"{versions()} {label}"))
    traffic_file.write_text(json.dumps({"models": {"vectors": {"7": 100}}, "shadow": {"vectors": {"canary": 100}}}))
    server = start_server(
        model_config_file=config,
        traffic_config_file=traffic_file,
        shadow_queue_requests=5,
        capture_base_path=tmp_path / "captured",
        capture_shadow=True,
    )
    # Copies run one after another while answers are made for eight clients at once.
    answered = []

    def ask():
        with ModelServerClient(server.address) as client:
            for _ in range(10):
                inputs = {"rounds": np.int64(10)}
                answered.append(client.predict("vectors", inputs, signature="slow", request_id="r").version)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answered == [7] * 80
    counted = shadow_of(server, "8", 80, model="vectors")
    assert counted["dropped"] >= 1
    assert counted["requests"] == counted["codes"]["OK"] == 80 - counted["dropped"]
    server.call("/v1/capture:flush", b"")
    files = (tmp_path / "captured" / "vectors").rglob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    kinds = Counter((row["version"], bool(row.get("shadow"))) for row in rows)
    assert kinds == {(8, True): counted["requests"], (7, False): 80}
    assert {row["request_id"] for row in rows} == {"r"}


def test_answers_are_compared_row_by_row_within_a_tolerance() -> None:

    def answer(**arrays):
        response = protocol.PredictResponse()
        for alias, array in arrays.items():
            tensors.fill_proto(response.outputs[alias], np.asarray(array))
        return response.SerializeToString()

    nan, infinity = float("nan"), float("inf")
    returned = answer(
        score=[[1.0, 2.0], [3.0, nan], [4.0, infinity], [1e9, 0.0]],
        name=np.array([b"a", b"b", b"c", b"d"], object),
        count=[1, 2, 3, 4],
        shape=[[1.0]] * 4,
        gone=[1.0] * 4,
        empty=np.zeros([0, 3]),
        flat=np.zeros([2, 0]),
    )
    shadow = answer(
        score=[[1.0, 2.5], [3.0, nan], [4.0, infinity], [1e9 + 10, 0.0]],
        name=np.array([b"a", b"x", b"c", b"d"], object),
        count=[1, 2, 4, 4],
        shape=[1.0] * 4,
        new=[1.0] * 4,
        empty=np.zeros([0, 3]),
        flat=np.zeros([2, 0]),
    )
    results = compare(Method.PREDICT, returned, shadow, 1e-5)
    result = {
        name: [one.rows, one.rows_differing, one.max_difference, one.sum_difference] for name, one in results.items()
    }
    regression, classification = protocol.RegressionResponse(), protocol.ClassificationResponse()
    regression.result.regressions.add(value=1.5)
    classes = classification.result.classifications.add().classes
    classes.add(label="late", score=0.75)
    other = type(classification).FromString(classification.SerializeToString())
    other.result.classifications[0].classes[0].score = 0.5
    same = compare(Method.REGRESS, regression.SerializeToString(), regression.SerializeToString(), 0.0)
    apart = compare(Method.CLASSIFY, classification.SerializeToString(), other.SerializeToString(), 0.1)
    result["value"] = [same["value"].rows, same["value"].rows_differing, same["value"].max_difference, 0.0]
    result["classify"] = [apart["labels"].rows_differing, apart["scores"].rows_differing]
    result["classify"] += [apart["scores"].max_difference, 0.0]
    assert result == {
        "score": [4, 1, 10.0, 10.5],
        "name": [4, 1, None, 0.0],
        "count": [4, 1, 1.0, 1.0],
        "shape": [4, 4, None, 0.0],
        "gone": [4, 4, None, 0.0],
        "new": [4, 4, None, 0.0],
        "empty": [0, 0, None, 0.0],
        "flat": [2, 0, 0.0, 0.0],
        "value": [1, 0, 0.0, 0.0],
        "classify": [0, 1, 0.25, 0.0],
    }
