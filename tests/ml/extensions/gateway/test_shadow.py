"""Shadow traffic: copies of requests to another version, whose answers are compared."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from server_process import Publish, ServerProcess, Start, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.gateway.serving.shadow import compare
from tests.ml.serving.test_traffic import ROW, wait_for_shares


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


def test_slow_shadow_drops_copies_without_delaying_answers(
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
