"""ONNX graphs behind the one API: asked, batched, split, captured and rolled back like models of other formats."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
from onnx import helper
from server_process import ServerProcess, Start, predict_request, versions, write_models

from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Call
from tests.ml.serving.make_format_models import write_onnx

pytestmark = pytest.mark.xdist_group("formats")

ROWS = {"alcohol": [0.1, 0.9], "hue": [0.0, 1.0]}
CLASSES = ["barolo", "grignolino", "barbera"]


def test_graph_answers_every_method_of_both_apis(formats_server: ServerProcess) -> None:
    with ModelServerClient(formats_server.address) as client:
        result = client.predict("wine", ROWS).outputs
        assert result["probabilities"].shape == (2, 3) and result["probabilities"].dtype == np.float32
        assert result["class"].tolist() == [b"barolo", b"barbera"]
        litres = client.predict("litres", ROWS).outputs["prediction"]
        assert litres == pytest.approx([0.2, 1.8], abs=1e-5)
        examples = [{"alcohol": 0.1, "hue": 0.0}, {"alcohol": 0.9, "hue": 1}]
        assert "barbera" in str(client.classify("wine", examples))
        assert "1.8" in str(client.regress("litres", examples[1:]))
    answer = formats_server.predict("wine", {"inputs": ROWS})["outputs"]
    assert np.array(answer["probabilities"]) == pytest.approx(result["probabilities"], abs=1e-6)
    rows = [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)]
    assert formats_server.predict("litres", {"instances": rows})["predictions"] == pytest.approx([0.2, 1.8], abs=1e-5)
    _, body = formats_server.call("/v1/models/wine:classify", {"examples": examples})
    assert [[label for label, _ in row] for row in body["results"]] == [CLASSES] * 2
    assert np.array([[score for _, score in row] for row in body["results"]]) == pytest.approx(
        result["probabilities"], abs=1e-6
    )
    _, body = formats_server.call("/v1/models/litres:regress", {"examples": examples})
    assert body["results"] == pytest.approx([0.2, 1.8], abs=1e-5)
    described = formats_server.call("/v1/models/wine/metadata")[1]["metadata"]["signature_def"]["signature_def"]
    assert described.keys() == {"serving_default", "classify"}
    assert described["serving_default"]["outputs"].keys() == {"class", "probabilities"}
    assert described["serving_default"]["inputs"]["hue"]["dtype"] == "DT_FLOAT"


def test_graph_without_signature_file_uses_its_own_names(formats_server: ServerProcess) -> None:
    body = {"inputs": {"x": [[1, -2]], "said": ["é"]}}
    assert formats_server.predict("graph", body) == {"outputs": {"y": [[1, 2]], "heard": ["é"]}}


def test_versions_of_a_graph_are_batched_split_captured_and_rolled_back(start_server: Start, tmp_path: Path) -> None:
    for version in (1, 2):
        write_onnx(tmp_path / "models", version, shift=10.0 * (version - 1))
    server = start_server(
        model_config_file=write_models(tmp_path, litres=(tmp_path / "models" / "litres", versions(1, 2))),
        enable_batching="true",
        capture_base_path=tmp_path / "captured",
    )
    traffic = "/v1/models/litres:traffic"

    def ask(_: int) -> int:
        result = client.predict("litres", ROWS)
        assert result.outputs["prediction"] == pytest.approx(np.array([0.2, 1.8]) + 10 * (result.version - 1), abs=1e-4)
        return int(result.version)

    with ModelServerClient(server.address) as client, ThreadPoolExecutor(8) as pool:
        assert server.call(traffic, {"percents": {"1": 50, "2": 50}})[0] == 200
        counts = Counter(pool.map(ask, range(80)))
        assert counts.keys() == {1, 2}
        assert server.call(traffic, {"percents": {"1": 100, "2": 0}})[0] == 200
        assert set(pool.map(ask, range(10))) == {1}
    assert server.call("/v1/capture:flush", b"")[0] == 200
    captured = [pq.read_table(path).to_pydict() for path in (tmp_path / "captured" / "litres").glob("*.parquet")]
    rows = [each for table in captured for each in zip(table["output.prediction"], table["version"], strict=True)]
    assert len(rows) == 180
    expected = {(round(litres + 10 * (version - 1), 1), version) for litres in (0.2, 1.8) for version in (1, 2)}
    assert {(round(litres, 1), version) for litres, version in rows} == expected


def test_deadline_ends_an_endless_graph(tmp_path: Path) -> None:
    """It counts to as many as the request says."""
    info, kind = helper.make_tensor_value_info, onnx.TensorProto
    go, count = info("go", kind.BOOL, []), info("count", kind.INT64, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["sum", "sum"], ["doubled"])],
        "body", [info("n", kind.INT64, []), go, info("sum", kind.FLOAT, [1])],
        [info("goes", kind.BOOL, []), info("doubled", kind.FLOAT, [1])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [count, info("x", kind.FLOAT, [1])], [info("y", kind.FLOAT, [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    servable = open_model("loop", 1, tmp_path, ModelOptions(warmup_iterations=0))

    def ask(count: int, deadline_s: float) -> bytes:
        request = predict_request("loop", count=count, x=np.ones(1, np.float32))
        return servable.answer(Call(Method.PREDICT, request.SerializeToString(), deadline_s)).message

    assert ask(3, math.inf)
    assert not servable.computes_here
    threads = threading.active_count()
    started_s = time.monotonic()
    with pytest.raises(ServingError) as raised:
        ask(10**9, started_s + 0.2)
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started_s < 20  # so many rounds take minutes
    assert ask(3, time.monotonic() + 60)
    assert threading.active_count() <= threads + 1
    servable.close()
