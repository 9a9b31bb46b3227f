"""Shapes of requests beside those of the signature, on SavedModels without a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from echo_models import write_function
from server_process import predict_request

from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.servable import Call, Servable


def opened(folder: Path, function: Callable[..., Any], shapes: dict[str, Any]) -> Servable:
    inputs = {name: (tf.float32, shape) for name, shape in shapes.items()}
    write_function(folder / "1", lambda *values: {"y": function(*values)}, **inputs)
    return open_model("m", 1, folder / "1", ModelOptions(warmup_iterations=0))


def answer(folder: Path, function: Callable[..., Any], shapes: dict[str, Any], **inputs: Any) -> Any:
    """The answer of such a model; a refusal's message."""
    servable = opened(folder, function, shapes)
    try:
        return servable.predict({name: np.asarray(value, np.float32) for name, value in inputs.items()})["y"].tolist()
    except ServingError as error:
        return error.message
    finally:
        servable.close()


@pytest.mark.parametrize(
    ("function", "shapes", "inputs", "expected"),
    [
        (lambda x: x * [1.0, 10.0, 100.0], {"x": [None, 3]}, {"x": [5]}, "x has shape [1]; expected [batch, 3]"),
        (lambda x: x * [1.0, 10.0, 100.0], {"x": [None, 3]}, {"x": [[5]]}, "x has shape [1, 1]; expected [batch, 3]"),
        (lambda x: x + 1.0, {"x": [None, None, 2]}, {"x": [[[1], [2]]]}, "[1, 2, 1]; expected [batch, ?, 2]"),
        (lambda x, k: x * k, {"x": [None, 2], "k": []}, {"x": [[1, 2], [1, 2]], "k": [3, 4]}, "[2]; expected []"),
        (lambda x, k: x * k, {"x": [None, 2], "k": [2]}, {"x": [[1, 2]], "k": [3]}, "k has shape [1]; expected [2]"),
        (lambda x, z: x + z, {"x": [None], "z": [None]}, {"x": [1, 2], "z": [1]}, "0th dimension: x 2, z 1"),
        (lambda x, z: x + z, {"x": [1, 2], "z": [1, 2]}, {"x": [[1, 2]] * 3, "z": [[1, 2]]}, "dimension: x 3, z 1"),
    ],
)
def test_request_of_another_shape_is_refused(
    function: Callable[..., Any], shapes: dict[str, Any], inputs: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """TensorFlow would broadcast what does not fit."""
    assert expected in answer(tmp_path, function, shapes, **inputs)


def test_value_for_all_rows_is_not_counted_as_rows(tmp_path: Path) -> None:
    servable = opened(tmp_path, lambda by, x: x * by, {"by": [2], "x": [None, 2]})
    request = predict_request("m", by=np.ones(2, np.float32), x=np.ones((3, 2), np.float32))
    assert servable.answer(Call(Method.PREDICT, request.SerializeToString())).rows == 3
    servable.close()


@pytest.mark.parametrize(
    ("function", "shapes", "inputs", "expected"),
    [
        # As TensorFlow Serving's own example, half_plus_two, is asked and answers.
        (lambda x: x / 2 + 2, {"x": [None, 1]}, {"x": [1, 2, 5]}, [2.5, 3.0, 4.5]),
        (lambda x: x / 2 + 2, {"x": [None, 1]}, {"x": [[1], [2]]}, [[2.5], [3.0]]),
        (lambda x: x * [1.0, 10.0, 100.0], {"x": [None, 1]}, {"x": [1, 2, 3]},
         [[1, 10, 100], [2, 20, 200], [3, 30, 300]]),
        (lambda x, k: x * k, {"x": [None, 2], "k": [None, 1]}, {"x": [[1, 2]] * 2, "k": [3, 4]}, [[3, 6], [4, 8]]),
        (lambda x, k: x * k[:, None], {"x": [None, 2], "k": [None]}, {"x": [[1, 2]] * 2, "k": [[3], [4]]},
         [[3, 6], [4, 8]]),
        (lambda x: x + 1, {"x": None}, {"x": [1, 2]}, [2, 3]),
        (lambda x: x + 1, {"x": None}, {"x": 1}, 2),
        (lambda x, z: x + z, {"x": None, "z": [None]}, {"x": [[1], [2], [3]], "z": [1, 2]}, [[2, 3], [3, 4], [4, 5]]),
        (lambda x: x + 1, {"x": [1, 2]}, {"x": [[1, 2], [3, 4]]}, [[2, 3], [4, 5]]),
        (lambda x: x + 1, {"x": []}, {"x": 1}, 2),
        (lambda x: x + 1, {"x": []}, {"x": [1]}, [2]),
        (lambda x, k: x * k, {"x": [None, 2], "k": []}, {"x": [[1, 2]] * 2, "k": 3}, [[3, 6], [3, 6]]),
        (lambda x, k: x * k, {"x": [None, 2], "k": [2]}, {"x": [[1, 2]] * 3, "k": [3, 4]}, [[3, 8]] * 3),
    ],
)  # fmt: skip
def test_request_is_answered_as_by_tensorflow_serving(
    function: Callable[..., Any], shapes: dict[str, Any], inputs: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    assert answer(tmp_path, function, shapes, **inputs) == expected
