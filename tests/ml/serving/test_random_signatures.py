"""Graphs of random signatures in every format, asked at random: a row's answer is the model's, or a refusal."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from campaigns import campaign
from server_process import ServerProcess, write_models

from airflow_hops.core.serving_api.client import ModelServerClient, ModelServerError
from tests.ml.model_servers import running_server
from tests.ml.serving.random_signatures import Model, Request, expected_answer, fault, random_models, random_request


@campaign("seed, models, requests, is_batched", (1, 15, 40, True), *((n, 60, 200, n % 2) for n in range(2, 8)))
def test_each_row_is_answered_as_by_the_model(
    seed: int, models: int, requests: int, is_batched: bool, runtime_python: Path, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    by_name = random_models(draw, models, tmp_path)
    flags = {"model_config_file": write_models(tmp_path, **{name: tmp_path / name for name in by_name})}
    if is_batched:
        (tmp_path / "batching").write_text("max_batch_size { value: 8 } batch_timeout_micros { value: 3000 }")
        flags |= {"enable_batching": "true", "batching_parameters_file": tmp_path / "batching"}
    asked = [(name, random_request(draw, model)) for name, model in by_name.items() for _ in range(requests)]
    with (
        running_server(runtime_python, tmp_path / "server", flags) as server,
        ModelServerClient(server.address) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda each: ask(server, client, *each), asked))
    faults, kinds = [], Counter[str]()
    for (name, request), answer in zip(asked, answers, strict=True):
        expected, may_be_refused = expected_answer(by_name[name], request)
        kinds["refused" if isinstance(answer, tuple) else "answered"] += 1
        if wrong := fault(expected, may_be_refused, answer):
            faults.append(shown(wrong, by_name[name], request, expected, answer))
    assert faults == []
    assert min(kinds.values()) > 0.2 * len(asked), kinds


def ask(server: ServerProcess, client: ModelServerClient, name: str, request: Request) -> Any:
    """The answer as lists or an array; code and message of a refusal."""
    if request.form == "grpc":
        try:
            return client.predict(name, dict(request.arrays)).outputs["y"]
        except ModelServerError as error:
            return error.code.name, str(error)
    status, body = server.call(f"/v1/models/{name}:predict", request.body)
    return body["predictions" if request.form == "row" else "outputs"] if status == 200 else (status, body["error"])


def shown(wrong: str, model: Model, request: Request, expected: Any, answer: Any) -> str:
    inputs = ", ".join(f"{each.name} {each.kind} {each.shape} {each.has_rows}" for each in model.inputs)
    values = {name: array.tolist() for name, array in request.arrays.items()}
    return f"{wrong}: {model.form} {inputs}, {request.form} {values}: {answer} and not {expected}"
