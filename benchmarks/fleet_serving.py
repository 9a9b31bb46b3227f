"""Latency of a served fleet: 5,000 models, of which 500 are hot; linear models, and trees as ONNX graphs.

Run it with the runtime environment's Python. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from typing import Any  # noqa: E402

import grpc  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402

from airflow_hops.core.serving_api import protocol, tensors  # noqa: E402
from airflow_hops.core.serving_api.tensors import BY_NAME  # noqa: E402
from airflow_hops.extensions.fleet.core.linear import Encoding, NumberEncoding, weights_to_bytes  # noqa: E402
from airflow_hops.extensions.fleet.core.packs import (  # noqa: E402
    LINEAR,
    ONNX,
    OWN,
    Fleet,
    FleetDescription,
    PackWriter,
    write_index,
)
from airflow_hops.serving.models.model_signature import (  # noqa: E402
    SIGNATURE_FILE,
    EstimatorInputs,
    ModelSignature,
)
from airflow_hops.serving.models.signature_defs import ProblemOutputs  # noqa: E402

FEATURES = [f"x{number}" for number in range(11)]
HOT_SHARE = 0.99


def write(folder: Path, form: str, segments: int) -> None:
    """Writes a fleet of 12 columns; its trees are those of 20 trained models in turn."""
    rng = np.random.default_rng(0)
    payloads = [weights_to_bytes(rng.normal(size=(1, 12))) for _ in range(20)]
    if form == ONNX:
        from sklearn.ensemble import GradientBoostingRegressor

        from airflow_hops.extensions.fleet.ml.graphs import estimator_graph

        payloads = []
        for seed in range(20):
            x = rng.normal(size=(1600, 11))
            model = GradientBoostingRegressor(n_estimators=40, subsample=0.5, random_state=seed)
            model.fit(x.astype(np.float32), x[:, 0] * seed + np.sin(3 * x[:, 1]) + rng.normal(size=1600))
            payloads.append(estimator_graph(model, "regression", x))
    with PackWriter(folder) as packs:
        pooled = packs.add(payloads[0], form)
        rows = [
            {"segment": f"shop {number:05}", "state": OWN, "place": packs.add(payloads[number % 20], form)}
            for number in range(segments)
        ]
    write_index(folder, rows)
    requests = EstimatorInputs({"shop": BY_NAME["string"], **dict.fromkeys(FEATURES, BY_NAME["float"])})
    signature = ModelSignature(requests, requests, outputs=ProblemOutputs("regression"))
    (folder / SIGNATURE_FILE).write_text(signature.to_json())
    encoding = Encoding(tuple(NumberEncoding(name, 0.0, 1.0) for name in FEATURES))
    FleetDescription("shop", "string", encoding, pooled).write(folder)


def request_of(keys: Sequence[str], segment: str, columns: Mapping[str, np.ndarray]) -> bytes:
    """A serialized Predict request."""
    request = protocol.PredictRequest()
    request.model_spec.name = "fleet"
    tensors.fill_proto(request.inputs[segment], np.array([key.encode() for key in keys], object))
    for name, values in columns.items():
        tensors.fill_proto(request.inputs[name], values)
    return bytes(request.SerializeToString())


def measure(
    folder: Path, columns: Mapping[str, np.ndarray], *, hot: int, requests: int, clients: int
) -> dict[str, Any]:
    """Serves the fleet in a version folder and asks it.

    Args:
        folder: The fleet's folder, as in the artifact.
        columns: One row of the other columns, by name, ``[1]``.
        hot: Segments that get 99% of the requests; the rest is spread over all.
        requests: Requests of one row each.
        clients: Threads that ask, each as soon as it has its answer.

    Returns:
        Milliseconds by percentile, of all requests after each hot segment was asked once, and memory of the server.
    """
    fleet = Fleet(folder)
    keys, segment = list(fleet.entries), fleet.description.segment
    fleet.close()
    rng = np.random.default_rng(1)
    rng.shuffle(keys)
    is_hot = rng.random(requests) < HOT_SHARE
    numbers = np.where(is_hot, rng.integers(hot, size=requests), rng.integers(len(keys), size=requests))
    messages = [request_of([key], segment, columns) for key in keys]
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, Path(place) / "fleet" / "1")
        ready = Path(place) / "ready.json"
        command = [
            sys.executable,
            "-m",
            "airflow_hops.serving",
            "--port=0",
            "--rest_api_port=auto",
            "--model_name=fleet",
        ]
        command += [f"--model_base_path={place}/fleet", f"--ready_file={ready}"]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
        server = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                assert server.poll() is None, "the server did not start"
                time.sleep(0.05)
            address = f"127.0.0.1:{json.loads(ready.read_text())['grpc_port']}"
            idle = psutil.Process(server.pid).memory_info().rss
            with grpc.insecure_channel(address) as channel:
                ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
                for number in range(hot):
                    ask(messages[number])

                def asks(part: np.ndarray) -> list[float]:
                    times = []
                    for number in part:
                        begin = time.perf_counter()
                        ask(messages[number])
                        times.append(time.perf_counter() - begin)
                    return times

                begin = time.perf_counter()
                with ThreadPoolExecutor(clients) as threads:
                    times = [each for part in threads.map(asks, np.array_split(numbers, clients)) for each in part]
                took = time.perf_counter() - begin
            grown = psutil.Process(server.pid).memory_info().rss - idle
        finally:
            server.terminate()
            server.wait(60)
    p50, p99, p999 = (float(value) * 1e3 for value in np.percentile(times, [50, 99, 99.9]))
    return {
        "segments": len(keys),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "p99.9_ms": round(p999, 2),
        "max_ms": round(max(times) * 1e3, 1),
        "requests_per_s": round(requests / took),
        "grown_mb": round(grown / 1e6, 1),
    }


def main() -> None:
    """Measures both kinds of models, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=5000)
    parser.add_argument("--hot", type=int, default=500)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    row = {name: np.zeros(1, np.float32) for name in FEATURES}
    for form in (LINEAR, ONNX):
        with tempfile.TemporaryDirectory() as place:
            write(Path(place) / "fleet", form, arguments.segments)
            options = {"hot": arguments.hot, "requests": arguments.requests, "clients": arguments.clients}
            print(form, json.dumps(measure(Path(place) / "fleet", row, **options)), flush=True)


if __name__ == "__main__":
    main()
