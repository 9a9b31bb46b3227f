"""Models of random signatures in every format, asked through each form of v2: a row's answer is the model's."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_process import write_models

from tests.ml.extensions.open_inference.v2_client import FORMS, Refused, V2Client
from tests.ml.model_servers import running_server
from tests.ml.serving.random_signatures import Model, Request, expected_answer, fault, random_models, random_request

pytestmark = pytest.mark.runtime

DATATYPES = {"float": "FP32", "double": "FP64", "int64": "INT64", "int32": "INT32", "bool": "BOOL", "string": "BYTES"}


@pytest.mark.parametrize(
    ("seed", "models", "requests"),
    [
        (1, 9, 60),
        *(pytest.param(seed, 60, 250, marks=pytest.mark.scheduled(part="campaigns")) for seed in range(2, 6)),
    ],
)
def test_each_row_is_answered_as_by_the_model(
    seed: int, models: int, requests: int, runtime_python: Path, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    by_name = random_models(draw, models, tmp_path)
    config = write_models(tmp_path, **{name: tmp_path / name for name in by_name})
    asked = [
        (name, Request("grpc", random_request(draw, model).arrays), draw.choice(FORMS))
        for name, model in by_name.items()
        for _ in range(requests)
    ]
    flags = {"model_config_file": config}
    with (
        running_server(runtime_python, tmp_path / "server", flags) as server,
        V2Client(server) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda each: ask(client, *each), asked))
        described = {name: metadata_fault(client, name, model) for name, model in by_name.items()}
    faults, kinds = [each for each in described.values() if each], Counter[str]()
    for (name, request, form), answer in zip(asked, answers, strict=True):
        expected, may_be_refused = expected_answer(by_name[name], request)
        kinds["refused" if isinstance(answer, tuple) else "answered"] += 1
        if wrong := fault(expected, may_be_refused, answer):
            faults.append(f"{wrong}: {by_name[name]}, {form} {request.arrays}: {answer} and not {expected}")
    assert faults == []
    assert min(kinds.values()) > 0.2 * len(asked), kinds


def ask(client: V2Client, name: str, request: Request, form: str) -> Any:
    """The answer as an array; code and message of a refusal."""
    try:
        return client.infer(name, request.arrays, form).outputs["y"]
    except Refused as error:
        return error.code, error.message


def metadata_fault(client: V2Client, name: str, model: Model) -> str | None:
    """The fault of a model's metadata, which are the declared inputs, or name one whose rank is not known."""
    try:
        document = client.get(f"/models/{name}")
    except Refused as error:
        unknown = [f"input {each.name}" for each in model.inputs if each.shape is None]
        is_named = any(error.message.startswith(each) for each in (*unknown, "output y"))
        return None if error.code == 400 and is_named else f"{model}: {error.message}"
    inputs = {each["name"]: (each["datatype"], tuple(each["shape"])) for each in document["inputs"]}
    expected = {
        each.name: (DATATYPES[each.kind], tuple(-1 if size is None else size for size in each.shape or ()))
        for each in model.inputs
    }
    return None if inputs == expected else f"{model}: {inputs}"
