"""ONNX graphs behind the one API: asked, and batched like models of other formats."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import helper
from server_process import ServerProcess, predict_request
from waiting import wait_for

from airflow_hops.core.processes.programs import with_package
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.servable import Call
from tests.ml.random_encodings import encode

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
    answer = formats_server.predict("wine", {"inputs": ROWS})["outputs"]
    assert np.array(answer["probabilities"]) == pytest.approx(result["probabilities"], abs=1e-6)
    rows = [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)]
    assert formats_server.predict("litres", {"instances": rows})["predictions"] == pytest.approx([0.2, 1.8], abs=1e-5)
    examples = [{"alcohol": 0.1, "hue": 0.0}, {"alcohol": 0.9, "hue": 1}]
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


def test_batched_requests_get_their_own_rows(format_models: Path, tmp_path: Path) -> None:
    parameters = tmp_path / "parameters"
    parameters.write_text("max_batch_size { value: 16 } batch_timeout_micros { value: 20000 }")
    arguments = ["--model_base_path=/m", "--enable_batching", f"--batching_parameters_file={parameters}"]
    options = ModelOptions.of(parse_flags(arguments)[0])
    servable: Any = open_model("litres", 1, format_models / "litres" / "1", options)

    def ask(number: int) -> bool:
        alcohol = np.float32([number, number + 0.5])
        answer = servable.predict({"alcohol": alcohol, "hue": np.zeros(2, np.float32)})["prediction"]
        return bool(answer.tolist() == pytest.approx((2 * alcohol).tolist(), abs=1e-4))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(40)))
    servable.close()


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
    encodings = (encode(random.Random(number), model) for number in range(1000))
    (tmp_path / "model.onnx").write_bytes(next(each for each in encodings if b'"\x04Loop' not in each))
    servable = open_model("loop", 1, tmp_path, ModelOptions(warmup_iterations=0))

    def ask(count: int, deadline_s: float) -> bytes:
        request = predict_request("loop", count=count, x=np.ones(1, np.float32))
        return servable.answer(Call(Method.PREDICT, request.SerializeToString(), deadline_s)).message

    assert ask(3, math.inf)
    assert not servable.computes_here
    threads = threading.active_count()
    with pytest.raises(ServingError) as raised:
        ask(10**12, time.monotonic() + 0.2)  # days
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert ask(3, time.monotonic() + 60)
    wait_for(lambda: threading.active_count() <= threads + 1, "one thread watches all runs")
    servable.close()


@pytest.mark.parametrize("telemetry", [{}, {"ORT_DISABLE_TELEMETRY": "0"}])
def test_import_of_onnx_models_writes_through_no_link_in_the_temporary_folder(
    tmp_path: Path, telemetry: dict[str, str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("untouched")
    folder = tmp_path / "tmp"
    folder.mkdir()
    (folder / ".ses").symlink_to(mine)
    # onnxruntime has no telemetry where CI is set, either
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment = with_package({**environment, "TMPDIR": str(folder), **telemetry})
    subprocess.run(
        [sys.executable, "-c", "import airflow_hops.extensions.frameworks.serving.onnx"], env=environment, check=True
    )
    assert (mine.read_text() == "untouched") == (not telemetry), "the telemetry that was asked for"
