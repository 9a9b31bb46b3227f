"""The Open Inference Protocol against TensorFlow Serving's API, on one server and the same rows.

Requests of both alternate, one connection each. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import http.client  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import struct  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import grpc  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_hops.core.serving_api import protocol, tensors  # noqa: E402
from benchmarks.measurement.serving_models import grpc_body, inputs_of, json_body, open_inference_body  # noqa: E402

RUNTIME = REPOSITORY / ".venv-runtime" / "bin" / "python"
MESSAGES = protocol.load_messages("airflow_hops.extensions.open_inference.serving")
BLOCKS = 20
Ask = Callable[[], Any]


def raw(array: np.ndarray) -> bytes:
    """A tensor in v2's binary form."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(value)) + value for value in array)


def v2_message(model: str, rows: int, is_raw: bool) -> bytes:
    """A ``ModelInferRequest``."""
    request = MESSAGES["ModelInferRequest"](model_name=model)
    for name, array in inputs_of(model, rows).items():
        datatype, field = ("BYTES", "bytes_contents") if array.dtype == object else ("FP32", "fp32_contents")
        entry = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_raw:
            request.raw_input_contents.append(raw(array))
        else:
            getattr(entry.contents, field).extend(array.ravel().tolist())
    return bytes(request.SerializeToString())


def v1_typed(model: str, rows: int) -> bytes:
    """A ``PredictRequest`` in typed fields."""
    request = protocol.PredictRequest()
    request.model_spec.name = model
    for name, array in inputs_of(model, rows).items():
        tensors.fill_proto(request.inputs[name], array)
    return bytes(request.SerializeToString())


def v2_binary(model: str, rows: int) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a REST request with binary tensors."""
    document = json.loads(open_inference_body(model, rows))
    arrays = inputs_of(model, rows)
    for entry in document["inputs"]:
        del entry["data"]
        entry["parameters"] = {"binary_data_size": len(raw(arrays[entry["name"]]))}
    head = json.dumps({**document, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return head + b"".join(raw(array) for array in arrays.values()), headers


def ways(model: str, rows: int, grpc_port: int, rest_port: int) -> dict[str, tuple[Ask, Ask]]:
    """What asks v1 and v2, by way."""
    channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
    v1 = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    v2 = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    def rest(path: str, body: bytes, headers: dict[str, str]) -> Ask:
        connection = http.client.HTTPConnection("127.0.0.1", rest_port)

        def ask() -> bytes:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise RuntimeError(f"{path}: {content!r}")
            return content

        return ask

    content, typed = grpc_body(model, rows), v1_typed(model, rows)
    raw_v2, typed_v2 = (v2_message(model, rows, is_raw) for is_raw in (True, False))
    json_v1 = rest(f"/v1/models/{model}:predict", json_body(model, rows), {})
    path = f"/v2/models/{model}/infer"
    return {
        "grpc_raw": (lambda: v1(content), lambda: v2(raw_v2)),
        "grpc_typed": (lambda: v1(typed), lambda: v2(typed_v2)),
        "rest_json": (json_v1, rest(path, open_inference_body(model, rows), {})),
        "rest_binary": (json_v1, rest(path, *v2_binary(model, rows))),
    }


def compare(first: Ask, second: Ask, requests: int) -> tuple[float, float, float]:
    """Median microseconds of both, and the median of their ratios in blocks of requests that alternate."""
    for ask in (first, second) * 50:
        ask()
    medians: list[tuple[float, float]] = []
    for _ in range(BLOCKS):
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(requests // BLOCKS):
            for times, ask in zip(taken, (first, second), strict=True):
                began_s = time.perf_counter()
                ask()
                times.append(time.perf_counter() - began_s)
        medians.append((statistics.median(taken[0]) * 1e6, statistics.median(taken[1]) * 1e6))
    v1, v2 = (statistics.median(each[index] for each in medians) for index in (0, 1))
    return v1, v2, statistics.median(b / a for a, b in medians)


def main() -> None:
    """Prints a table, and a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="requests of each way")
    requests = parser.parse_args().requests
    console = Console()
    table = Table("model", "rows", "way", "v1 µs", "v2 µs", "v2 over v1")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        module = "benchmarks.measurement.serving_models"
        subprocess.run([RUNTIME, "-m", module, work], cwd=REPOSITORY, check=True, capture_output=True)
        entries = [f'config {{ name: "{each}" base_path: "{work}/models/{each}" }}' for each in ("mlp", "flights")]
        (work / "config").write_text(f"model_config_list {{ {' '.join(entries)} }}")
        flags = [f"--model_config_file={work}/config", "--port=0", "--rest_api_port=auto", f"--ready_file={work}/ready"]
        command = [RUNTIME, "-m", "airflow_hops.serving", *flags]
        with (work / "log").open("wb") as log, subprocess.Popen(command, cwd=REPOSITORY, stderr=log) as server:
            try:
                while not (work / "ready").exists():
                    if server.poll() is not None:
                        raise RuntimeError((work / "log").read_text())
                    time.sleep(0.1)
                ports = json.loads((work / "ready").read_text())
                for model in ("mlp", "flights"):
                    for rows in (1, 64):
                        asked = ways(model, rows, ports["grpc_port"], ports["rest_api_port"])
                        for way, (first, second) in asked.items():
                            v1, v2, ratio = compare(first, second, requests)
                            figures[f"{model}_{rows}_{way}"] = round(ratio, 3)
                            table.add_row(model, str(rows), way, f"{v1:.0f}", f"{v2:.0f}", f"{ratio:.2f}")
            finally:
                server.terminate()
    console.print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
